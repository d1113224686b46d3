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
from spillway.spark.platform.operations import Operations
from spillway.spark.platform.patience import Patience, is_transient, patiently
from spillway.spark.source.options import WriteOptions
from spillway.spark.source.outgoing import MessageMaker

ROWS_AT_A_TIME: Final = 2_000
BYTES_AT_A_TIME: Final = 8 * 1024 * 1024

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
        self._operations = Operations(options.operations_per_s)

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
        """Until each is accepted. Those that an outage or a busy service meets are sent again, with their ids."""
        left = messages
        patience = Patience(self._options.access, self._options.entity, "Send")

        async def send_left() -> None:
            nonlocal left
            outcomes = await self._send_once(left)
            refused = [(each, error) for each, error in zip(left, outcomes, strict=True) if error is not None]
            if not refused:
                return
            if len(refused) < len(left):
                patience.on_answered()
            left = [each for each, _ in refused]
            await self._renew_senders({each[0] for each, error in refused if not isinstance(error, ServerBusy)})
            raise _refusal(len(messages), refused)

        await patiently(patience, send_left)

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


def _refusal(count: int, refused: Sequence[tuple[Out, ClientError]]) -> NamespaceError:
    """Of several the first that no waiting helps, if there is one."""
    lasting = [one for one in refused if not is_transient(one[1])]
    (entity, message_id, encoded), error = (lasting or refused)[0]
    return NamespaceError(
        f"{len(refused):,} of {count:,} messages were not accepted. The first, '{message_id[:128]}' of "
        f"{len(encoded):,} bytes, by '{entity}': {error}",
        error,
    )


def check_destination(options: WriteOptions) -> None:
    """That there is such an entity and that it may be sent to: where the query is planned.

    A stream is planned for every batch of it: a namespace that is away is left to the tasks, which wait for it.
    """
    if not options.entity:
        return
    pool = connection_pool()

    async def attach() -> None:
        try:
            connection = await pool.connection(options.access)
            sender = await connection.sender(options.entity)
            await sender.close()
        except ClientError as error:
            if not is_transient(error):
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
