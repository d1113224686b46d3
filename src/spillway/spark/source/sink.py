"""Writing: rows are sent by executors, and a task is done when every message of it has been accepted or refused.

At least once: a task or a batch that is tried again sends its rows again, with the ids they had. An entity with
duplicate detection drops them. A row that is refused for what it is does not fail its task, which would be tried again
with all its neighbours: the task reports it, and the driver ends the write, or it is set aside.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spillway.client import ClientError, EntityNotFound, NotAllowed, Sender, ServerBusy
from spillway.spark.platform.connection_pool import ConnectionPool, NamespaceError, connection_pool, plain
from spillway.spark.platform.operations import Operations
from spillway.spark.platform.paths import local_path
from spillway.spark.platform.patience import Patience, is_transient, patiently
from spillway.spark.platform.reasons import in_one_line
from spillway.spark.source.options import QUARANTINE_QUEUE, WriteOptions
from spillway.spark.source.outgoing import MessageMaker
from spillway.spark.source.quarantine import DirectoryQuarantine, Quarantine, check_directory, notice_of
from spillway.spark.source.refusals import (
    Out,
    OutgoingRow,
    RefusalReport,
    RefusedRow,
    counts_of,
    is_of_row,
    refuse_write,
    size_problem,
)

ROWS_AT_A_TIME: Final = 2_000
BYTES_AT_A_TIME: Final = 8 * 1024 * 1024

_log: Final = logging.getLogger("spillway.spark")


class SentMessages(WriterCommitMessage):
    """What a task says when it is done: how many messages were accepted, and which rows were refused or set aside."""

    def __init__(self) -> None:
        self.rows = 0  # that were looked at
        self.count = 0  # of messages that were accepted
        self.refused = RefusalReport()
        self.quarantined = RefusalReport()


class FailedRow(NamedTuple):
    """A row that was sent and not accepted. `is_link_over`: that was said of its link, and others have heard it too."""

    row: OutgoingRow
    error: ClientError
    is_link_over: bool


class RowSending:
    """Sends the rows of one task."""

    def __init__(self, pool: ConnectionPool, options: WriteOptions) -> None:
        self._pool = pool
        self._options = options
        self._senders: dict[str, Sender] = {}
        self._operations = Operations(options.operations_per_s)
        self._missing: dict[str, str] = {}  # entities that rows name and that are none, with what the service said

    def send_all(self, batches: Iterator[Any], maker: MessageMaker) -> SentMessages:
        """Send every row and wait for every outcome; rows are encoded while the last ones are under way.

        Without a quarantine a refused row is the end: its chunk is not sent if it was known before, and no later one.
        """
        done = SentMessages()
        quarantine = self._quarantine()
        under_way: Future[tuple[int, list[RefusedRow]]] | None = None
        try:
            for some in _chunks(batches, maker):
                if under_way is not None:
                    self._note(done, under_way.result(), quarantine)
                    under_way = None
                if done.refused.count:
                    break
                done.rows += len(some)
                under_way = self._pool.start(self._send(some, is_all_or_none=quarantine is None))
            if under_way is not None:
                self._note(done, under_way.result(), quarantine)
            if quarantine is not None:
                quarantine.finish()
            outcomes = done.count + done.refused.count + done.quarantined.count
            assert outcomes <= done.rows, "a row has one outcome"
            return done
        except BaseException:
            if quarantine is not None:
                quarantine.abandon()
            raise
        finally:
            if under_way is not None:
                under_way.cancel()
            self._pool.run(self._close())

    def _quarantine(self) -> Quarantine | None:
        place = self._options.quarantine
        if not place:
            return None
        if place.startswith(QUARANTINE_QUEUE):
            return QueueQuarantine(self, place.removeprefix(QUARANTINE_QUEUE))
        return DirectoryQuarantine(_directory(place))

    @staticmethod
    def _note(done: SentMessages, result: tuple[int, list[RefusedRow]], quarantine: Quarantine | None) -> None:
        count, refused = result
        done.count += count
        if not refused:
            return
        left = refused if quarantine is None else quarantine.add(refused)
        done.refused.add(left)
        kept = {id(each.row) for each in left}
        done.quarantined.add([each for each in refused if id(each.row) not in kept])

    async def _send(self, rows: Sequence[OutgoingRow], is_all_or_none: bool) -> tuple[int, list[RefusedRow]]:
        """How many were accepted, and those that were refused. `is_all_or_none`: if some are known to be refused, none
        is sent. Those that an outage or a busy service meets are sent again, with their ids."""
        patience = Patience(self._options.access, self._options.entity, "Send")
        left, refused = await patiently(patience, lambda: self._checked(rows))
        if refused and is_all_or_none:
            return 0, refused

        async def send_left() -> None:
            nonlocal left
            failed, found = await self._send_some(left)
            refused.extend(found)
            if len(failed) < len(left):
                patience.on_answered()
            left = [each.row for each in failed]
            if failed:
                unsure = {each.row.out[0] for each in failed if not isinstance(each.error, ServerBusy)}
                await self._renew_senders(unsure)
                raise _refusal(len(rows), failed)

        await patiently(patience, send_left)
        assert not left, "whoever returns has an outcome for every row"
        return len(rows) - len(refused), refused

    async def _checked(self, rows: Sequence[OutgoingRow]) -> tuple[list[OutgoingRow], list[RefusedRow]]:
        """Rows that may be sent, and those that need not be tried."""
        for entity in {row.out[0]: None for row in rows if row.problem is None}:
            await self._reach(entity)
        good: list[OutgoingRow] = []
        refused: list[RefusedRow] = []
        for row in rows:
            problem = row.problem or self._problem_there(row.out)
            if problem is None:
                good.append(row)
            else:
                refused.append(RefusedRow(row, problem))
        return good, refused

    async def _reach(self, entity: str) -> None:
        """A link to the entity. One that a row names and that is not there is the row's fault."""
        if entity in self._senders or entity in self._missing:
            return
        try:
            await self._attach(entity)
        except NamespaceError as error:
            if not isinstance(error.cause, (EntityNotFound, NotAllowed)) or not self._options.entity_column:
                raise
            self._missing[entity] = str(error)

    def _problem_there(self, out: Out) -> str | None:
        """Why the entity would not take a message, as far as its link knows: that there is none, or the size."""
        entity, _, encoded = out
        return self._missing.get(entity) or size_problem(encoded, entity, self._senders[entity].max_message_size)

    async def _send_some(self, rows: Sequence[OutgoingRow]) -> tuple[list[FailedRow], list[RefusedRow]]:
        """Those that the service did not take as it fares, and those that were refused for what they are."""
        failed = await self._attempt(rows)
        if len(rows) > 1:
            # One of several made the service end the link: which one is seen when each is sent for itself.
            suspects = [each.row for each in failed if each.is_link_over and is_of_row(each.error, True)]
            failed = [each for each in failed if not (each.is_link_over and is_of_row(each.error, True))]
            for row in suspects:
                failed += await self._attempt([row])
        refused = [each for each in failed if is_of_row(each.error, each.is_link_over)]
        others = [each for each in failed if not is_of_row(each.error, each.is_link_over)]
        return others, [RefusedRow(each.row, str(each.error)) for each in refused]

    async def _attempt(self, rows: Sequence[OutgoingRow]) -> list[FailedRow]:
        """Send each once; links that ended meanwhile are not used again."""
        outcomes = await self._send_once([row.out for row in rows])
        ended = {entity: sender.error for entity, sender in self._senders.items() if sender.error is not None}
        for entity in ended:
            del self._senders[entity]
        return [
            FailedRow(row, error, ended.get(row.out[0]) is error)
            for row, error in zip(rows, outcomes, strict=True)
            if error is not None
        ]

    def deliver_notices(self, notices: Sequence[OutgoingRow], refused: Sequence[RefusedRow]) -> list[RefusedRow]:
        """Of rows that are refused, those whose notice is refused as well."""
        count, not_taken = self._pool.run(self._send(notices, is_all_or_none=False))
        assert count + len(not_taken) == len(refused), "every notice has an outcome"
        reasons = {each.row.out[1]: each.reason for each in not_taken}
        return [
            RefusedRow(each.row, f"{each.reason}. The quarantine does not take it either ({reasons[notice.out[1]]})")
            for each, notice in zip(refused, notices, strict=True)
            if notice.out[1] in reasons
        ]

    async def _send_once(self, messages: Sequence[Out]) -> list[ClientError | None]:
        posted: list[asyncio.Future[None]] = []
        silent: dict[str, ClientError] = {}  # entities that did not answer until there was no room for more
        for entity, _, encoded in messages:
            if self._operations.per_second is not None:
                await self._operations.begin()
            sender = self._senders.get(entity)
            try:
                if sender is None and entity not in silent:
                    sender = await self._attach(entity)
                if sender is not None and sender.error is None and entity not in silent:
                    await sender.ready()
            except ClientError as error:
                if sender is None or sender.error is None:  # else what is posted on it says the same
                    silent[entity] = error
            is_lost = sender is None or entity in silent
            posted.append(_failed(silent[entity]) if sender is None or is_lost else sender.post_raw(encoded))
        outcomes = await asyncio.gather(*posted, return_exceptions=True)
        assert len(outcomes) == len(messages), "every message was posted or has failed before"
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, ClientError):
                raise outcome
        return [outcome if isinstance(outcome, ClientError) else None for outcome in outcomes]

    async def _attach(self, entity: str) -> Sender:
        """Raises `NamespaceError` where no waiting helps, and `ClientError` where it may."""
        try:
            connection = await self._pool.connection(self._options.access)
            self._senders[entity] = await connection.sender(entity)
        except ClientError as error:
            if is_transient(error):
                raise
            raise plain(error, entity, "Send") from None
        return self._senders[entity]

    async def _renew_senders(self, entities: set[str]) -> None:
        """Those that met an error are attached anew: one that was not answered may be in any state."""
        senders = [self._senders.pop(entity) for entity in entities if entity in self._senders]
        await asyncio.gather(*[sender.close(0) for sender in senders], return_exceptions=True)

    async def _close(self) -> None:
        senders, self._senders = list(self._senders.values()), {}
        await asyncio.gather(*[sender.close() for sender in senders], return_exceptions=True)


def _failed(error: ClientError) -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _chunks(batches: Iterator[Any], maker: MessageMaker) -> Iterator[list[OutgoingRow]]:
    """So many rows, or bytes, that they can be kept in memory twice."""
    some: list[OutgoingRow] = []
    size = 0
    for batch in batches:
        for row in maker.rows(batch):
            some.append(row)
            size += len(row.out[2])
            if len(some) >= ROWS_AT_A_TIME or size >= BYTES_AT_A_TIME:
                yield some
                some, size = [], 0
    if some:
        yield some


def _refusal(count: int, failed: Sequence[FailedRow]) -> NamespaceError:
    """Of several the first that no waiting helps, if there is one."""
    first = next((each for each in failed if not is_transient(each.error)), failed[0])
    entity, message_id, encoded = first.row.out
    return NamespaceError(
        f"{len(failed):,} of {count:,} messages were not accepted. The first, '{message_id[:128]}' of "
        f"{len(encoded):,} bytes, by '{entity}': {first.error}",
        first.error,
    )


class QueueQuarantine:
    """A queue of the same namespace, which gets a message for every refused row."""

    def __init__(self, sending: RowSending, queue: str) -> None:
        self._sending = sending
        self._queue = queue

    def add(self, refused: Sequence[RefusedRow]) -> list[RefusedRow]:
        notices = [notice_of(each) for each in refused]
        rows = [OutgoingRow((self._queue, notice.message_id or "", notice.encode()), None) for notice in notices]
        return self._sending.deliver_notices(rows, refused)

    def finish(self) -> None:
        """Every message was accepted already."""

    def abandon(self) -> None:
        """What was accepted stays; the next attempt sends it again with the same ids."""


def _directory(place: str) -> Path:
    path = local_path(place)
    assert path is not None, "options were checked"
    return path


def check_destination(options: WriteOptions, is_patient: bool = True) -> None:
    """That the entity is there and may be sent to, and the quarantine too: where the query is planned.

    A stream is planned for every batch of it: a namespace that is away is left to the tasks, which wait for it. Not
    `is_patient`: that is an error too.
    """
    is_queue = options.quarantine.startswith(QUARANTINE_QUEUE)
    if options.quarantine and not is_queue:
        check_directory(_directory(options.quarantine))
    pool = connection_pool()

    async def attach(entity: str) -> None:
        try:
            connection = await pool.connection(options.access)
            if entity:
                await (await connection.sender(entity)).close()
        except ClientError as error:
            if not (is_patient and is_transient(error)):
                raise plain(error, entity or f"column {options.entity_column}", "Send") from None

    pool.run(attach(options.entity))
    if is_queue:
        pool.run(attach(options.quarantine.removeprefix(QUARANTINE_QUEUE)))


def send_rows(options: WriteOptions, schema: StructType, batches: Iterator[Any]) -> SentMessages:
    return RowSending(connection_pool(), options).send_all(batches, MessageMaker(schema, options))


def conclude(options: WriteOptions, messages: Sequence[Any]) -> None:
    """On the driver, when all tasks are done: fail for refused rows, say what was set aside."""
    rows, refused, quarantined = counts_of(messages)
    refuse_write(refused, rows)
    if quarantined.count:
        _log.warning(
            "%s of %s messages were not accepted, and are in %s. The first, %s",
            f"{quarantined.count:,}", f"{rows:,}", options.quarantine, quarantined.reasons[0],
        )  # fmt: skip


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> SentMessages:
        with in_one_line(NamespaceError):
            return send_rows(self._options, self._schema, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with in_one_line(NamespaceError):
            conclude(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> SentMessages:
        with in_one_line(NamespaceError):
            return send_rows(self._options, self._schema, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Every message was accepted already when its task was done, or the batch fails here."""
        with in_one_line(NamespaceError):
            conclude(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was accepted stays: the batch is sent again, with the same ids."""
