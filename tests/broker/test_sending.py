"""Sends: what is stored, what is refused, and what the sender hears."""

import pytest

from spillway.broker.commands import AttachSender, DiskMeasured, Send
from spillway.broker.effects import Attached, Effect, Refused, SendSettled
from spillway.model import limits
from spillway.model.entity import EntitySettings
from spillway.model.errors import EntityNotFound, MessageTooLarge, NotAllowed, QuotaExceeded, ServerBusy
from spillway.testing.core import message
from tests.broker.line import SENDER, Line, bodies


def outcome(effects: list[Effect]) -> SendSettled:
    (effect,) = effects
    assert isinstance(effect, SendSettled)
    return effect


def test_a_send_is_stored_and_accepted(line: Line) -> None:
    settled = outcome(line.send(message(b"one")))
    assert settled.error is None
    assert line.namespace.directory.queues["q"].counters.active == 1
    assert line.namespace.directory.queues["q"].counters.size_bytes == 3


@pytest.mark.contract("G13")
def test_a_presettled_send_is_stored_and_nothing_is_said(line: Line) -> None:
    assert line.send(message(b"one"), is_settled=True) == []
    line.attach()
    assert bodies(line.receive()) == [b"one"]


def test_a_batch_is_stored_whole_or_not_at_all(line: Line) -> None:
    too_large = message(b"x" * (limits.MESSAGE_BYTES_MAX + 1))
    settled = outcome(line.send(message(b"one"), too_large))
    assert isinstance(settled.error, MessageTooLarge)
    assert line.namespace.directory.queues["q"].counters.active == 0
    assert outcome(line.send(message(b"one"), message(b"two"))).error is None
    assert line.namespace.directory.queues["q"].counters.active == 2


def test_the_error_for_a_large_message_names_its_size_and_the_limit(line: Line) -> None:
    settled = outcome(line.send(message(b"x" * (limits.MESSAGE_BYTES_MAX + 1))))
    assert settled.error is not None
    assert "262145" in settled.error.description
    assert "262144" in settled.error.description


def test_a_full_queue_refuses_with_its_quota_and_takes_again_once_emptied() -> None:
    settings = EntitySettings()
    settings.max_size_mb = 1
    line = Line(settings)
    for _ in range(4):
        assert outcome(line.send(message(b"x" * 262_144))).error is None
    refused = outcome(line.send(message(b"x")))
    assert isinstance(refused.error, QuotaExceeded)
    line.attach(deletes=True)
    line.receive()
    assert outcome(line.send(message(b"x"))).error is None


def test_sequence_numbers_begin_at_one_and_never_skip(line: Line) -> None:
    line.send(message(b"a"), message(b"b"))
    line.send(message(b"c"))
    line.attach()
    assert [delivery.stored.sequence_number for delivery in line.receive(3)] == [1, 2, 3]


def test_sequence_numbers_go_on_after_a_restart_even_if_the_queue_was_emptied(line: Line) -> None:
    line.send(message(b"a"), message(b"b"))
    line.attach(deletes=True)
    line.receive(2)
    line.restart()
    line.apply(AttachSender(SENDER, "q"))
    line.send(message(b"c"))
    line.attach()
    assert [delivery.stored.sequence_number for delivery in line.receive()] == [limits.NUMBERS_SKIPPED + 3]


@pytest.mark.contract("F2")
def test_a_ping_is_answered_and_never_stored(line: Line) -> None:
    line.attach()
    line.credit(10)
    settled = outcome(line.send(message(b"", is_ping=True)))
    assert settled.error is None
    assert line.namespace.directory.queues["q"].counters.last_sequence_number == 0


def test_a_ping_in_a_batch_is_left_out_and_the_rest_is_stored(line: Line) -> None:
    line.send(message(b"", is_ping=True), message(b"real"))
    line.attach()
    assert bodies(line.receive(10)) == [b"real"]


def test_an_unknown_queue_refuses_the_link_with_the_sentence_the_sdks_know(line: Line) -> None:
    (refused,) = line.apply(AttachSender(50, "nowhere"))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, EntityNotFound)
    assert "The messaging entity 'sb://test/nowhere' could not be found" in refused.error.description


def test_paths_are_compared_without_regard_to_case(line: Line) -> None:
    (attached,) = line.apply(AttachSender(50, "Q"))
    assert isinstance(attached, Attached)


def test_a_dead_letter_queue_takes_no_senders(line: Line) -> None:
    (refused,) = line.apply(AttachSender(50, "q/$DeadLetterQueue"))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, NotAllowed)


def test_a_send_on_a_link_that_is_gone_is_dropped_without_a_word(line: Line) -> None:
    assert line.apply(Send(999, 1, [message()], False, 5)) == []
    assert line.namespace.directory.queues["q"].counters.active == 0


def test_a_nearly_full_disk_refuses_sends_and_still_lets_receive(line: Line) -> None:
    line.send(message(b"before"))
    line.apply(DiskMeasured(limits.DISK_RESERVE_BYTES - 1))
    refused = outcome(line.send(message(b"during")))
    assert isinstance(refused.error, ServerBusy)
    line.attach(deletes=True)
    assert bodies(line.receive()) == [b"before"]
    line.apply(DiskMeasured(limits.DISK_RESERVE_BYTES))
    assert outcome(line.send(message(b"after"))).error is None
