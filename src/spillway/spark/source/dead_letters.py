"""Dead letters that come late: right whether a service numbers them anew or leaves them the numbers they had.

What is said of Azure differs. Where a dead letter gets a new number, everything that is new lies behind the last one
that was read. Where it keeps its number, one that dies late has a number below those of others that died before it.

A number below the last one read can come only from a message that is still in the entity itself. So numbers below the
oldest message there are over with (the floor); from there on a position remembers which numbers it has seen, and looks
for others. A number that was seen among the dead letters and is in the entity all the same proves that this service
numbers anew: nothing has to be remembered or looked for from then on.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from spillway.client import Management, NotAllowed, Unauthorized
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.source.number_runs import Run, Runs
from spillway.spark.source.positions import DEAD_LETTERS, SCHEDULED, Position
from spillway.spark.source.sequence_bounds import PEEKED_AT_ONCE, checked_number

TRANSFER: Final = "/$transfer"
# In a checkpoint. Each is a few characters in every batch's offset, and 500 of them are a request at every look.
RUNS_MAX: Final = 20_000
LOOKED_AT_MAX: Final = 100_000  # at a time; what lies behind them is found by the next look
SCHEDULED_PASSED_MAX: Final = 5_000  # messages that wait for their time, at the head of an entity


def is_dead_letters(entity: str) -> bool:
    return entity.lower().endswith("/" + DEAD_LETTERS)


def entity_of(entity: str) -> str:
    """Where the messages of a dead-letter queue were before."""
    name = entity[: -len("/" + DEAD_LETTERS)]
    return name[: -len(TRANSFER)] if name.lower().endswith(TRANSFER) else name


class Late(NamedTuple):
    """Dead letters below a position that were not read, in order, and how far nothing can come any more."""

    numbers: Sequence[int] = ()
    closed: int = 0
    is_renumbered: bool = False


class DeadLetterWatch:
    """What one stream knows of its dead-letter queues beyond their positions: it spares looks that find nothing."""

    def __init__(self) -> None:
        self._closed: dict[str, int] = {}
        self._renumbered: set[str] = set()

    async def late(self, dead: Management, entity: Management, at: Position) -> Late:
        """What came below this position since it was made."""
        if at.is_renumbered or dead.path in self._renumbered:
            return Late((), at.next, True)
        floor = max(at.floor, self._closed.get(dead.path, 0))
        if floor >= at.next:
            return Late((), at.next)
        oldest = await _oldest(entity)
        if oldest is not None and oldest in at.seen:
            self._renumbered.add(dead.path)
            return Late((), at.next, True)
        numbers, looked_below = await _unseen(dead, floor, at.next, at.seen)
        closed = min(looked_below, at.next if oldest is None else max(floor, oldest))
        if not numbers:
            self._closed[dead.path] = closed
        return Late(numbers, closed)


async def behind(
    dead: Management, entity: Management, at: Position, late: Late, first: int, new: Position, count_max: int | None
) -> Position:
    """The position behind a batch: of what came late, and, if there is room, of what lies between `at` and `new`,
    which begins with the message `first`.

    `new` was found before the oldest message is looked at here: every number below it was given away by then.
    """
    taken = late.numbers[:count_max]
    left = late.numbers[len(taken) :]
    if count_max is not None and new.next > (room := first + count_max - len(taken)):
        new = replace(at, next=max(at.next, room))
    new = replace(new, late=Runs.of(taken), is_renumbered=late.is_renumbered)
    if late.is_renumbered:
        return new
    if new.next > at.next:
        oldest = await _oldest(entity)
        closed = new.next if oldest is None else min(new.next, oldest)
        closed = closed if late.closed >= at.next else min(closed, late.closed)
    else:
        closed = late.closed
    floor = max(at.floor, min([closed, *left[:1]]))
    found, _ = await _unseen(dead, max(floor, at.next), new.next, Runs())
    seen = at.seen | Runs.of(taken) | Runs.of(found)
    new = replace(new, closed_below=floor, seen=seen.within(floor, new.next))
    _check_bounds(dead, new)
    return new


def ranges_of(late: Runs) -> list[tuple[int, int, Runs]]:
    """What to read for them: runs that lie close together are one read, of which the others are left out."""
    spans: list[Run] = []
    for start, end in late.runs:
        if spans and start - spans[-1][1] < PEEKED_AT_ONCE:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return [(start, end, late.within(start, end)) for start, end in spans]


def wanted_of(at: Position, begin: int) -> Runs | None:
    """Which numbers are of the batch that ends here, from `begin` on: those that die meanwhile are of a later one."""
    if at.is_renumbered or at.floor >= at.next:
        return None
    return Runs([(begin, at.floor)]) | at.seen.within(begin, at.next)


async def _oldest(entity: Management) -> int | None:
    """The lowest number of a message that may die yet. One that waits for its time gets another number first."""
    at = passed = 0
    try:
        while passed < SCHEDULED_PASSED_MAX:
            found = await entity.peek(at, 1 if passed == 0 else PEEKED_AT_ONCE, omit_body=True)
            if not found:
                return None
            for message in found:
                at = checked_number(entity, message.sequence_number)
                if message.state != SCHEDULED:
                    return at
            at, passed = at + 1, passed + len(found)
    except (Unauthorized, NotAllowed):
        return 0  # nothing is known of it: anything may come
    return at


async def _unseen(dead: Management, start: int, end: int, seen: Runs) -> tuple[list[int], int]:
    """Numbers of dead letters from `start` up to and without `end` that were not seen, and how far was looked.

    Long runs of seen ones are not asked for.
    """
    found: list[int] = []
    at = seen.end_of(start)
    while at < end and len(found) < LOOKED_AT_MAX:
        page = await dead.peek(at, min(PEEKED_AT_ONCE, end - at), omit_body=True)
        numbers = [checked_number(dead, message.sequence_number) for message in page]
        found += [number for number in numbers if number < end and number not in seen]
        at = seen.end_of(numbers[-1] + 1) if numbers else end
    return found, min(at, end)


def _check_bounds(dead: Management, at: Position) -> None:
    if len(at.seen.runs) > RUNS_MAX:
        raise NamespaceError(
            f"'{dead.path}' cannot be followed by a stream: more than {RUNS_MAX:,} of its messages have higher numbers "
            f"than {at.floor:,}, the oldest message of '{entity_of(dead.path)}', which may be dead-lettered later. "
            "Receive that message, or read the dead letters in batches or with mode=peeklock"
        )
