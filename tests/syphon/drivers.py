"""Both drivers behind one front, for tests that hold them to the same contract."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spillway.client import ClientError, connect
from spillway.model.aliases import Malformed
from spillway.syphon.move import BacklogShare, MoveOptions, move
from spillway.syphon.openers import opener_of_string
from spillway.syphon.outcomes import DEAD_LETTERED, KEPT, MOVED, REPEATED, OutcomeCount, reason_of
from spillway.syphon.restore import Ttl
from spillway.syphon.standing import StandingSyphon
from tests.paired.namespaces import eventually
from tests.tools.broker_process import BrokerProcess

CLOSE_S = 5.0


@dataclass
class Heard:
    """What a driver told, in the words of neither: an `Observer` of the standing syphon."""

    syphoned_counts: Counter[str] = field(default_factory=Counter)  # by destination
    kept_reasons: dict[str, set[str]] = field(default_factory=dict)  # by destination; empty where it is a message's own
    dead: Counter[str] = field(default_factory=Counter)  # by reason
    repeats: int = 0
    interruptions: list[str] = field(default_factory=list)
    polls: int = 0
    operations: Counter[str] = field(default_factory=Counter)

    def syphoned(self, path: str, count: int, queue: str) -> None:
        self.syphoned_counts[path] += count

    def kept(self, path: str, error: ClientError, queue: str, held: int) -> None:
        self.kept_reasons.setdefault(path, set()).add(reason_of(error))

    def message_kept(self, queue: str, error: ClientError, sequence_number: int) -> None:
        self.kept_reasons.setdefault("", set()).add(reason_of(error))

    def dead_lettered(self, queue: str, error: Malformed) -> None:
        self.dead[error.reason] += 1

    def repeated(self, queue: str, error: ClientError) -> None:
        self.repeats += 1

    def polled(self, queue: str, received: int) -> None:
        self.polls += 1

    def interrupted(self, queue: str, error: ClientError) -> None:
        self.interruptions.append(str(error))

    def count_receive(self, queue: str, size_bytes: int) -> None:
        self.operations["receive"] += 1

    def count_empty_receive(self, queue: str) -> None:
        self.operations["empty_receive"] += 1

    def count_settle(self, queue: str) -> None:
        self.operations["settle"] += 1

    def count_renew(self, queue: str) -> None:
        self.operations["renew"] += 1

    def count_send(self, path: str, size_bytes: int) -> None:
        self.operations["send"] += 1

    def add(self, count: OutcomeCount) -> None:
        """A line of a pass."""
        if count.outcome == MOVED:
            self.syphoned_counts[count.destination] += count.messages
        elif count.outcome == KEPT:
            self.kept_reasons.setdefault(count.destination, set()).add(count.reason)
        elif count.outcome == DEAD_LETTERED:
            self.dead[count.reason] += count.messages
        elif count.outcome == REPEATED:
            self.repeats += count.messages

    def said_of(self, destination: str) -> str:
        return " ".join(sorted(self.kept_reasons.get(destination, ())))


class Driver(Protocol):
    """A way to run a syphon over backlog queues, until the block ends; that takes five seconds at most."""

    def running(
        self,
        primary: BrokerProcess,
        secondary: BrokerProcess,
        paths: Sequence[str],
        ttl: Ttl = "restart",
        timeout_s: float = 10.0,
    ) -> Any: ...


class Standing:
    """The standing syphon, with short polls so that a second is long."""

    @contextlib.asynccontextmanager
    async def running(
        self,
        primary: BrokerProcess,
        secondary: BrokerProcess,
        paths: Sequence[str],
        ttl: Ttl = "restart",
        timeout_s: float = 10.0,
    ) -> AsyncIterator[Heard]:
        heard = Heard()
        home, away = (
            opener_of_string(broker.connection_string, operation_timeout_s=timeout_s) for broker in (primary, secondary)
        )
        syphon = StandingSyphon(home, away, paths, heard, ttl=ttl, long_poll_s=30.0, operation_timeout_s=timeout_s)
        syphon.start()
        try:
            yield heard
        finally:
            async with asyncio.timeout(CLOSE_S):
                await syphon.close()
            assert all(task.done() for task in syphon.tasks)


class Passes:
    """One pass after the other, as a job that is started again and again."""

    @contextlib.asynccontextmanager
    async def running(
        self,
        primary: BrokerProcess,
        secondary: BrokerProcess,
        paths: Sequence[str],
        ttl: Ttl = "restart",
        timeout_s: float = 10.0,
    ) -> AsyncIterator[Heard]:
        heard = Heard()
        stopped = asyncio.Event()

        async def one() -> None:
            async with (
                await connect(primary.connection_string, operation_timeout=timeout_s) as home,
                await connect(secondary.connection_string, operation_timeout=timeout_s) as away,
            ):
                options = MoveOptions(idle_s=0.2, ttl=ttl)
                await move(home, away, [BacklogShare(path) for path in paths], options, heard.add, stopped)

        async def run() -> None:
            while not stopped.is_set():
                with contextlib.suppress(ClientError):
                    await one()
                await asyncio.sleep(0.1)

        task = asyncio.create_task(run())
        try:
            yield heard
        finally:
            stopped.set()
            # A pass ends by itself when it can; one whose namespaces are silent is ended as a job is, from outside.
            await asyncio.wait([task], timeout=CLOSE_S / 2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


DRIVERS: dict[str, Driver] = {"pass": Passes(), "standing": Standing()}


async def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    await eventually(holds, timeout_s)
