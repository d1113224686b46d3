"""One namespace as this program reaches it: what its senders, pings and syphon share.

`MessagingFactory` is this and more. Other modules of the room get a `FactoryNamespace`, or the part of it they need.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any, Final, Protocol, Self

from azure.servicebus.aio import ServiceBusClient

from spillway.model.backlogs import namespace_name as name_of
from spillway.model.failures import Failure
from spillway.paired import events
from spillway.paired.access import NamespaceAccess
from spillway.paired.deadlines import Deadlines
from spillway.paired.errors import FactoryClosed
from spillway.paired.events import Events
from spillway.paired.failures import FailoverPolicy
from spillway.paired.in_flight import InFlight
from spillway.paired.ledger import ClientLedger
from spillway.paired.parameters import error as checked_error
from spillway.paired.pools import SenderPools
from spillway.paired.shutdown import close_quietly

OPERATION_TIMEOUT_S: Final = 60.0
IN_FLIGHT_MAX: Final = 1_000
IN_FLIGHT_BYTES_MAX: Final = 64 * 1024 * 1024
SENDERS_PER_ENTITY: Final = 4


class DivertedSequenceNumber(int):
    """Stands for a schedule that went to the backlog: negative, like no sequence number, and known to `cancel`."""


class Closable(Protocol):
    async def close(self) -> None: ...


class FactoryNamespace:
    """Open from the start; `is_closed` once it was closed or faulted. An async context manager that closes it."""

    def __init__(
        self,
        access: NamespaceAccess,
        make_client: Callable[..., ServiceBusClient],
        name: str | None,
        operation_timeout: float,
        max_in_flight: int,
        max_in_flight_bytes: int,
        senders_per_entity: int,
        sdk_options: dict[str, Any],
    ) -> None:
        self.access = access
        self.host = access.host
        self.namespace_name = name or name_of(access.host)
        self.operation_timeout_s = float(operation_timeout)
        self.judge: Callable[[BaseException], Failure] = FailoverPolicy().judge  # another one, if the pairing has one
        self.events = Events()
        self.ledger = ClientLedger(self.namespace_name)  # what this program made the namespace do
        self.in_flight = InFlight(max_in_flight, max_in_flight_bytes)
        self.sdk_options = sdk_options
        self.make_client = make_client
        # The library owns the retries of sends; receivers keep the SDK's.
        self.client = make_client(**{"retry_total": 0, **sdk_options})
        self.pools = SenderPools(self.client.get_queue_sender, senders_per_entity, self)
        self.is_closed = False
        self.fault: BaseException | None = None
        self.on_end: list[Callable[[], None]] = []  # told when it is closed or faulted
        self.syphons_fed: list[Closable] = []  # those of primaries whose backlog this namespace has
        self.calls = Deadlines(self.closed_error)  # of senders, under way
        self._ended = asyncio.Event()
        self._diverted_numbers = itertools.count(1)

    def next_diverted_number(self) -> DivertedSequenceNumber:
        return DivertedSequenceNumber(-next(self._diverted_numbers))

    @property
    def is_faulted(self) -> bool:
        return self.fault is not None

    def check_open(self) -> None:
        if self.is_closed:
            raise self.closed_error()

    def closed_error(self) -> FactoryClosed:
        if self.fault is None:
            return FactoryClosed(f"the factory of {self.host} has been closed")
        error = FactoryClosed(f"the factory of {self.host} was faulted: {self.fault}")
        error.__cause__ = self.fault
        return error

    async def rest(self, until_s: float) -> None:
        """Wait until that time has come, or the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._ended.wait()

    # -- the end --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what is in flight no more; close every connection."""
        if not self.is_closed:
            self.is_closed = True
            self.tell_end()
            await self.release()

    async def abort(self, error: BaseException) -> None:
        """Fault: from now on every call fails with this error."""
        checked_error("error", error)
        if not self.is_closed:
            self.fault = error
            self.is_closed = True
            self.events.tell(events.FAULTED, self.host, error=error)
            self.tell_end()
            await self.release()

    def tell_end(self) -> None:
        assert self.is_closed and not self._ended.is_set(), "the end is told once, when it has come"
        self._ended.set()
        self.calls.end_all()
        for told in self.on_end:
            told()

    async def release(self) -> None:
        """Close everything that is open. All at the same time: every connection takes a moment to say goodbye."""
        for syphon in self.syphons_fed:  # or it would find its receivers closed
            await syphon.close()
        await self.pools.close()
        await close_quietly(self.client)
