"""Partitioned entities: one store underneath, and the keys honoured as if there were many."""

import pytest

from spillway.broker.commands import AttachReceiver, AttachSender, CreateEntity, Credit, Send, SessionWish, UpdateEntity
from spillway.broker.effects import Attached, Deliver, Effect, Failed, SendSettled
from spillway.model.entity import QUEUE, TOPIC, EntitySettings
from spillway.model.errors import ArgumentError, BrokerError
from spillway.model.limits import PARTITIONS
from spillway.model.message import Message
from spillway.model.quotas import Quotas
from spillway.testing.core import message
from tests.broker.line import RECEIVER, Line, bodies


def partitioned(forward_to: str = "", requires_session: bool = False, finds_duplicates: bool = False) -> EntitySettings:
    settings = EntitySettings()
    settings.is_partitioned = True
    settings.forward_to = forward_to
    settings.requires_session = requires_session
    settings.requires_duplicate_detection = finds_duplicates
    return settings


def keyed(body: bytes, session_id: str | None, partition_key: str | None, message_id: str = "m") -> Message:
    made = message(body, session_id=session_id, message_id=message_id)
    made.partition_key = partition_key
    return made


def error_of(effects: list[Effect]) -> BrokerError | None:
    (settled,) = [effect for effect in effects if isinstance(effect, SendSettled)]
    return settled.error


@pytest.mark.parametrize(
    ("session_id", "partition_key", "is_taken"),
    [(None, None, True), ("s", None, True), (None, "p", True), ("s", "s", True), ("s", "p", False), ("", "p", False)],
)
@pytest.mark.parametrize("kind", [QUEUE, TOPIC])
def test_session_id_and_partition_key_must_be_the_same(
    line: Line, kind: str, session_id: str | None, partition_key: str | None, is_taken: bool
) -> None:
    line.apply(CreateEntity(800, kind, "parts", partitioned()), AttachSender(50, "parts"))
    error = error_of(line.send(message(b"good"), keyed(b"x", session_id, partition_key), link_id=50))
    if is_taken:
        assert error is None
    else:
        assert isinstance(error, ArgumentError)
        assert "'parts' is partitioned" in error.description and "PartitionKey" in error.description
        assert line.namespace.directory.find("parts").counters.last_sequence_number == 0  # type: ignore[union-attr]


def test_they_may_differ_where_nothing_is_partitioned(line: Line) -> None:
    assert error_of(line.send(keyed(b"x", "s", "p"))) is None


def test_whether_an_entity_is_partitioned_cannot_change(line: Line) -> None:
    (failed,) = line.apply(UpdateEntity(800, "q", partitioned()))
    assert isinstance(failed, Failed) and isinstance(failed.error, ArgumentError)
    assert "EnablePartitioning" in failed.error.description


def test_messages_come_in_the_order_they_were_sent_in_whatever_their_keys() -> None:
    line = Line(partitioned())
    line.send(*[keyed(b"%d" % n, None, f"key {n % 5}") for n in range(20)])
    line.restart()
    line.attach()
    assert bodies(line.receive(20)) == [b"%d" % n for n in range(20)]


def test_an_id_is_looked_for_in_its_partition_only() -> None:
    line = Line(partitioned(finds_duplicates=True))
    for body, key in ((b"1", "a"), (b"2", "b"), (b"again", "a"), (b"3", None), (b"again", None)):
        line.send(keyed(body, None, key, "same id"))
    line.attach()
    assert bodies(line.receive(10)) == [b"1", b"2", b"3"]


@pytest.mark.contract("I7")
def test_a_partitioned_queue_takes_sixteen_times_as_much_before_it_is_busy() -> None:
    taken: list[int] = []
    for settings in (EntitySettings(), partitioned()):
        quotas = Quotas()
        quotas.set("entity-operations-per-second", 10)
        line = Line(settings, quotas=quotas)
        count = 0
        while error_of(line.send()) is None:
            count += 1
        taken.append(count)
    attach = 1  # counts too
    assert taken == [100 - attach, 100 * PARTITIONS - attach]


# -- sessions of a partitioned queue may be forwarded, as Azure allows it ---------------------------------------------


def sessions_of(line: Line, path: str, link_id: int) -> list[tuple[str | None, list[bytes]]]:
    """The next session and what is in it."""
    effects = line.apply(AttachReceiver(link_id, path, False, SessionWish(None, 1_000)))
    effects += line.apply(Credit(link_id, 10, False))
    names = [effect.session_id for effect in effects if isinstance(effect, Attached)]
    found = [effect.stored.message.raw for effect in effects if isinstance(effect, Deliver)]
    return [(name, found) for name in names]


def test_messages_of_sessions_are_forwarded_and_received_again_when_it_ends(line: Line) -> None:
    sessions = EntitySettings()
    sessions.requires_session = True
    line.apply(
        CreateEntity(800, QUEUE, "end", sessions),
        CreateEntity(801, QUEUE, "front", partitioned(requires_session=True)),
        AttachSender(50, "front"),
    )
    line.send(keyed(b"1", "s", None), keyed(b"2", "t", None), link_id=50)
    assert sessions_of(line, "front", RECEIVER) == [("s", [b"1"])]
    line.apply(UpdateEntity(802, "front", partitioned("end", requires_session=True)))
    line.send(keyed(b"3", "s", None), link_id=50)
    assert line.namespace.directory.queues["front"].counters.total == 0
    line.restart()
    line.apply(AttachSender(50, "front"))
    line.send(keyed(b"4", "s", None), link_id=50)
    assert sessions_of(line, "end", 60) == [("s", [b"1", b"3", b"4"])]
    assert sessions_of(line, "end", 61) == [("t", [b"2"])]
    line.apply(UpdateEntity(803, "front", partitioned(requires_session=True)))
    line.send(keyed(b"5", "u", None), link_id=50)
    assert sessions_of(line, "front", 62) == [("u", [b"5"])]


def test_sessions_that_were_to_be_forwarded_are_all_there_when_it_was_given_up(line: Line) -> None:
    settings = partitioned("q", requires_session=True)
    settings.status = "ReceiveDisabled"
    line.apply(CreateEntity(800, QUEUE, "front", settings), AttachSender(50, "front"))
    line.send(keyed(b"1", "s", None), keyed(b"2", "t", None), link_id=50)
    line.restart()
    line.apply(UpdateEntity(801, "front", partitioned(requires_session=True)))
    assert sessions_of(line, "front", 60) == [("s", [b"1"])]
    assert sessions_of(line, "front", 61) == [("t", [b"2"])]


def test_a_message_of_a_session_is_with_a_receiver_of_the_destination_in_the_turn_of_the_send(line: Line) -> None:
    line.apply(CreateEntity(800, QUEUE, "front", partitioned("q", requires_session=True)), AttachSender(50, "front"))
    line.attach()
    line.credit(10)
    effects = line.apply(Send(50, 1, [keyed(b"x", "s", None)], False, 1))
    assert [type(effect) for effect in effects] == [SendSettled, Deliver]
