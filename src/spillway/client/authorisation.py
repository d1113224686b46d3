"""Rights, by `$cbs`: a token per entity, put before the first link to it and renewed before it expires."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from spillway.amqp.types import Timestamp
from spillway.client.credentials import Credential
from spillway.client.errors import ClientError, error_for_status
from spillway.client.link import within
from spillway.client.requests import RequestPair

CBS: Final = "$cbs"
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 30.0

_log: Final = logging.getLogger(__name__)


class Authorisation:
    """The tokens of one connection. `open_pair` attaches a fresh pair of links to `$cbs`."""

    def __init__(
        self, credential: Credential, authority: str, open_pair: Callable[[], RequestPair], timeout_s: float
    ) -> None:
        self._credential = credential
        self._authority = authority
        self._open_pair = open_pair
        self._timeout_s = timeout_s
        self._pair: RequestPair | None = None
        self._mutex = asyncio.Lock()
        self._expiries: dict[str, float] = {}  # by audience
        self._renewals: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._renewer: asyncio.Task[None] | None = None

    async def authorise(self, path: str) -> None:
        """Make sure that the connection has a token for an entity; the caller limits how long it may take."""
        audience = f"sb://{self._authority}/{path}"
        if audience in self._expiries and self._renewer is not None:
            return
        async with self._mutex:
            if audience not in self._expiries:
                await self._put(audience)
        if self._renewer is None:
            self._renewer = asyncio.create_task(self._renew(), name="spillway-token-renewal")

    def stop(self) -> None:
        if self._renewer is not None:
            self._renewer.cancel()

    async def _put(self, audience: str) -> None:
        if self._pair is None or self._pair.error is not None:
            self._pair = self._open_pair()
            await self._pair.wait_attached()
        token = await self._credential.token_for(audience, time.time())
        properties = {
            "operation": "put-token",
            "type": token.kind,
            "name": audience,
            "expiration": Timestamp(int(token.expires_s * 1000)),
        }
        response = await self._pair.request(properties, token.text)
        status = response.properties.get("status-code")
        if not isinstance(status, int):
            raise ClientError("the answer of $cbs has no status-code", "amqp:decode-error")
        if not 200 <= status < 300:
            raise error_for_status(status, None, str(response.properties.get("status-description") or ""))
        now_s = time.time()
        self._expiries[audience] = token.expires_s
        self._renewals[audience] = token.renew_at_s(now_s)
        assert self._renewals[audience] > now_s, "a token is not renewed in the moment in which it was put"
        self._changed.set()

    async def _renew(self) -> None:
        """Renew every token in its time; one that cannot be renewed is tried again until it has expired."""
        retry_s = RETRY_S_MIN
        while True:
            assert self._renewals.keys() == self._expiries.keys(), "a token has both times or none"
            audience = min(self._renewals, key=self._renewals.__getitem__, default=None)
            await self._sleep_until(None if audience is None else self._renewals[audience])
            if audience is None or self._renewals[audience] > time.time():
                continue
            expires_s = self._expiries[audience]
            try:
                async with self._mutex:
                    await within(self._put(audience), self._timeout_s, f"renewing the token for {audience}")
                retry_s = RETRY_S_MIN
            except Exception as error:  # whatever a credential may raise
                if time.time() >= expires_s:
                    _log.error("the token for %s has expired and could not be renewed: %s", audience, error)
                    del self._renewals[audience], self._expiries[audience]  # asked for anew with the next link
                else:
                    _log.warning("the token for %s could not be renewed, trying again: %s", audience, error)
                    self._renewals[audience] = time.time() + retry_s
                    retry_s = min(retry_s * 2, RETRY_S_MAX)

    async def _sleep_until(self, when_s: float | None) -> None:
        """Until then, or until there is another token to think of."""
        self._changed.clear()
        try:
            async with asyncio.timeout(None if when_s is None else max(0.0, when_s - time.time())):
                await self._changed.wait()
        except TimeoutError:
            pass
