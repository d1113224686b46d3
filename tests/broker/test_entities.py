"""Creating, changing and deleting queues, and what their links hear."""

import pytest

from spillway.broker.commands import CreateEntity, DeleteEntity, DetachLink, Peek, UpdateEntity
from spillway.broker.effects import Detached, Done, Failed, SendSettled
from spillway.model.entity import QUEUE, EntitySettings
from spillway.model.errors import (
    ArgumentError,
    EntityAlreadyExists,
    EntityNotFound,
    NotAllowed,
)
from spillway.testing.core import message
from tests.broker.line import DLQ_RECEIVER, RECEIVER, SENDER, Line


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


def test_a_send_that_was_on_its_way_to_a_deleted_queue_is_refused_until_its_link_has_gone(line: Line) -> None:
    line.apply(DeleteEntity(500, "q"))
    (refused,) = line.send(message(b"late"))
    assert isinstance(refused, SendSettled)
    assert (refused.to, refused.delivery_id) == (SENDER, line.delivery_id)
    assert isinstance(refused.error, EntityNotFound)
    assert line.send(message(b"asks for no answer"), is_settled=True) == []
    (ended,) = line.apply(DetachLink(SENDER, refused.error))
    assert isinstance(ended, Detached)
    assert (ended.to, ended.error) == (SENDER, refused.error)
    assert line.send(message(b"too late")) == []
    assert line.namespace.links.ended == {}


def test_a_request_under_way_hears_that_its_queue_was_deleted(line: Line) -> None:
    said = line.apply(DeleteEntity(500, "q"), Peek(501, "q", 1, 10))
    failed = [effect for effect in said if isinstance(effect, Failed)]
    assert [effect.to for effect in failed] == [501]


def test_a_dead_letter_queue_cannot_be_deleted_or_changed_on_its_own(line: Line) -> None:
    for request in (DeleteEntity(1, "q/$DeadLetterQueue"), UpdateEntity(1, "q/$DeadLetterQueue", EntitySettings())):
        (failed,) = line.apply(request)
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, NotAllowed)
