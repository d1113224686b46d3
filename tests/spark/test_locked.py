"""Receiving on an executor, without Spark around it."""

from pyspark.sql.types import StringType, StructField, StructType

from spillway.client import OutgoingMessage, ReceivedMessage, connect
from spillway.spark.link import hub
from spillway.spark.locked import LockedPartition, LockedReader, Reception, plan
from spillway.spark.options import ReadOptions, read_options
from spillway.spark.settle import settle_on_executor
from spillway.spark.tokens import renew_tokens, settle_tokens
from tests.spark.bus import Bus, run


def options(bus: Bus, entity: str, **given: str) -> ReadOptions:
    return read_options({**bus.options, "entity": entity, "mode": "peeklock", "maxWaitSeconds": "0.2", **given})


def test_a_task_that_wants_no_more_gives_back_what_it_has_not_handed_out(bus: Bus) -> None:
    queue = bus.queue(*[str(number) for number in range(250)])
    chosen = options(bus, queue)
    chunks = Reception(hub(), chosen, LockedPartition(queue, 0, None)).chunks()
    first = next(chunks)
    chunks.close()
    again = Reception(hub(), chosen, LockedPartition(queue, 0, None)).chunks()
    rest = [message for chunk in again for message in chunk]
    numbers = sorted(message.sequence_number or 0 for message in (*first, *rest))
    assert numbers == list(range(1, 251))
    assert all(message.delivery_count == 0 for message in rest)  # to be given back is no failed delivery
    tokens = [message.lock_token for message in (*first, *rest) if message.lock_token is not None]
    assert settle_on_executor(chosen.access, queue, tokens) == 0
    assert bus.peek(queue) == []


def test_a_batch_is_shared_out_among_entities_and_their_partitions(bus: Bus) -> None:
    chosen = options(bus, "a,b", partitions="2")
    parts = hub().run(plan(hub(), chosen, chosen.entities, 10))
    assert [(part.entity, part.count_max) for part in parts if isinstance(part, LockedPartition)] == [
        ("a", 2),
        ("a", 3),
        ("b", 2),
        ("b", 3),
    ]
    assert len(hub().run(plan(hub(), chosen, chosen.entities, 3))) == 3


def test_a_session_that_another_holds_is_theirs(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage(name, session_id=name) for name in ("a", "b")])
    chosen = options(bus, queue, sessions="a,b", partitions="2")

    async def hold() -> object:
        return await (await hub().connection(chosen.access)).session_receiver(queue, "a")

    receiver = hub().run(hold())
    reader = LockedReader(chosen, _two_columns())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["session_id"] for row in rows] == ["b"]
    del receiver


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
