"""One run that empties the backlog queues of a pairing: pass after pass, until nothing is left but what is kept."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from spillway.client import ClientError
from spillway.syphon.depths import Backlogs, Depth
from spillway.syphon.destinations import Opener
from spillway.syphon.move import BacklogShare, Moved, MoveOptions, move
from spillway.syphon.outcomes import DEAD_LETTERED, KEPT, MOVED, REPEATED, OutcomeCount, OutcomeCounts
from spillway.syphon.policy import BackOff
from spillway.syphon.restore import Ttl

IDLE_S: Final = 0.5
PATIENCE_S: Final = 15.0  # a busy destination wants ten seconds
PASSES_IN_VAIN: Final = 2
TRIES_MAX: Final = 3  # to go on after a connection was lost, without a message moved in between


@dataclass
class DrainSummary:
    """What became of the backlog. `moved` is what was counted here; `before` and `after` are the broker's own counts,
    None where the key has not the right to ask for them."""

    namespace_name: str
    queues: int = 0
    moved: int = 0
    repeated: int = 0
    dead_lettered: int = 0
    kept: int = 0
    before: int | None = None
    after: int | None = None
    seconds: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_all_home(self) -> bool:
        return self.kept == 0 and not self.after


@dataclass(frozen=True)
class DrainOptions:
    """`patience_s`: so long messages that were refused are tried again within a pass."""

    ttl: Ttl = "restart"
    patience_s: float = PATIENCE_S
    idle_s: float = IDLE_S


class Drain:
    """A run. `told` hears of every count as soon as it is true, `say` of what a person may want to know, `begun` of how
    many messages there are, where that is known."""

    def __init__(
        self,
        open_primary: Opener,
        open_secondary: Opener,
        backlogs: Backlogs,
        options: DrainOptions,
        told: Callable[[OutcomeCount], None],
        say: Callable[[str], None],
        begun: Callable[[int | None], None] = lambda count: None,
    ) -> None:
        self.open_primary = open_primary
        self.open_secondary = open_secondary
        self.backlogs = backlogs
        self.options = options
        self.told = told
        self.say = say
        self.begun = begun
        self.stopped = asyncio.Event()
        self.done = DrainSummary(backlogs.name)
        self._outcomes = OutcomeCounts()
        self._kept: list[OutcomeCount] = []  # of the last pass: what an earlier one was refused may be home by now

    def stop(self) -> None:
        """The pass under way ends in order, and no other is begun."""
        self.stopped.set()

    async def run(self) -> DrainSummary:
        """`SecondaryError` or `ClientError` if a namespace cannot be reached."""
        began_s = time.monotonic()
        depths = await self.backlogs.depths()
        self.done.queues = len(depths)
        self.done.before = self.done.after = _sum(depths)
        self.begun(self.done.before)
        try:
            await self._passes(depths)
        finally:
            self._sum_up(time.monotonic() - began_s)
        return self.done

    async def _passes(self, depths: Sequence[Depth]) -> None:
        paths = tuple(depth.path for depth in depths)
        in_vain = 0
        while any(depth.active != 0 for depth in depths) and not self.stopped.is_set():
            before = self._done_count()
            await self._pass(paths)
            depths = await self.backlogs.depths(paths)
            self.done.after = _sum(depths)
            kept = sum(count.messages for count in self._kept)
            if self.done.after is None or self.done.after <= kept:
                return  # a pass ends when nothing comes any more: what is not known to be there is not waited for
            in_vain = in_vain + 1 if self._done_count() == before else 0
            if in_vain >= PASSES_IN_VAIN:
                return
            if in_vain:
                await self._wait_for_locks(max(depth.lock_s for depth in depths))

    async def _wait_for_locks(self, lock_s: float) -> None:
        self.say(f"messages are left that are locked by somebody: looking again in {lock_s:.0f} s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(lock_s):
                await self.stopped.wait()

    async def _pass(self, paths: Sequence[str]) -> None:
        """One pass, gone on with after a connection was lost. `ClientError` if that happens again and again."""
        back_off = BackOff()
        tries = 0
        while not self.stopped.is_set():
            before = self._done_count()
            error = await self._try_pass(paths)
            if error is None:
                return
            tries = tries + 1 if self._done_count() == before else 1
            if tries >= TRIES_MAX:
                raise error
            pause_s = back_off.after()
            self.say(f"interrupted, trying again in {pause_s:.0f} s: {error}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.stopped.wait()

    async def _try_pass(self, paths: Sequence[str]) -> ClientError | None:
        chosen = MoveOptions(self.options.idle_s, self.options.patience_s, None, self.options.ttl)
        self._kept = []
        try:
            async with await self.open_primary() as primary, await self.open_secondary() as secondary:
                shares = [BacklogShare(path) for path in paths]
                moved: Moved = await move(primary, secondary, shares, chosen, self._count, self.stopped)
        except ClientError as error:
            return error
        return moved.error

    def _count(self, count: OutcomeCount) -> None:
        if count.outcome == KEPT:
            self._kept.append(count)
        else:
            self._outcomes.add(count)
        self.told(count)

    def _done_count(self) -> int:
        return self._outcomes.total(MOVED) + self._outcomes.total(DEAD_LETTERED)

    def _sum_up(self, seconds: float) -> None:
        kept = OutcomeCounts()
        for count in self._kept if self.done.after != 0 else ():
            kept.add(count)
        self.done.moved = self._outcomes.total(MOVED)
        self.done.repeated = self._outcomes.total(REPEATED)
        self.done.dead_lettered = self._outcomes.total(DEAD_LETTERED)
        self.done.kept = kept.total(KEPT)
        self.done.seconds = round(seconds, 3)
        self.done.lines = [asdict(count) for outcomes in (self._outcomes, kept) for count in outcomes.counts()]


def _sum(depths: Sequence[Depth]) -> int | None:
    """The sum of all depths; None if that of one queue is not known."""
    counts = [depth.active for depth in depths if depth.active is not None]
    return sum(counts) if len(counts) == len(depths) else None
