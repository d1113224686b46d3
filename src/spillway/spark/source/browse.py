"""mode=browse: messages by sequence number, without changing anything; a batch read again has the same messages.

The driver finds the ranges, executors read them. Offsets are positions in each entity (`positions.py`).
"""

import copy
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spillway.client import ClientError, ReceivedMessage, parse_connection_string
from spillway.spark.platform.connection_pool import ConnectionPool, connection_pool, plain
from spillway.spark.platform.operations import COUNT, Clock, CountedPool, Operations, PollPace
from spillway.spark.platform.patience import Patience, patiently, poll
from spillway.spark.source.batch_ends import Offset, batch_ends, beginnings, check_offset, positions
from spillway.spark.source.dead_letters import DeadLetterWatch, ranges_of, wanted_of
from spillway.spark.source.enqueued_times import between, enqueued_between
from spillway.spark.source.entity_patterns import EntityWatch
from spillway.spark.source.lag import Lag, refresh_lag
from spillway.spark.source.number_runs import Runs
from spillway.spark.source.options import STREAM_MESSAGES, ReadOptions
from spillway.spark.source.parallel import tasks_for
from spillway.spark.source.positions import Position
from spillway.spark.source.pushdown import Narrowed, least, most, push, within
from spillway.spark.source.rows import RowMaker
from spillway.spark.source.sequence_bounds import first_from, last_until
from spillway.spark.source.session_pages import PEEKED_AT_A_TIME, SessionPages, session_ranges, session_tasks


class RangePartition(InputPartition):
    """Messages of an entity, or of some of its sessions, from `start` up to and without `end`."""

    def __init__(
        self, entity: str, start: int, end: int, sessions: tuple[str, ...] | None = None, count_max: int = 0
    ) -> None:
        self.entity = entity
        self.start = start
        self.end = end
        self.sessions = sessions
        self.count_max = count_max  # 0: all of them
        self.wanted: Runs | None = None  # only these numbers
        self.sharers = 1  # how many partitions share the budget of operations

    def pieces(self) -> Iterator["RangePartition"]:
        """Wanted numbers that lie close together are read at once, and what lies far between is not read."""
        if self.wanted is None:
            yield self
            return
        for start, end, wanted in ranges_of(self.wanted.within(self.start, self.end)):
            piece = copy.copy(self)
            piece.start, piece.end, piece.wanted = start, end, wanted
            yield piece


class BrowseRead:
    """What both readers do on an executor."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def rows(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition), "partitions come from this reader"
        if partition.start >= partition.end:
            return
        pool = connection_pool()
        maker = RowMaker(self.schema, self.options, namespace_of(self.options))
        omits_body = not ({"body", "body_error", "body_quarantine", "body_type", "raw"} & set(self.schema.fieldNames()))
        for piece in partition.pieces():
            for messages in _pages(pool, self.options, piece, omits_body):
                if found := self._chosen(piece, messages):
                    yield maker.batch(partition.entity, found)

    def _chosen(self, piece: RangePartition, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if piece.wanted is not None:
            messages = [message for message in messages if (message.sequence_number or 0) in piece.wanted]
        return enqueued_between(piece.entity, messages, self.options.start_time_ms, self.options.end_time_ms)


def _pages(
    pool: ConnectionPool, options: ReadOptions, partition: RangePartition, omits_body: bool
) -> Iterator[list[ReceivedMessage]]:
    rate = options.operations_per_s
    counted = CountedPool(pool, Operations(None if rate is None else rate / partition.sharers))
    if partition.sessions is None:
        return _Pages(pool, counted, options, partition, omits_body).pages()
    numbers = (partition.start, partition.end)
    named = (partition.entity, partition.sessions)
    return SessionPages(pool, counted, options, *named, numbers, partition.count_max, omits_body).pages()


class _Pages:
    """Asks for the next page while the last one is made into rows."""

    def __init__(
        self,
        pool: ConnectionPool,
        counted: CountedPool,
        options: ReadOptions,
        partition: RangePartition,
        omits_body: bool,
    ) -> None:
        self.pool = pool
        self._counted = counted
        self.options = options
        self.partition = partition
        self.omits_body = omits_body
        self._patience = Patience(options.access, partition.entity)

    def pages(self) -> Iterator[list[ReceivedMessage]]:
        partition = self.partition
        left = partition.count_max or None
        coming = self.pool.start(self._peek(partition.start))
        try:
            while messages := _before(partition.end, coming.result()):
                last = messages[-1].sequence_number or 0
                if left is not None:
                    messages = messages[:left]
                    left -= len(messages)
                    assert left >= 0, "no more is read than was asked for"
                is_over = last + 1 >= partition.end or left == 0
                if not is_over:
                    coming = self.pool.start(self._peek(last + 1))
                yield messages
                if is_over:
                    return
        finally:
            coming.cancel()  # a task that wants no more does not wait for a namespace that is away

    async def _peek(self, start: int) -> list[ReceivedMessage]:
        """The same messages, however often it takes to ask."""

        async def ask() -> list[ReceivedMessage]:
            connection = await self._counted.connection(self.options.access)
            management = self._counted.management(connection, self.partition.entity)
            count = min(PEEKED_AT_A_TIME, self.partition.end - start)
            return await management.peek(start, count, omit_body=self.omits_body)

        return await patiently(self._patience, ask)


def _before(end: int, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    """They come in order, so the last one tells whether any has to go."""
    if not messages or (messages[-1].sequence_number or 0) < end:
        return messages
    return [message for message in messages if (message.sequence_number or 0) < end]


class BrowseReader(DataSourceReader):
    """A batch read: what was there when it was planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._read = BrowseRead(options, schema)
        self._narrowed = Narrowed(options.entities)

    def partitions(self) -> Sequence[InputPartition]:
        pool, options = connection_pool(), self._read.options
        patience = Patience(options.access, some_of(options.entities))
        counted = CountedPool(pool, Operations(options.operations_per_s))
        found = pool.run(patiently(patience, lambda: _ranges(counted, options, self._narrowed)))
        _share_budget(found)
        return found or [RangePartition(self._read.options.entities[0], 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read.rows(partition)


class FilteredBrowseReader(BrowseReader):
    """A batch read with pushdown=true. Spark refuses it where its own setting does not allow it, and says which."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Those that Spark has to look at."""
        self._narrowed, left = push(self._read.options, filters)
        return left


class BrowseStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: what comes after what was read. Its offsets can be read again for as long as the messages stay."""

    def __init__(self, options: ReadOptions, schema: StructType, clock: Clock = time.monotonic) -> None:
        self._read = BrowseRead(options, schema)
        self._target: dict[str, int] | None = None  # of a run that takes what is there now
        # Planned so far: nothing before it is looked at again.
        self._latest: Offset = dict.fromkeys(options.entities, 0)
        self._patience = Patience(options.access, some_of(options.entities), clock=clock)
        self._pace = PollPace(clock)
        self._operations = Operations(options.operations_per_s, clock)
        self._lag = Lag(clock)
        self._watch = DeadLetterWatch()
        self._entities = EntityWatch(options, clock)

    def initialOffset(self) -> Offset:
        options = self._read.options
        return connection_pool().run(patiently(self._patience, lambda: beginnings(self._pool(), options, self._watch)))

    def _pool(self) -> CountedPool:
        return CountedPool(connection_pool(), self._operations)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._read.options.max_messages or STREAM_MESSAGES)

    def prepareForTriggerAvailableNow(self) -> None:
        start: Offset = dict.fromkeys(self._read.options.entities, 0)
        work = patiently(self._patience, lambda: batch_ends(self._pool(), self._read.options, start, None, None))
        self._target = {name: end.next for name, end in positions(connection_pool().run(work)).items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        check_offset(start, self._refresh())
        count_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._target is not None:  # nothing new would be the end of this run
            self._latest = self._wait_for_ends(start, count_max)
            return self._latest
        if not self._pace.is_due:
            return start
        ends = poll(connection_pool(), self._patience, lambda: self._ends(start, count_max))
        if ends is None:  # away: nothing new yet, and Spark asks again
            return start
        self._pace.on_looked(ends == start)
        self._latest = ends
        return ends

    def _refresh(self, is_wanted: bool = False) -> ReadOptions:
        self._read.options = self._entities.refreshed(self._read.options, is_wanted)
        return self._read.options

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the entities end, as far as it is known, and how far behind it is; how many operations that took."""
        at = positions(self._latest)
        begins = {name: at[name].next if name in at else 0 for name in self._read.options.entities}
        if self._lag.is_due:
            poll(
                connection_pool(),
                self._patience,
                lambda: refresh_lag(self._pool(), self._read.options, self._lag, begins),
            )
        lasts = {name: waiting.last or 0 for name, waiting in self._lag.waiting.items()}
        known = {name: max(number, lasts.get(name, -1) + 1) for name, number in begins.items()}
        return {**known, **self._lag.report(begins, begins), COUNT: self._operations.count}

    async def _ends(self, start: Offset, count_max: int | None) -> Offset:
        def ask() -> Coroutine[Any, Any, Offset]:
            return batch_ends(self._pool(), self._read.options, start, count_max, self._watch, self._target)

        return await self._entities.again_without(ask, lambda: self._refresh(is_wanted=True))

    def _wait_for_ends(self, start: Offset, count_max: int | None) -> Offset:
        return connection_pool().run(patiently(self._patience, lambda: self._ends(start, count_max)))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        options = self._read.options
        check_offset(end, options)
        # Of a pattern: what came meanwhile begins at its first message, what has gone cannot be read any more.
        before = {**dict.fromkeys(options.entities, Position(0)), **positions(start)}
        after = {name: at for name, at in positions(end).items() if name in options.entities}
        begins = {name: before[name].next if at.begins_at is None else at.begins_at for name, at in after.items()}
        ends = {name: at.next for name, at in after.items()}
        found = _late(after) + _narrowed(_split_all(options, begins, ends), after)
        _share_budget(found)
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read.rows(partition)


def _late(after: Mapping[str, Position]) -> list[InputPartition]:
    """Dead letters of a batch that came with lower numbers than those before it."""
    found: list[InputPartition] = []
    for entity, at in after.items():
        if at.late.runs:
            found.append(partition := RangePartition(entity, at.late.runs[0][0], at.late.runs[-1][1]))
            partition.wanted = at.late
    return found


def _narrowed(partitions: list[InputPartition], after: Mapping[str, Position]) -> list[InputPartition]:
    """Without dead letters that were not there when the batch was planned, and are of a later one."""
    for partition in partitions:
        assert isinstance(partition, RangePartition), "partitions come from this reader"
        partition.wanted = wanted_of(after[partition.entity], partition.start)
    return partitions


async def _ranges(pool: CountedPool, options: ReadOptions, narrowed: Narrowed) -> list[InputPartition]:
    """Of a batch read: each entity from its first message to its last, in as many parts as asked for."""
    options = within(options, narrowed)
    times = (most(options.start_time_ms, narrowed.from_ms), least(options.end_time_ms, narrowed.to_ms))
    connection = await pool.connection(options.access)
    start: dict[str, int] = {}
    end: dict[str, int] = {}
    for entity in options.entities:
        management = pool.management(connection, entity)
        try:
            first = await first_from(management, options.start_at or 0)
            if first is None:
                continue
            last = await last_until(management, first, options.end_at)
            start[entity], end[entity] = await between(management, first, last, *times)
        except ClientError as error:
            raise plain(error, entity, "Listen") from None
    found = _split_all(options, start, end)
    if options.max_messages is not None:
        _limit(found, options.max_messages)
    return [partition for partition in found if _narrow(partition, narrowed.numbers)]


def _narrow(partition: InputPartition, numbers: Runs) -> bool:
    """To these numbers; whether any is left."""
    assert isinstance(partition, RangePartition), "partitions come from this reader"
    wanted = numbers.within(partition.start, partition.end)
    partition.wanted = None if wanted.runs == ((partition.start, partition.end),) else wanted
    return bool(wanted.runs)


def _share_budget(partitions: Sequence[InputPartition]) -> None:
    for partition in partitions:
        assert isinstance(partition, RangePartition), "partitions come from this reader"
        partition.sharers = len(partitions)


def _limit(partitions: list[InputPartition], count_max: int) -> None:
    share = max(1, count_max // max(1, len(partitions)))
    for partition in partitions:
        assert isinstance(partition, RangePartition), "partitions come from this reader"
        partition.count_max = share
    del partitions[count_max:]
    assert share * len(partitions) <= count_max, "the shares are no more than the whole"


def _split_all(options: ReadOptions, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
    """Ranges of sequence numbers: of all sessions together, or of ranges of those that are named."""
    found: list[InputPartition] = []
    spans = {entity: end[entity] - start.get(entity, 0) for entity in end}
    spans = {entity: span for entity, span in spans.items() if span > 0}
    named: list[tuple[str, ...] | None] = [*session_ranges(options.sessions, session_tasks(options.partitions))]
    for entity, span in spans.items():
        is_chosen = options.chooses_partitions and not options.sessions
        parts = tasks_for(span, len(spans)) if is_chosen else options.partitions
        for sessions in named or [None]:
            found += _split(entity, start.get(entity, 0), end[entity], sessions, parts // (len(named) or 1))
    return found


def _split(entity: str, start: int, end: int, sessions: tuple[str, ...] | None, parts: int) -> list[InputPartition]:
    parts = max(1, min(parts, end - start))
    edges = [start + (end - start) * index // parts for index in range(parts + 1)]
    assert edges[0] == start and edges[-1] == end, "the parts are the whole, without a gap"
    return [
        RangePartition(entity, edges[index], edges[index + 1], sessions)
        for index in range(parts)
        if edges[index] < edges[index + 1]
    ]


def some_of(entities: Sequence[str]) -> str:
    """The first few, for an error that may be of each of them."""
    return ", ".join(entities[:5])


def namespace_of(options: ReadOptions) -> str:
    """The host that the connection string names, with its port if it has one."""
    return parse_connection_string(options.access.resolve()).authority
