"""A syphon that runs until it is stopped: finds the backlog queues of a pairing, also those that are made later."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from spillway.client import ClientError
from spillway.model.aliases import Malformed
from spillway.model.backlogs import backlog_path
from spillway.model.failures import Blame
from spillway.syphon.depths import Backlogs, SecondaryError
from spillway.syphon.destinations import Opener
from spillway.syphon.outcomes import DEAD_LETTERED, KEPT, MOVED, REPEATED, OutcomeCount, OutcomeCounts, reason_of
from spillway.syphon.policy import BackOff, as_client_error, failure_of
from spillway.syphon.restore import Ttl
from spillway.syphon.standing import LONG_POLL_S, OPERATION_TIMEOUT_S, StandingSyphon

LOOK_S: Final = 1.0  # for the first backlog queue, then less and less often
LOOK_MAX_S: Final = 60.0
LOOK_AGAIN_S: Final = 900.0  # for queues that were made since: one request, as often as a long poll


@dataclass(frozen=True)
class WatchOptions:
    ttl: Ttl = "restart"
    long_poll_s: float = LONG_POLL_S
    operation_timeout_s: float = OPERATION_TIMEOUT_S


@dataclass
class Watched:
    """What a syphon did until it was stopped. `kept` messages wait in the backlog, as far as it knows."""

    namespace_name: str
    queues: int = 0
    moved: int = 0
    repeated: int = 0
    dead_lettered: int = 0
    kept: int = 0
    seconds: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list)


class Outcomes:
    """The syphon's observer: counts, which `told` hears one by one; `say` hears of interruptions."""

    def __init__(self, told: Callable[[OutcomeCount], None], say: Callable[[str], None]) -> None:
        self._told = told
        self._say = say
        self.failed: Exception | None = None  # whoever hears it has gone: nothing is told any more
        self.on_failed: Callable[[], None] = lambda: None
        self.counts = OutcomeCounts()
        self.kept_counts: dict[tuple[str, str], OutcomeCount] = {}  # by queue and destination, or by queue and number

    def told(self, count: OutcomeCount) -> None:
        self._safely(lambda: self._told(count))

    def say(self, text: str) -> None:
        self._safely(lambda: self._say(text))

    def _safely(self, call: Callable[[], None]) -> None:
        """The syphon calls in the middle of its work: what is wrong with the listener ends the run, in order."""
        if self.failed is None:
            try:
                call()
            except Exception as error:
                self.failed = error
                self.on_failed()

    def syphoned(self, path: str, count: int, queue: str) -> None:
        self.kept_counts.pop((queue, path), None)
        self._add(OutcomeCount(queue, path, MOVED, "", count, 0))

    def kept(self, path: str, error: ClientError, queue: str, held: int) -> None:
        self._retain((queue, path), OutcomeCount(queue, path, KEPT, reason_of(error), held, 0))

    def message_kept(self, queue: str, error: ClientError, sequence_number: int) -> None:
        self._retain((queue, f"#{sequence_number}"), OutcomeCount(queue, "", KEPT, reason_of(error), 1, 0))

    def dead_lettered(self, queue: str, error: Malformed) -> None:
        self._add(OutcomeCount(queue, "", DEAD_LETTERED, error.reason, 1, 0))

    def repeated(self, queue: str, error: ClientError) -> None:
        self._add(OutcomeCount(queue, "", REPEATED, reason_of(error), 1, 0))

    def polled(self, queue: str, received: int) -> None:
        """A poll is nothing that anybody watches for."""

    def interrupted(self, queue: str, error: ClientError) -> None:
        self.say(f"{queue}: interrupted, trying again: {reason_of(error)}")

    def count_receive(self, queue: str, size_bytes: int) -> None:
        """The namespaces keep ledgers of their own: so with all of these."""

    def count_empty_receive(self, queue: str) -> None: ...

    def count_settle(self, queue: str) -> None: ...

    def count_renew(self, queue: str) -> None: ...

    def count_send(self, path: str, size_bytes: int) -> None: ...

    def _retain(self, key: tuple[str, str], count: OutcomeCount) -> None:
        if len(self.kept_counts) < 10_000:
            self.kept_counts[key] = count
        self.told(count)

    def _add(self, count: OutcomeCount) -> None:
        self.counts.add(count)
        self.told(count)


class SyphonWatch:
    """One run of a watch, until `stop`."""

    def __init__(
        self,
        open_primary: Opener,
        open_secondary: Opener,
        backlogs: Backlogs,
        options: WatchOptions,
        told: Callable[[OutcomeCount], None],
        say: Callable[[str], None],
    ) -> None:
        self.open_primary = open_primary
        self.open_secondary = open_secondary
        self.backlogs = backlogs
        self.options = options
        self.outcomes = Outcomes(told, say)
        self.outcomes.on_failed = self.stop
        self.say = self.outcomes.say
        self.stopped = asyncio.Event()
        self._held: dict[tuple[str, str], int] = {}
        self._attached: set[str] = set()  # queues of which it is known what is held
        self.syphon: StandingSyphon | None = None

    def stop(self) -> None:
        self.stopped.set()

    async def run(self) -> Watched:
        """`Unauthorized` if the key may not receive from the backlog: no waiting cures that."""
        began_s = time.monotonic()
        try:
            paths = await self._first_paths()
            if paths:
                self.syphon = self._started(paths)
                await self._raise_if_refused(self.syphon)
                while not self.stopped.is_set():
                    await self._rest(LOOK_AGAIN_S)
                    await self._check_again()
        finally:
            if self.syphon is not None:
                self._held = self.syphon.held_counts()
                self._attached = {queue.path for queue in self.syphon.queues if queue.lane is not None}
                await self.syphon.close()
        if self.outcomes.failed is not None:
            raise self.outcomes.failed
        return self._summed_up(time.monotonic() - began_s)

    def _started(self, paths: list[str]) -> StandingSyphon:
        syphon = StandingSyphon(
            self.open_primary,
            self.open_secondary,
            paths,
            self.outcomes,
            ttl=self.options.ttl,
            long_poll_s=self.options.long_poll_s,
            operation_timeout_s=self.options.operation_timeout_s,
        )
        syphon.start()
        self.say(f"watching {len(paths)} of the backlog queues of '{self.backlogs.name}'")
        return syphon

    async def _raise_if_refused(self, syphon: StandingSyphon) -> None:
        tried, stopped = asyncio.ensure_future(syphon.tried()), asyncio.ensure_future(self.stopped.wait())
        await asyncio.wait([tried, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not tried.done():
            tried.cancel()
            return
        refusal = tried.result()
        if refusal is not None and failure_of(as_client_error(refusal)).blame is Blame.CALLER:
            raise refusal

    async def _first_paths(self) -> list[str]:
        """Waits for a secondary that answers and has backlog queues: senders make them when they pair."""
        said, back_off = "", BackOff(LOOK_S, LOOK_MAX_S)
        while not self.stopped.is_set():
            try:
                found = await self._paths()
                why = f"there is no backlog queue of '{self.backlogs.name}' in the secondary namespace yet"
            except SecondaryError as error:
                found, why = [], str(error)
            if found:
                return found
            if why != said:
                self.say(f"{why}: looking again now and then")
                said = why
            await self._rest(back_off.after())
        return []

    async def _paths(self) -> list[str]:
        """Where they cannot be listed, as many as there may be: one that is not there is looked for by its receiver."""
        found = await self.backlogs.paths()
        if found is None:
            return [backlog_path(self.backlogs.name, index) for index in range(self.backlogs.probes)]
        return found

    async def _check_again(self) -> None:
        if self.syphon is None or self.stopped.is_set():
            return
        with contextlib.suppress(SecondaryError):
            known = {queue.path.lower() for queue in self.syphon.queues}
            for path in await self._paths():
                if path.lower() not in known:
                    self.say(f"a backlog queue was made: {path}")
                    self.syphon.add(path)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopped.wait()

    def _summed_up(self, seconds: float) -> Watched:
        counts, kept = self.outcomes.counts, OutcomeCounts()
        for count in self.outcomes.kept_counts.values():
            if count.destination and count.backlog in self._attached:  # as many as there are now
                held = self._held.get((count.backlog, count.destination.lower()), 0)
                count = replace(count, messages=held)
            kept.add(count)
        return Watched(
            self.backlogs.name,
            0 if self.syphon is None else len(self.syphon.queues),
            counts.total(MOVED),
            counts.total(REPEATED),
            counts.total(DEAD_LETTERED),
            kept.total(KEPT),
            round(seconds, 3),
            [asdict(count) for outcomes in (counts, kept) for count in outcomes.counts()],
        )
