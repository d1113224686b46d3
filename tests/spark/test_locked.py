"""Receiving on an executor, without Spark around it."""

import time
import uuid

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spillway.client import OutgoingMessage, ReceivedMessage, connect
from spillway.spark.platform.connection_pool import connection_pool
from spillway.spark.platform.operations import CountedPool, Operations
from spillway.spark.source.lock_renewer import LockBatch, LockRenewer
from spillway.spark.source.locked import LockedPartition, LockedReader, LockedStreamReader, Reception, plan
from spillway.spark.source.options import ReadOptions, read_options
from spillway.spark.source.settle import settle_on_executor
from spillway.spark.source.tokens import renew_tokens, settle_tokens
from tests.spark.bus import Bus, run


def options(bus: Bus, entity: str, **given: str) -> ReadOptions:
    return read_options({**bus.options, "entity": entity, "mode": "peeklock", "maxWaitSeconds": "0.2", **given})


def test_a_task_that_wants_no_more_gives_back_what_it_has_not_handed_out(bus: Bus) -> None:
    queue = bus.queue(*[str(number) for number in range(250)])
    chosen = options(bus, queue)
    chunks = Reception(connection_pool(), chosen, LockedPartition(queue, 0, None)).chunks()
    first = next(chunks)
    chunks.close()
    again = Reception(connection_pool(), chosen, LockedPartition(queue, 0, None)).chunks()
    rest = [message for chunk in again for message in chunk]
    numbers = sorted(message.sequence_number or 0 for message in (*first, *rest))
    assert numbers == list(range(1, 251))
    assert all(message.delivery_count == 0 for message in rest)  # to be given back is no failed delivery
    tokens = [message.lock_token for message in (*first, *rest) if message.lock_token is not None]
    assert settle_on_executor(chosen.access, queue, tokens) == 0
    assert bus.peek(queue) == []


def receive(chosen: ReadOptions, part: LockedPartition) -> list[ReceivedMessage]:
    return [message for chunk in Reception(connection_pool(), chosen, part).chunks() for message in chunk]


def test_what_an_earlier_batch_of_the_holder_left_locked_is_received_by_the_next_at_once(bus: Bus) -> None:
    queue = bus.queue(*[str(number) for number in range(250)])
    chosen = options(bus, queue, holder="a")
    first = receive(chosen, LockedPartition(queue, 100, None, LockBatch("a", (1, 1))))
    tokens = [message.lock_token for message in first if message.lock_token is not None]
    assert settle_on_executor(chosen.access, queue, tokens) == 0
    second = receive(chosen, LockedPartition(queue, 0, None, LockBatch("a", (1, 2))))
    assert len(second) == 150
    # Neither the same batch once more, nor one that is older, nor somebody else lets go of it.
    for batch in (LockBatch("a", (1, 2)), LockBatch("a", (1, 1)), LockBatch("a", (0, 9)), LockBatch("b", (9, 9)), None):
        assert receive(chosen, LockedPartition(queue, 0, None, batch)) == []
    third = receive(chosen, LockedPartition(queue, 0, None, LockBatch("a", (2, 1))))
    assert [message.sequence_number for message in third] == [message.sequence_number for message in second]
    assert {message.delivery_count for message in third} == {1}
    tokens = [message.lock_token for message in third if message.lock_token is not None]
    assert settle_on_executor(chosen.access, queue, tokens) == 0
    assert receive(chosen, LockedPartition(queue, 0, None, LockBatch("a", (2, 2)))) == []
    assert bus.peek(queue) == []


def test_what_was_received_without_a_holder_is_let_go_by_nobody(bus: Bus) -> None:
    queue = bus.queue("one")
    chosen = options(bus, queue)
    assert len(receive(chosen, LockedPartition(queue, 0, None))) == 1
    assert receive(chosen, LockedPartition(queue, 0, None, LockBatch("a", (9, 9)))) == []


def test_a_session_that_an_earlier_batch_of_the_holder_left_is_free_for_the_next(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage("one", session_id="s")])
    chosen = options(bus, queue, sessions="s", holder="a")
    assert len(receive(chosen, LockedPartition(queue, 0, ("s",), LockBatch("a", (1, 1))))) == 1
    assert receive(chosen, LockedPartition(queue, 0, ("s",), LockBatch("a", (1, 1)))) == []
    (again,) = receive(chosen, LockedPartition(queue, 0, ("s",), LockBatch("a", (1, 2))))
    assert again.lock_token is not None
    assert settle_on_executor(chosen.access, queue, [again.lock_token], session_id="s") == 0


def test_batches_of_a_holder_are_in_order_over_all_starts_of_its_query(bus: Bus) -> None:
    queue = bus.queue("one")
    chosen = options(bus, queue, holder="a")
    first, again = LockedStreamReader(chosen, _two_columns()), LockedStreamReader(chosen, _two_columns())

    def planned(reader: LockedStreamReader, number: int) -> LockBatch:
        (part,) = reader.partitions({"batch": number - 1, "messages": 0}, {"batch": number, "messages": 9})
        assert isinstance(part, LockedPartition) and part.batch is not None
        return part.batch

    assert planned(first, 1) == planned(first, 1)
    assert planned(first, 1).is_before(planned(first, 2))
    assert planned(first, 2).is_before(planned(again, 2))
    assert planned(first, 3).is_before(planned(again, 2))


def test_a_batch_is_shared_out_among_entities_and_their_partitions(bus: Bus) -> None:
    chosen = options(bus, "a,b", partitions="2")
    counted = CountedPool(connection_pool(), Operations())
    parts = connection_pool().run(plan(counted, chosen, chosen.entities, 10))
    assert [(part.entity, part.count_max) for part in parts] == [
        ("a", 2),
        ("a", 3),
        ("b", 2),
        ("b", 3),
    ]
    assert len(connection_pool().run(plan(counted, chosen, chosen.entities, 3))) == 3


def test_a_session_that_another_holds_is_theirs(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage(name, session_id=name) for name in ("a", "b")])
    chosen = options(bus, queue, sessions="a,b", partitions="2")

    async def hold() -> object:
        return await (await connection_pool().connection(chosen.access)).session_receiver(queue, "a")

    receiver = connection_pool().run(hold())
    reader = LockedReader(chosen, _two_columns())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["session_id"] for row in rows] == ["b"]
    del receiver


def test_a_run_that_leaves_locked_messages_says_so(bus: Bus, capsys: pytest.CaptureFixture[str]) -> None:
    queue = bus.queue("one", "two")
    reader = LockedStreamReader(options(bus, queue), _two_columns())
    with bus.locked_by_another(queue, 2):
        reader.prepareForTriggerAvailableNow()
        offset, batches = reader.initialOffset(), 0
        while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset and batches < 5:
            offset, batches = end, batches + 1
    assert batches == 2  # then nothing has changed any more
    assert f"this run ends and leaves messages of {queue}: they are in somebody's lock" in capsys.readouterr().err


def _two_columns() -> StructType:
    return StructType([StructField(name, StringType()) for name in ("session_id", "lock_token")])


async def _sequence_of_renewals(bus: Bus, queue: str) -> tuple[int, int, int]:
    async with await connect(bus.broker.connection_string) as connection:
        receiver = await connection.receiver(queue)
        messages: list[ReceivedMessage] = []
        while len(messages) < 600:
            messages += await receiver.receive(600, 5)
        tokens = [message.lock_token for message in messages if message.lock_token is not None]
        management = connection.management(queue)
        every = len(await renew_tokens(management, tokens))
        await settle_tokens(management, tokens[:100])
        some = len(await renew_tokens(management, tokens))
        lost = await settle_tokens(management, tokens)
        assert lost == tokens[:100]
        return every, some, len(await renew_tokens(management, tokens))


def test_locks_that_are_settled_are_renewed_no_more_and_the_others_still(bus: Bus) -> None:
    queue = bus.queue(*[str(number) for number in range(600)])
    assert run(_sequence_of_renewals(bus, queue)) == (600, 500, 0)


def test_locks_are_still_renewed_after_the_connection_was_lost(bus: Bus) -> None:
    """The lock of a batch that takes long does not depend on one connection."""
    queue = bus.queue("one", lock_s=5)
    chosen = options(bus, queue, renewSeconds="0")
    (message,) = receive(chosen, LockedPartition(queue, 1, None))
    pool = connection_pool()
    renewer = LockRenewer(pool)

    async def lose_the_connection() -> None:
        renewer.renew(chosen.access, queue, tokens_of([message]), 1.0, 300.0)
        await (await pool.connection(chosen.access)).close()

    pool.run(lose_the_connection())
    time.sleep(7)  # the lock is the broker's, and real: longer than it
    assert receive(chosen, LockedPartition(queue, 1, None)) == []
    assert settle_on_executor(chosen.access, queue, tokens_of([message])) == 0


def tokens_of(messages: list[ReceivedMessage]) -> list[uuid.UUID]:
    return [message.lock_token for message in messages if message.lock_token is not None]
