"""Creating, changing and deleting queues, and what their links hear."""

import pytest

from spillway.broker.commands import CreateEntity, DeleteEntity, Peek, PlantFault, Send, UpdateEntity
from spillway.broker.effects import Detached, Done, Failed, Refused, SendSettled, Settled
from spillway.broker.faults import ATTACH, MANAGEMENT, SEND, SETTLE
from spillway.model.entity import QUEUE, EntitySettings
from spillway.model.errors import (
    ArgumentError,
    EntityAlreadyExists,
    EntityDisabled,
    EntityNotFound,
    NotAllowed,
    ServerBusy,
)
from spillway.model.settlement import COMPLETE, Settlement
from spillway.testing.core import message
from tests.broker.line import DLQ_RECEIVER, RECEIVER, SENDER, Line, bodies


def test_a_queue_exists_once_whatever_the_case_of_its_name(line: Line) -> None:
    (failed,) = line.apply(CreateEntity(500, QUEUE, "Q", EntitySettings()))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, EntityAlreadyExists)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a//b",
        "../x",
        "a/../b",
        "$cbs",
        "q/$DeadLetterQueue",
        "x" * 261,
        "a b",
        "-a",
        "a.",
        "ü",
        "a/Subscriptions/b",
    ],
)
def test_a_bad_name_is_refused_with_the_rule(line: Line, name: str) -> None:
    (failed,) = line.apply(CreateEntity(500, QUEUE, name, EntitySettings()))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ArgumentError)
    assert "name" in failed.error.description


def test_entities_settings_and_messages_survive_a_restart(line: Line) -> None:
    settings = EntitySettings()
    settings.lock_duration_ms = 7_000
    settings.max_delivery_count = 4
    line.apply(UpdateEntity(500, "q", settings))
    line.send(message(b"a"))
    line.restart()
    assert line.namespace.exists("q")
    assert line.namespace.exists("Q/$DeadLetterQueue")
    kept = line.namespace.directory.queues["q"].settings
    assert (kept.lock_duration_ms, kept.max_delivery_count) == (7_000, 4)


def test_deleting_a_queue_detaches_its_links_and_forgets_its_messages(line: Line) -> None:
    line.send(message(b"a"))
    line.attach()
    line.attach(DLQ_RECEIVER, "q/$DeadLetterQueue")
    said = line.apply(DeleteEntity(500, "q"))
    detached = {effect.to for effect in said if isinstance(effect, Detached)}
    assert detached == {SENDER, RECEIVER, DLQ_RECEIVER}
    assert all(isinstance(e.error, EntityNotFound) for e in said if isinstance(e, Detached))
    assert any(isinstance(effect, Done) for effect in said)
    line.restart()
    assert not line.namespace.exists("q")
    line.apply(CreateEntity(501, QUEUE, "q", EntitySettings()))
    line.attach()
    assert line.receive(5) == []


def test_a_request_under_way_hears_that_its_queue_was_deleted(line: Line) -> None:
    said = line.apply(DeleteEntity(500, "q"), Peek(501, "q", 1, 10))
    failed = [effect for effect in said if isinstance(effect, Failed)]
    assert [effect.to for effect in failed] == [501]


def test_a_dead_letter_queue_cannot_be_deleted_or_changed_on_its_own(line: Line) -> None:
    for request in (DeleteEntity(1, "q/$DeadLetterQueue"), UpdateEntity(1, "q/$DeadLetterQueue", EntitySettings())):
        (failed,) = line.apply(request)
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, NotAllowed)


def test_a_planted_fault_refuses_its_operation_until_it_is_taken_away(line: Line) -> None:
    line.send(message(b"a"))
    line.attach()
    (delivery,) = line.receive()
    busy = ServerBusy("busy on purpose")
    for operation in (SEND, SETTLE, ATTACH, MANAGEMENT):
        line.apply(PlantFault(600, "q", operation, busy))
    (sent,) = line.apply(Send(SENDER, 1, [message(b"b")], False, 1))
    assert isinstance(sent, SendSettled)
    assert sent.error is busy
    (settled,) = line.settle(delivery, Settlement(COMPLETE))
    assert isinstance(settled, Settled)
    assert settled.error is busy
    (refused,) = line.attach(70)
    assert isinstance(refused, Refused)
    (failed,) = line.apply(Peek(601, "q", 1, 1))
    assert isinstance(failed, Failed)
    for operation in (SEND, SETTLE, ATTACH, MANAGEMENT):
        line.apply(PlantFault(602, "q", operation, None))
    (settled,) = line.settle(delivery, Settlement(COMPLETE))
    assert isinstance(settled, Settled)
    assert settled.error is None


def test_a_fault_on_one_queue_leaves_the_others_alone(line: Line) -> None:
    line.apply(
        CreateEntity(500, QUEUE, "other", EntitySettings()), PlantFault(501, "other", SEND, EntityDisabled("off"))
    )
    (sent,) = line.send(message(b"a"))
    assert isinstance(sent, SendSettled)
    assert sent.error is None
    line.attach()
    assert bodies(line.receive()) == [b"a"]
