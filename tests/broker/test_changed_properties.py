"""What settlements may add to a message: no more than a message may have, however often they add it."""

import pytest

from spillway.broker.commands import RenewLocks, UpdateDisposition
from spillway.broker.effects import Deliver, Done, Failed, SettlementAnswered
from spillway.model import limits
from spillway.model.errors import ArgumentOutOfRange
from spillway.model.message import Message, Overlay, unpack_overlay
from spillway.model.records import MessageChanged, MessageMoved
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, Settlement
from spillway.testing.core import message
from tests.broker.line import Line

PIECE_BYTES = 15 * limits.KIB
KINDS = pytest.mark.parametrize("kind", [ABANDON, DEFER, DEAD_LETTER], ids=["abandon", "defer", "dead-letter"])


def adding(kind: int, name: str, size: int = PIECE_BYTES) -> Settlement:
    return Settlement(kind, None, None, {name: b"v" * size})


def settle(line: Line, delivery: Deliver, settlement: Settlement) -> ArgumentOutOfRange | None:
    (settled,) = [effect for effect in line.settle(delivery, settlement) if isinstance(effect, SettlementAnswered)]
    assert settled.error is None or isinstance(settled.error, ArgumentOutOfRange)
    return settled.error


def filled(line: Line) -> Deliver:
    """A message that was abandoned with properties until there was room for no more; locked."""
    line.send(message(b"body"))
    line.attach()
    (delivery,) = line.receive()
    for number in range(limits.PROPERTIES_BYTES_MAX // (PIECE_BYTES + 100)):
        assert settle(line, delivery, adding(ABANDON, f"p{number}")) is None
        (delivery,) = line.receive()
    return delivery


@KINDS
def test_properties_are_merged_up_to_the_limit_of_a_message_and_then_refused(line: Line, kind: int) -> None:
    delivery = filled(line)
    error = settle(line, delivery, adding(kind, "one too many"))
    assert error is not None
    assert f"at most {limits.PROPERTIES_BYTES_MAX}" in error.description


@KINDS
def test_a_refused_settlement_leaves_lock_and_message_as_they_were(line: Line, kind: int) -> None:
    delivery = filled(line)
    settle(line, delivery, adding(kind, "one too many"))
    (renewed,) = line.apply(RenewLocks(50, "q", [delivery.lock_token]))
    assert not isinstance(renewed, Failed)
    assert settle(line, delivery, Settlement(COMPLETE)) is None
    assert line.namespace.directory.queues["q"].counters.active == 0


def test_the_same_property_again_takes_its_own_place(line: Line) -> None:
    delivery = filled(line)
    assert settle(line, delivery, adding(ABANDON, "p0")) is None


def test_the_message_s_own_properties_count(line: Line) -> None:
    own = Message(b"x" * (60 * limits.KIB))
    own.message_id = "m"
    own.application_end = 60 * limits.KIB
    line.send(own)
    line.attach()
    (delivery,) = line.receive()
    assert settle(line, delivery, adding(ABANDON, "p", 5 * limits.KIB)) is not None
    assert settle(line, delivery, adding(ABANDON, "p", 3 * limits.KIB)) is None


def test_the_whole_stays_within_the_message_limit(line: Line) -> None:
    line.send(message(b"x" * (limits.MESSAGE_BYTES_MAX - 100)))
    line.attach()
    (delivery,) = line.receive()
    error = settle(line, delivery, adding(ABANDON, "p", 200))
    assert error is not None
    assert f"at most {limits.MESSAGE_BYTES_MAX}" in error.description
    assert settle(line, delivery, adding(ABANDON, "p", 20)) is None


def test_the_largest_message_can_be_dead_lettered_with_a_reason(line: Line) -> None:
    line.send(message(b"x" * limits.MESSAGE_BYTES_MAX))
    line.attach()
    (delivery,) = line.receive()
    assert settle(line, delivery, Settlement(DEAD_LETTER, "r" * 4_096, "d" * 4_096)) is None


def test_by_lock_token_all_or_none_are_refused(line: Line) -> None:
    line.send(message(b"small"), message(b"x" * limits.MESSAGE_BYTES_MAX))
    line.attach()
    small, large = line.receive(2)
    tokens = [small.lock_token, large.lock_token]
    (failed,) = line.apply(UpdateDisposition(50, "q", tokens, adding(ABANDON, "p", 20)))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ArgumentOutOfRange)
    (done,) = line.apply(UpdateDisposition(51, "q", tokens, Settlement(COMPLETE)))
    assert isinstance(done, Done)


def test_many_messages_with_many_properties_are_not_settled_in_one_request(line: Line) -> None:
    line.send_many(400)
    line.attach()
    tokens = [delivery.lock_token for delivery in line.receive(400)]
    big = adding(ABANDON, "p", 60 * limits.KIB)
    (failed,) = line.apply(UpdateDisposition(50, "q", tokens, big))
    assert isinstance(failed, Failed)
    assert f"{limits.BY_NUMBER_BYTES_MAX} bytes together" in failed.error.description
    effects = line.apply(UpdateDisposition(51, "q", tokens[:200], big))
    assert any(isinstance(effect, Done) for effect in effects)


def test_what_is_written_of_them_counts_for_back_pressure() -> None:
    overlay = Overlay()
    overlay.set_properties({"p": b"v" * 10_000})
    assert MessageChanged(1, 1, 0, 0, overlay).size_bytes > 10_000
    assert MessageMoved(1, 1, 2, 1, 0, 0, 0, overlay).size_bytes > 10_000


def test_an_overlay_knows_what_its_properties_take_however_it_was_made() -> None:
    overlay = Overlay()
    overlay.set_properties({"a": b"1" * 100, "b": b"2" * 50})
    overlay.set_properties({"a": b"3"})
    assert overlay.properties_bytes == sum(len(n) + len(v) + 5 for n, v in overlay.properties.items())
    for twin in (overlay.copy(), unpack_overlay(overlay.pack())):
        assert twin.properties_bytes == overlay.properties_bytes
        assert twin.properties == overlay.properties
