"""Settling rows by their lock tokens, on executors: what was received locked and is stored now.

Settle what you have read back from where it is stored, not the DataFrame that received it: to run that one again would
receive other messages.
"""

import asyncio
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway.client import ClientError, MessageLockLost, SessionLockLost
from spillway.spark.platform.access import Access, OptionError
from spillway.spark.platform.connection_pool import ConnectionPool, connection_pool
from spillway.spark.platform.patience import Patience, patiently
from spillway.spark.source.options import access_of
from spillway.spark.source.tokens import SETTLEMENTS, in_pieces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESULT = "settled long, lost long, doubtful long"
ABANDON = "abandon"
GROUPS_AT_A_TIME: Final = 64  # what waits for the service's disk goes there together
Key = tuple[str, str | None]


@dataclass(frozen=True)
class Settled:
    """`lost` were the locks that had run out: these messages are received once more."""

    settled: int
    lost: int


class LocksLost(RuntimeError):
    """Not one of the messages could be settled: all their locks had run out, or they were settled before."""


class LocksLostWarning(UserWarning):
    """Some of the messages could not be settled."""


def settle(
    rows: "DataFrame",
    options: Mapping[str, str],
    settlement: str = "complete",
    *,
    reason: str | None = None,
    description: str | None = None,
) -> Settled:
    """Complete (or `abandon`, `defer`, `dead_letter`) the messages of these rows; `options` are the reader's.

    Needs the columns `entity` and `lock_token`, and `session_id` where the option `sessions` was given. Rows without
    a lock token are passed over. Tokens go to the executors, and only counts come back.

    Warns (`LocksLostWarning`) of locks that were lost, and raises `LocksLost` when all of them were, unless an outage
    or a failed task made it ask twice.
    """
    if settlement not in SETTLEMENTS:
        raise OptionError(f"settlement is {', '.join(SETTLEMENTS)}, not '{settlement}'")
    access = access_of(options)
    has_sessions = any(name.lower() == "sessions" and value for name, value in options.items())
    columns = ["entity", "lock_token", *(["session_id"] if has_sessions else [])]
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise OptionError(f"the rows have no column {', '.join(missing)}: settle what mode=peeklock has received")
    tokens = rows.select(*columns).where("lock_token IS NOT NULL")
    done = tokens.mapInArrow(_settler(access, has_sessions, settlement, reason, description), RESULT)
    names = ("settled", "lost", "doubtful")
    counts = done.selectExpr(*[f"coalesce(sum({name}), 0) AS {name}" for name in names]).collect()[0]
    found = Settled(int(counts["settled"]), int(counts["lost"]))
    check_lost(found, int(counts["doubtful"]))
    return found


def check_lost(done: Settled, doubtful: int = 0) -> None:
    """A batch that outlives its locks is delivered again, and in the end dead-lettered: that is not to go unnoticed.

    Locks that were lost when it was asked a second time, after an outage or a failed task, are `doubtful`: the first
    time may have settled them. They are no reason to end a query.
    """
    if not done.lost:
        return
    why = (
        "they had run out (is renewSeconds longer than a batch takes?), or were settled before. "
        "Messages that were not settled come again"
    )
    if not done.settled and not doubtful:
        raise LocksLost(f"all {done.lost:,} locks were lost: {why}")
    text = f"{done.lost:,} of {done.settled + done.lost:,} locks were lost: {why}"
    warnings.warn(text, LocksLostWarning, stacklevel=3)


def _settler(
    access: Access, has_sessions: bool, settlement: str, reason: str | None, description: str | None
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def settle_partition(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get()
        is_repeated = task is not None and task.attemptNumber() > 0
        settled = lost = doubtful = 0
        for batch in batches:
            entities = batch.column("entity").to_pylist()
            tokens = batch.column("lock_token").to_pylist()
            sessions = batch.column("session_id").to_pylist() if has_sessions else [None] * len(tokens)
            groups: dict[Key, list[uuid.UUID]] = {}
            for entity, session_id, token in zip(entities, sessions, tokens, strict=True):
                groups.setdefault((entity, session_id), []).append(uuid.UUID(token))
            for key, gone in settle_groups(access, groups, settlement, reason, description).items():
                lost += gone.lost
                doubtful += gone.lost if gone.had_outage or is_repeated else 0
                settled += len(groups[key]) - gone.lost
        assert doubtful <= lost, "only a lock that was lost is doubtful"
        counts = {"settled": settled, "lost": lost, "doubtful": doubtful}
        yield pa.RecordBatch.from_pydict({name: pa.array([count], pa.int64()) for name, count in counts.items()})

    return settle_partition


def settle_on_executor(
    access: Access,
    entity: str,
    tokens: list[uuid.UUID],
    settlement: str = "complete",
    session_id: str | None = None,
    reason: str | None = None,
    description: str | None = None,
) -> int:
    """Settle from this process, over its connection; the answer is how many locks were lost."""
    key = (entity, session_id)
    return settle_groups(access, {key: tokens}, settlement, reason, description)[key].lost


class LostLocks(NamedTuple):
    """`had_outage`: something was asked more than once, so that lost locks may be those that it settled before."""

    lost: int
    had_outage: bool


def settle_groups(
    access: Access,
    groups: Mapping[Key, Sequence[uuid.UUID]],
    settlement: str = "complete",
    reason: str | None = None,
    description: str | None = None,
) -> dict[Key, LostLocks]:
    """The same for tokens by entity and session, several at a time: a request is about one session."""
    pool = connection_pool()
    found: dict[Key, LostLocks] = {}
    waiting = iter(groups.items())

    async def work() -> None:
        for (entity, session_id), tokens in waiting:
            call = partial(_settle, pool, access, entity, settlement, session_id, reason, description)
            found[entity, session_id] = await _settle_locks(call, partial(Patience, access, entity), tokens)

    async def every() -> None:
        tasks = [asyncio.create_task(work()) for _ in range(min(GROUPS_AT_A_TIME, len(groups)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    pool.run(every())
    assert found.keys() == groups.keys(), "every group has its answer"
    return found


async def _settle(
    pool: ConnectionPool,
    access: Access,
    entity: str,
    settlement: str,
    session_id: str | None,
    reason: str | None,
    description: str | None,
    tokens: Sequence[uuid.UUID],
) -> None:
    management = pool.management(await pool.connection(access), entity)
    status = SETTLEMENTS[settlement]
    await management.settle(tokens, status, reason=reason, description=description, session_id=session_id)


async def _settle_locks(
    call: Callable[[Sequence[uuid.UUID]], Awaitable[None]],
    patience: Callable[[], Patience],
    tokens: Sequence[uuid.UUID],
) -> LostLocks:
    answered = asked = 0

    async def ask(some: Sequence[uuid.UUID]) -> ClientError | None:
        """What the service says of their locks; any other error is raised."""
        nonlocal answered, asked
        asked += 1
        refusal: ClientError | None = None
        try:
            await call(some)
        except (MessageLockLost, SessionLockLost) as error:
            refusal = error
        answered += 1
        return refusal

    async def settle_some(some: Sequence[uuid.UUID]) -> None:
        # Request by request: what an outage meets is asked for again, and nothing that was answered.
        refusal = await patiently(patience(), lambda: ask(some))
        if refusal is not None:
            raise refusal

    lost = len(await in_pieces(settle_some, tokens))
    assert answered <= asked, "no answer without a question"
    return LostLocks(lost, asked > answered)
