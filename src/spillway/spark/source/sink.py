"""Writing: rows are sent by executors, and a task is done when every message of it has been accepted.

At least once: a task or a batch that is tried again sends its rows again, with the ids they had. An entity with
duplicate detection drops them.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spillway.client import ClientError, Sender, ServerBusy
from spillway.spark.platform.connection_pool import ConnectionPool, NamespaceError, connection_pool, plain
from spillway.spark.source.options import WriteOptions
from spillway.spark.source.outgoing import MessageMaker

ROWS_AT_A_TIME: Final = 2_000
BYTES_AT_A_TIME: Final = 8 * 1024 * 1024
# A busy service asks for ten seconds (contract I5).
BUSY_S: Final = 10.0
BUSY_TRIES_MAX: Final = 6

Out = tuple[str, str, bytes]  # where it goes, its id, its bytes


class SentMessages(WriterCommitMessage):
    """What a task says when it is done."""

    def __init__(self, count: int) -> None:
        self.count = count


class Sending:
    """One task's."""

    def __init__(self, pool: ConnectionPool, options: WriteOptions) -> None:
        self._pool = pool
        self._options = options
        self._senders: dict[str, Sender] = {}

    def send_all(self, batches: Iterator[Any], maker: MessageMaker) -> int:
        """Send every row and wait for every outcome; rows are encoded while the last ones are under way."""
        count = 0
        under_way: Future[None] | None = None
        try:
            for some in _chunks(batches, maker):
                if under_way is not None:
                    under_way.result()
                under_way = self._pool.start(self._send(some))
                count += len(some)
            if under_way is not None:
                under_way.result()
            return count
        finally:
            if under_way is not None:
                under_way.cancel()
            self._pool.run(self._close())

    async def _send(self, messages: Sequence[Out]) -> None:
        left = messages
        for tries in range(1, BUSY_TRIES_MAX + 1):
            outcomes = await self._send_once(left)
            refused = [(each, error) for each, error in zip(left, outcomes, strict=True) if error is not None]
            if not refused:
                return
            is_busy = all(isinstance(error, ServerBusy) for _, error in refused)
            if not is_busy or tries == BUSY_TRIES_MAX:
                raise _refusal(len(messages), refused)
            await asyncio.sleep(BUSY_S)
            left = [each for each, _ in refused]

    async def _send_once(self, messages: Sequence[Out]) -> list[ClientError | None]:
        posted: list[asyncio.Future[None]] = []
        silent: dict[str, ClientError] = {}  # entities that did not answer until there was no room for more
        for entity, _, encoded in messages:
            sender = self._senders.get(entity) or await self._attach(entity)
            if sender.error is None and entity not in silent:
                try:
                    await sender.ready()
                except ClientError as error:
                    if sender.error is None:  # else what is posted on it says the same
                        silent[entity] = error
            posted.append(_failed(silent[entity]) if entity in silent else sender.post_raw(encoded))
        outcomes = await asyncio.gather(*posted, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, ClientError):
                raise outcome
        return [outcome if isinstance(outcome, ClientError) else None for outcome in outcomes]

    async def _attach(self, entity: str) -> Sender:
        try:
            connection = await self._pool.connection(self._options.access)
            self._senders[entity] = await connection.sender(entity)
        except ClientError as error:
            raise plain(error, entity, "Send") from None
        return self._senders[entity]

    async def _close(self) -> None:
        senders, self._senders = list(self._senders.values()), {}
        await asyncio.gather(*[sender.close() for sender in senders], return_exceptions=True)


def _failed(error: ClientError) -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _chunks(batches: Iterator[Any], maker: MessageMaker) -> Iterator[list[Out]]:
    """So many rows, or bytes, that they can be kept in memory twice."""
    some: list[Out] = []
    size = 0
    for batch in batches:
        for message in maker.messages(batch):
            some.append(message)
            size += len(message[2])
            if len(some) >= ROWS_AT_A_TIME or size >= BYTES_AT_A_TIME:
                yield some
                some, size = [], 0
    if some:
        yield some


def _refusal(count: int, refused: Sequence[tuple[Out, ClientError | None]]) -> NamespaceError:
    (entity, message_id, encoded), error = refused[0]
    return NamespaceError(
        f"{len(refused):,} of {count:,} messages were not accepted. The first, '{message_id[:128]}' of "
        f"{len(encoded):,} bytes, by '{entity}': {error}"
    )


def check_destination(options: WriteOptions) -> None:
    """That there is such an entity and that it may be sent to: where the query is planned."""
    if not options.entity:
        return
    pool = connection_pool()

    async def attach() -> None:
        try:
            connection = await pool.connection(options.access)
            sender = await connection.sender(options.entity)
            await sender.close()
        except ClientError as error:
            raise plain(error, options.entity, "Send") from None

    pool.run(attach())


def send_rows(options: WriteOptions, schema: StructType, batches: Iterator[Any]) -> SentMessages:
    return SentMessages(Sending(connection_pool(), options).send_all(batches, MessageMaker(schema, options)))


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> SentMessages:
        return send_rows(self._options, self._schema, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> SentMessages:
        return send_rows(self._options, self._schema, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Every message was accepted already when its task was done."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was accepted stays: the batch is sent again, with the same ids."""
