"""How a query meets a namespace that is away, or throttles: it asks again, ever less often, until its patience ends.

What an error means is in one table (`model/failures.py`, read with the client's own errors): what passes by itself is
waited for, a wrong key or a missing entity is told at once. An outage begins with the first error and ends with the
first answer, so that patience is for each outage anew.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from spillway.client import ClientError, ConnectionLost, LinkClosed
from spillway.model.failures import Blame
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool, NamespaceError, plain
from spillway.syphon.policy import BUSY_PAUSE_S, PAUSE_MAX_S, PAUSE_S, BackOff, failure_of

T = TypeVar("T")
LOG: Final = logging.getLogger("spillway.spark")

pause = asyncio.sleep  # between two tries of a task


def is_transient(error: ClientError) -> bool:
    """Whether it passes by itself: outages and throttling do; what the user has to mend does not."""
    failure = failure_of(error)
    if failure.is_lasting or failure.blame in (Blame.MESSAGE, Blame.CALLER):
        return False
    if isinstance(error, (ConnectionLost, LinkClosed)):
        return error.is_transient  # not where there is no TLS with this peer, or where we have closed ourselves
    return failure.is_busy or failure.is_retried or error.is_transient


class Patience:
    """How long one caller waits. `entity` and `right` are for the words it ends with."""

    def __init__(
        self, access: Access, entity: str, right: str = "Listen", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.patience_s = access.patience_s
        self._entity = entity
        self._right = right
        self._clock = clock
        self._back_off = BackOff(PAUSE_S, PAUSE_MAX_S)
        self._since_s: float | None = None  # when the outage began
        self._again_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the pause after the last error is over."""
        return self._clock() >= self._again_s

    def on_answered(self) -> None:
        self._since_s = None
        self._again_s = 0.0
        self._back_off.reset()

    def abandon(self) -> None:
        """Whoever waits is not needed any more: the next error is the last."""
        self.patience_s = 0.0

    def after(self, error: ClientError | NamespaceError) -> float:
        """The pause before the next try; raises `NamespaceError` where waiting does not help, or was long enough."""
        said = plain(error, self._entity, self._right) if isinstance(error, ClientError) else error
        cause = said.cause
        if cause is None or not is_transient(cause) or self.patience_s <= 0:
            raise said from None
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
            LOG.warning("%s: trying again for up to %g s", said, self.patience_s)
        left_s = self._since_s + self.patience_s - now_s
        if left_s <= 0:
            raise NamespaceError(f"{said}; tried again for {self.patience_s:g} s (patienceSeconds)", cause) from None
        least_s = BUSY_PAUSE_S if failure_of(cause).is_busy else 0.0
        pause_s = min(left_s, max(least_s, self._back_off.after()))
        assert 0.0 <= pause_s <= left_s, "no pause is longer than the patience that is left"
        self._again_s = now_s + pause_s
        return pause_s


async def patiently(patience: Patience, work: Callable[[], Awaitable[T]]) -> T:
    """The answer, asked for again and again; `NamespaceError` when patience ends. `work` may be done more than once."""
    while True:
        try:
            answer = await work()
        except (ClientError, NamespaceError) as error:
            await pause(patience.after(error))
        else:
            patience.on_answered()
            return answer


def poll(pool: ConnectionPool, patience: Patience, work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    """The answer, or None while the namespace is away: for a caller that Spark calls again soon anyway."""
    if not patience.is_due:
        return None
    try:
        answer = pool.run(work())
    except (ClientError, NamespaceError) as error:
        patience.after(error)
        return None
    patience.on_answered()
    return answer
