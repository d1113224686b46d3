"""mode=peeklock and mode=receiveanddelete: messages are received by executors, who compete with every other receiver.

A batch that is planned again receives other messages, so nothing here settles by itself: in peek-lock mode each row
carries its lock token, and whoever has stored the row settles it (`spillway.spark.source.settle`, docs/adr/0014).
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spillway.client import ClientError, LinkClosed, Management, ReceivedMessage, Receiver
from spillway.spark.platform.connection_pool import ConnectionPool, NamespaceError, connection_pool, plain
from spillway.spark.platform.operations import COUNT, Clock, CountedPool, Operations, PollPace
from spillway.spark.platform.patience import Patience, is_transient, patiently, poll
from spillway.spark.platform.processes import process_id
from spillway.spark.platform.session import say_on_stderr
from spillway.spark.source.browse import namespace_of, some_of
from spillway.spark.source.declaration import PEEK_LOCK
from spillway.spark.source.entity_patterns import EntityWatch
from spillway.spark.source.lag import Lag, refresh_lag
from spillway.spark.source.lock_handover import held_by, release_before, renew_locks, session_reception
from spillway.spark.source.lock_renewer import LockBatch
from spillway.spark.source.options import STREAM_MESSAGES, ReadOptions
from spillway.spark.source.pacing import Pacing
from spillway.spark.source.parallel import MESSAGES_A_TASK, TASKS_MAX, receivers_for
from spillway.spark.source.rows import RowMaker
from spillway.spark.source.sequence_bounds import (
    SESSIONS_MAX,
    NotInOneRow,
    first_active,
    first_from,
    last_of,
    sessions_of,
)
from spillway.spark.source.session_pages import SESSION_TASKS, session_ranges, tasks_by_sessions
from spillway.spark.source.session_reception import SESSIONS_HELD_MAX, SessionsWanted, say_passed_over
from spillway.spark.source.session_walk import SessionWalk

# In a batch read. Spark does not say how many rows a query wants: limit(5) could lock as many as this.
BATCH_READ_MESSAGES: Final = 1_000
FIRST_RECEIVE: Final = 100  # until the size of messages is known
# In a batch read that locks: then twice as many each time, while somebody takes them.
FIRST_OF_READ: Final = 10
RECEIVE_MAX: Final = 2_000
RECEIVE_BYTES: Final = 8 * 1024 * 1024
# After a first message: an entity that has more hands it out at once.
MORE_WAIT_S: Final = 0.2
# Messages that stay where they are, in somebody's lock, are asked for again after this time.
AGAIN_S: Final = 5.0
LOOKED_AT: Final = 20  # steps that double, from the first message on


class LockedPartition(InputPartition):
    """Up to `count_max` messages of an entity, or of some of its sessions; 0 is as many as there are."""

    def __init__(
        self,
        entity: str,
        count_max: int,
        sessions: tuple[str, ...] | None,
        batch: LockBatch | None = None,
        is_of_stream: bool = False,
    ) -> None:
        self.entity = entity
        self.count_max = count_max
        self.sessions = sessions
        self.batch = batch
        self.bytes_max: int | None = None
        self.is_of_stream = is_of_stream  # another batch follows, and takes what this one leaves
        self.sessions_max = SESSIONS_HELD_MAX  # of which messages may be locked
        self.sharers = 1  # how many partitions share the budget of operations

    def sessions_wanted(self, names: Sequence[str]) -> SessionsWanted:
        wanted = SessionsWanted(self.entity, names, self.count_max, self.sessions_max, self.is_of_stream)
        wanted.bytes_max = self.bytes_max
        return wanted

    def begin_elsewhere(self, number: int) -> None:
        """Each batch begins with other sessions: those that always have messages leave room for the rest."""
        if self.sessions:
            at = number * min(self.sessions_max, len(self.sessions) // 4 + 1) % len(self.sessions)
            self.sessions = self.sessions[at:] + self.sessions[:at]


class LockedRead:
    """What both readers do on an executor."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def rows(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, LockedPartition)
        maker = RowMaker(self.schema, self.options, namespace_of(self.options))
        reception = Reception(connection_pool(), self.options, partition)
        for messages in reception.chunks():
            yield maker.batch(partition.entity, messages)


class Reception:
    """One partition's receiving: the next messages are fetched while rows are made of the last."""

    def __init__(self, pool: ConnectionPool, options: ReadOptions, partition: LockedPartition) -> None:
        self._pool = pool
        self._options = options
        self._partition = partition
        self._left = partition.count_max or None
        self._size = 0  # of a message, about
        self._bytes_left = partition.bytes_max
        self._taken = 0
        self._grows = FIRST_OF_READ
        self._receiver: Receiver | None = None
        self._waits_s = options.max_wait_s
        self._place = (options.access, partition.entity)
        self._batch = held_by(partition.batch)
        self._patience = Patience(options.access, partition.entity)
        self._has_some = False
        rate = options.operations_per_s
        self._operations = Operations(None if rate is None else rate / partition.sharers)
        self._sessions = None
        if partition.sessions is not None:
            wanted = partition.sessions_wanted(partition.sessions)
            self._sessions = session_reception(pool, options, wanted, self._batch, self._operations)

    def chunks(self) -> Generator[list[ReceivedMessage], None, None]:
        coming = self._pool.start(self._first())
        try:
            while messages := coming.result():
                coming = self._pool.start(self._next())
                yield messages
        except GeneratorExit:
            # A task that wants no more rows gives back what nobody has seen.
            self._patience.abandon()
            if self._sessions is not None:
                self._sessions.abandon()
            with contextlib.suppress(NamespaceError):
                self._pool.run(self._requeue(coming.result()))
            raise
        finally:
            self._pool.run(self._end())

    async def _first(self) -> list[ReceivedMessage]:
        if self._options.mode == PEEK_LOCK and self._options.renew_s > 0:
            await release_before(self._pool, self._batch)
        return await self._next()

    async def _next(self) -> list[ReceivedMessage]:
        """The next messages; none when there are no more, or enough."""
        if self._sessions is not None:
            return await self._sessions.next()
        return await patiently(self._patience, self._try_next)

    async def _try_next(self) -> list[ReceivedMessage]:
        try:
            if self._left == 0 or (self._bytes_left is not None and self._bytes_left <= 0):
                return []
            receiver = await self._attached()
            await self._operations.begin()
            messages = await receiver.receive(self._count(), self._waits_s)
            self._operations.add(max(0, len(messages) - 1))  # a message each, or one for none
            messages = messages or await self._release()
            return await self._took(messages) if messages else []
        except ClientError as error:
            self._abandon_receiver()
            # The locks of what it has run out while it waits, so that a batch of a stream ends with what it has.
            if self._has_some and self._partition.is_of_stream and is_transient(error):
                return []
            raise

    def _abandon_receiver(self) -> None:
        """After an error: another one is attached."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.end(LinkClosed("given up after an error"))

    def _count(self) -> int:
        count = FIRST_RECEIVE if self._size == 0 else max(1, min(RECEIVE_MAX, RECEIVE_BYTES // self._size))
        if self._bytes_left is not None:  # not many more than those whose sizes are known
            count = max(1, min(count, self._bytes_left // max(1, self._size), 2 * self._taken))
        if self._options.mode == PEEK_LOCK and not self._partition.is_of_stream:
            count = min(count, self._grows)
            self._grows *= 2
        return self._operations.most_at_a_time(count if self._left is None else min(count, self._left))

    async def _took(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        size = sum(len(message.raw) for message in messages)
        self._size = max(1, size // len(messages))
        self._taken += len(messages)
        if self._bytes_left is not None:
            self._bytes_left -= size
        self._waits_s = min(MORE_WAIT_S, self._options.max_wait_s)
        self._has_some = True
        if self._left is not None:
            self._left -= len(messages)
        if self._options.mode == PEEK_LOCK:
            await renew_locks(self._pool, *self._place, messages, self._options.renew_s, self._batch)
        return messages

    async def _attached(self) -> Receiver:
        if self._receiver is None:
            connection = await self._pool.connection(self._options.access)
            self._receiver = await connection.receiver(self._partition.entity, mode=self._options.mode)
        return self._receiver

    async def _release(self) -> list[ReceivedMessage]:
        """Close the receiver; the answer is what came while it was closed, and is deleted."""
        receiver, self._receiver = self._receiver, None
        return [] if receiver is None else await receiver.close()

    async def _requeue(self, unseen: list[ReceivedMessage]) -> None:
        if self._sessions is not None:
            await self._sessions.requeue(unseen)
            return
        receiver = self._receiver
        if receiver is None or receiver.error is not None:
            return
        for message in unseen:
            if not message.is_settled:
                receiver.release(message)

    async def _end(self) -> None:
        if self._sessions is not None:
            await self._sessions.end()
            say_passed_over(self._partition.entity, self._sessions.said())
            return
        try:
            await self._release()
        except ClientError:
            pass  # it is over anyway


class LockedReader(DataSourceReader):
    """A batch read: each run of it receives anew."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._read = LockedRead(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._read.options
        count = options.max_messages or (BATCH_READ_MESSAGES if options.mode == PEEK_LOCK else STREAM_MESSAGES)
        pool, patience = connection_pool(), Patience(options.access, some_of(options.entities))
        counted = CountedPool(pool, Operations(options.operations_per_s))
        found = pool.run(patiently(patience, lambda: plan(counted, options, options.entities, count)))
        return found or [LockedPartition(options.entities[0], 1, ())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read.rows(partition)


class LockedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Its offsets only count: which messages a batch gets, the service decides when they are received."""

    def __init__(self, options: ReadOptions, schema: StructType, clock: Clock = time.monotonic) -> None:
        self._read = LockedRead(options, schema)
        self._is_first = True
        self._targets: dict[str, int | None] | None = None  # of a run that takes what is there now
        self._firsts: dict[str, int] = {}
        self._looks: dict[str, tuple[int, ...]] = {}
        self._planned_s = 0.0
        self._pacing = Pacing(options.min_messages, options.max_delay_s, clock)
        self._began_ns = time.time_ns()  # a query that is started again began later
        self._patience = Patience(options.access, some_of(options.entities), clock=clock)
        self._pace = PollPace(clock)
        self._operations = Operations(options.operations_per_s, clock)
        self._batch = 0
        self._lag = Lag(clock)
        self._entities = EntityWatch(options, clock)
        self._walk = SessionWalk()
        self._has_moved = False  # since the walk began

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0, "messages": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._read.options.max_messages or STREAM_MESSAGES)

    def prepareForTriggerAvailableNow(self) -> None:
        work = patiently(self._patience, lambda: _targets(self._pool(), self._read.options))
        self._targets = connection_pool().run(work)

    def _pool(self) -> CountedPool:
        return CountedPool(connection_pool(), self._operations)

    def reportLatestOffset(self) -> dict[str, Any]:
        """How many batches were planned, what waits, and how many operations that took so far."""
        options, firsts = self._read.options, self._firsts
        if not firsts:
            self._lag.clear()
        elif self._lag.is_due:
            poll(connection_pool(), self._patience, lambda: refresh_lag(self._pool(), options, self._lag, firsts))
        report = self._lag.report(options.entities, firsts)
        return {"batch": self._batch, **report, COUNT: self._operations.count}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        _check_offset(start)
        self._refresh()
        self._batch = start["batch"]
        if not self._is_new():
            return start
        self._batch += 1
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        if self._is_first:
            # The first batch of a process is slow, and its locks run meanwhile: it is small.
            count = min(count or STREAM_MESSAGES, self._read.options.first_batch_messages)
        self._is_first = False
        return {"batch": start["batch"] + 1, "messages": count}

    def _refresh(self, is_wanted: bool = False) -> None:
        self._read.options = self._entities.refreshed(self._read.options, is_wanted)

    async def _ask(self) -> bool:
        def ask() -> Coroutine[Any, Any, bool]:
            return self._is_worth_asking(self._pool())

        return await self._entities.again_without(ask, lambda: self._refresh(is_wanted=True))

    def _is_new(self) -> bool:
        pool = connection_pool()
        if self._targets is not None:  # nothing new would be the end of this run
            return pool.run(patiently(self._patience, self._ask))
        if not self._pace.is_due:
            return False
        found = poll(pool, self._patience, self._ask)
        if found is None:  # away: nothing new yet, and Spark asks again
            return False
        self._pace.on_looked(not found)
        return found

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        _check_offset(end)
        if start["batch"] >= end["batch"]:
            return []
        options = self._read.options
        entities = [entity for entity in options.entities if entity in self._firsts] or options.entities
        # The same for a batch that is planned twice: what it received first may be settled yet.
        order = (self._began_ns, end["batch"])
        batch = LockBatch(options.holder, order, process_id()) if options.holder else None
        self._walk.begin(end["batch"])
        work = patiently(
            self._patience, lambda: plan(self._pool(), options, entities, end["messages"], batch, self._walk)
        )
        found = connection_pool().run(work)
        for partition in found:
            partition.is_of_stream = True
            partition.begin_elsewhere(end["batch"])
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read.rows(partition)

    async def _is_worth_asking(self, pool: CountedPool) -> bool:
        """Whether there are messages that may be received, as far as can be seen without receiving them.

        A lock cannot be seen from outside. Messages that stay where they were after a batch are in somebody's lock:
        they end a run that takes what is there, and are asked for again only after a while by one that goes on.
        """
        managements = await _managements(pool, self._read.options)
        firsts: dict[str, int] = {}
        for entity, management in managements.items():
            try:
                first = await first_active(management)
            except ClientError as error:
                raise plain(error, entity, "Listen") from None
            target = None if self._targets is None else self._targets.get(entity, -1)
            if first is not None and (target is None or first <= target):
                firsts[entity] = first
        is_due = self._targets is not None or await self._pacing.is_due(managements, firsts)
        if firsts and not is_due:
            return False
        # A batch of a walk may meet none but sessions of others: it is the whole walk that shows whether anything goes.
        is_walking = self._walk.is_under_way(firsts)
        if not firsts or firsts != self._firsts:
            self._looks = {}
            is_moving = bool(firsts)
            self._has_moved = is_walking
        else:
            looks = {entity: await _peek_places(managements[entity], first) for entity, first in firsts.items()}
            is_late = self._targets is None and time.monotonic() - self._planned_s > AGAIN_S
            has_moved = looks != self._looks or is_late or self._has_moved
            is_moving = has_moved or is_walking
            self._has_moved = has_moved and is_walking
            self._looks = looks
            if not is_moving and self._targets is not None:
                say_left(firsts)
        self._firsts = firsts
        if is_moving:
            self._planned_s = time.monotonic()
            self._pacing.began()
        return is_moving


def say_left(firsts: Mapping[str, int]) -> None:
    """A run that takes what is there ends well although it has not: a reader of its log has to know."""
    names = ", ".join(list(firsts)[:5]) + (" and others" if len(firsts) > 5 else "")
    say_on_stderr(
        f"this run ends and leaves messages of {names}: they are in somebody's lock, or were received by this run and "
        "not settled. They can be received when the lock has ended"
    )


async def _peek_places(management: Management, first: int) -> tuple[int, ...]:
    """Which messages stand at some places of the line: it changes when any number of them goes."""
    places = [first + 2**power for power in range(LOOKED_AT)]
    try:
        found = await asyncio.gather(*[first_from(management, place) for place in places])
    except NotInOneRow:
        return ()
    return tuple(-1 if number is None else number for number in found)


async def _managements(pool: CountedPool, options: ReadOptions) -> dict[str, Management]:
    connection = await pool.connection(options.access)
    return {entity: pool.management(connection, entity) for entity in options.entities}


async def _targets(pool: CountedPool, options: ReadOptions) -> dict[str, int | None]:
    """The last message of each entity now; None where the numbers do not tell."""
    targets: dict[str, int | None] = {}
    for entity, management in (await _managements(pool, options)).items():
        try:
            first = await first_from(management, 0)
            targets[entity] = -1 if first is None else await last_of(management, first)
        except NotInOneRow:
            targets[entity] = None
        except ClientError as error:
            raise plain(error, entity, "Listen") from None
    return targets


async def plan(
    pool: CountedPool,
    options: ReadOptions,
    entities: Sequence[str],
    count: int,
    batch: LockBatch | None = None,
    walk: SessionWalk | None = None,
) -> "list[LockedPartition]":
    """Who receives how many: the messages of a batch are shared out evenly."""
    chosen: list[tuple[str, tuple[str, ...] | None]] = []
    asks = options.has_all_sessions or options.chooses_partitions
    managements = await _managements(pool, options) if asks else {}
    for entity in entities:
        if not options.has_sessions:
            chosen += [(entity, None)] * await _receivers(managements, options, entity, count, len(entities))
            continue
        try:
            names = await _sessions(managements, options, entity, count, walk)
        except ClientError as error:
            raise plain(error, entity, "Listen") from None
        tasks = await _session_tasks(managements, options, entity, count, len(names), len(entities))
        chosen += [(entity, some) for some in session_ranges(names, tasks)]
    if count and len(chosen) > count:
        chosen = chosen[:count]
    shares = [0] * len(chosen)
    if count:
        shares = [count * (index + 1) // len(chosen) - count * index // len(chosen) for index in range(len(chosen))]
    found = [
        LockedPartition(entity, share, sessions, batch)
        for (entity, sessions), share in zip(chosen, shares, strict=True)
    ]
    for partition in found:
        partition.sharers = len(found)
        partition.bytes_max = None if options.max_bytes is None else max(1, options.max_bytes // len(found))
        partition.sessions_max = max(1, SESSIONS_HELD_MAX // [part.entity for part in found].count(partition.entity))
    return found


async def _sessions(
    managements: Mapping[str, Management], options: ReadOptions, entity: str, count: int, walk: SessionWalk | None
) -> Sequence[str]:
    """Those that a read, or a batch of a stream, looks at."""
    if not options.has_all_sessions:
        return options.sessions
    if walk is None:
        return await sessions_of(managements[entity])
    most = min(count or SESSIONS_MAX, SESSIONS_HELD_MAX if options.mode == PEEK_LOCK else SESSIONS_MAX)
    return await walk.next(managements[entity], most)


async def _session_tasks(
    managements: Mapping[str, Management],
    options: ReadOptions,
    entity: str,
    count: int,
    sessions: int,
    entities: int,
) -> int:
    """Tasks that share the sessions of an entity: many where there are many sessions, or many messages in a few."""
    if not options.chooses_partitions:
        return options.partitions
    tasks = tasks_by_sessions(sessions)
    if tasks == SESSION_TASKS or sessions <= tasks:
        return tasks
    return max(tasks, min(SESSION_TASKS, await _receivers(managements, options, entity, count, entities)))


async def _receivers(
    managements: Mapping[str, Management], options: ReadOptions, entity: str, count: int, entities: int
) -> int:
    """Side by side at one entity, by its messages."""
    if not options.chooses_partitions:
        return options.partitions
    try:
        most = TASKS_MAX * MESSAGES_A_TASK  # where there is no limit
        return await receivers_for(managements[entity], -(-count // entities) or most, entities)
    except ClientError as error:
        raise plain(error, entity, "Listen") from None


def _check_offset(offset: dict[str, int]) -> None:
    if set(offset) != {"batch", "messages"}:
        raise ValueError(
            "the checkpoint is of another query, not of one that receives. "
            "Give every query a checkpointLocation of its own"
        )
