"""Performatives in the wrong place, and numbers that mean nothing (bad input B6 to B10)."""

import contextlib
import time

import pytest

from spillway.amqp.frames import encode_frame
from spillway.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Rejected,
    Source,
    Target,
    Transfer,
)
from spillway.amqp.types import Symbol
from tests.hostile.attacker import ANSWER_S, Attacker, Hangup, accept, flow, message, receiver, sender
from tests.hostile.scene import MIB, Scene

ILLEGAL_STATE = "amqp:illegal-state"
FRAMING = "amqp:connection:framing-error"
INVALID = "amqp:invalid-field"
LIMIT = "amqp:resource-limit-exceeded"
U32_MAX = 2**32 - 1
STORM = 10_000


# -- bad input B6


@pytest.mark.parametrize("body", [sender(), flow(None, None), accept(0), Detach(0), End(), Transfer(0, 0, b"t", 0)])
def test_b06_a_channel_without_a_session_closes_the_connection(
    attacked: Scene, body: Attach | Flow | Disposition | Detach | End | Transfer
) -> None:
    with attacked.attacker().open() as attacker:
        attacker.tell(body, channel=3)
        attacker.closes_with(ILLEGAL_STATE)


@pytest.mark.parametrize("body", [Begin(None, 0, 10, 10), sender()])
def test_b06_a_channel_above_channel_max_is_a_framing_error(attacked: Scene, body: Begin | Attach) -> None:
    with attacked.attacker().open() as attacker:
        attacker.tell(body, channel=5_000)
        attacker.closes_with(FRAMING)


def test_b06_a_second_begin_or_open_and_an_answer_to_no_begin_close_the_connection(attacked: Scene) -> None:
    for body in (Begin(None, 0, 10, 10), Begin(7, 0, 10, 10), Open("again")):
        with attacked.attacker().open().begin() as attacker:
            attacker.tell(body)
            attacker.closes_with(ILLEGAL_STATE)


def test_b06_what_comes_on_a_session_just_ended_is_ignored(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_sender() as attacker:
        attacker.tell(End(), Detach(0), flow(0, 1), accept(0), End())
        assert attacker.hear(End).error is None
        attacker.is_served(1)


def test_b06_anything_before_an_open_closes_the_connection(attacked: Scene) -> None:
    for body in (Begin(None, 0, 10, 10), sender(), End(), Transfer(0, 0, b"t", 0)):
        with attacked.attacker().sasl() as attacker:
            attacker.tell(body)
            attacker.closes_with(ILLEGAL_STATE)


def test_b06_an_open_with_a_frame_size_below_512_is_an_invalid_field(attacked: Scene) -> None:
    with attacked.attacker().sasl() as attacker:
        attacker.tell(Open("small", max_frame_size=511))
        attacker.closes_with(INVALID)


def test_b06_a_stranger_gets_the_sessions_that_a_login_needs_and_no_more(attacked: Scene) -> None:
    before = attacked.growth_bytes
    attackers = [attacked.attacker().open("ANONYMOUS") for _ in range(20)]
    begins = b"".join(encode_frame(channel, Begin(None, 0, 5, 5)) for channel in range(500))
    for attacker in attackers:
        attacker.say(begins)
    for attacker in attackers:
        attacker.closes_with(LIMIT)
        attacker.close()
    assert attacked.growth_bytes - before < 8 * MIB


def test_b06_a_stranger_that_sends_faster_than_it_is_read_is_cut_off(attacked: Scene) -> None:
    before = attacked.growth_bytes
    attackers = [attacked.attacker().open("ANONYMOUS") for _ in range(20)]
    begins = b"".join(encode_frame(channel, Begin(None, 0, 5, 5)) for channel in range(5_000))
    for attacker in attackers:
        with contextlib.suppress(OSError):
            attacker.say(begins)
    for attacker in attackers:
        with contextlib.suppress(Hangup):
            attacker.closes_with(LIMIT)
        attacker.close()
    assert attacked.growth_bytes - before < 8 * MIB


# -- bad input B7


def test_b07_a_handle_in_use_ends_the_session(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_sender() as attacker:
        attacker.tell(sender(0, name="another"))
        attacker.ends_with("amqp:session:handle-in-use")
        attacker.is_served(1)


def test_b07_a_handle_above_handle_max_is_a_framing_error(attacked: Scene) -> None:
    for handle in (5_000, U32_MAX):
        with attacked.attacker().open().begin() as attacker:
            attacker.tell(sender(handle))
            attacker.closes_with(FRAMING)


def test_b07_a_link_detached_twice_or_never_attached_ends_the_session(attacked: Scene) -> None:
    for bodies in ((Detach(0, True), Detach(0, True)), (Detach(9, True),), (flow(9, 1),)):
        with attacked.attacker().open().begin().attach_sender() as attacker:
            attacker.tell(*bodies)
            attacker.ends_with("amqp:session:unattached-handle")
            attacker.is_served(1)


def test_b07_a_link_that_was_refused_and_is_used_ends_the_session(attacked: Scene) -> None:
    with attacked.attacker().open().begin() as attacker:
        attacker.tell(sender(0, "nowhere"))
        attacker.detaches_with("amqp:not-found")
        attacker.tell(Detach(0, True))
        attacker.transfer(Transfer(0, 0, b"t", 0), message())
        attacker.ends_with("amqp:session:errant-link")


@pytest.mark.parametrize(
    ("attach", "condition"),
    [
        (Attach("a", 0, False), "com.microsoft:argument-error"),
        (Attach("a", 0, True), "com.microsoft:argument-error"),
        (Attach("a", 0, False, target=Target(dynamic=True)), "amqp:not-implemented"),
        (Attach("a", 0, False, target=Target("")), "com.microsoft:argument-error"),
        (Attach("a", 0, False, target=Coordinator()), "amqp:not-implemented"),
        (Attach("a", 0, True, source=Source("target/$DeadLetterQueue/$DeadLetterQueue")), "amqp:not-found"),
        (Attach("a", 0, False, target=Target("target/$DeadLetterQueue")), "amqp:not-allowed"),
        (receiver(0, "$cbs/$management"), "amqp:not-found"),
    ],
)
def test_b07_ends_of_a_link_that_make_no_sense_are_refused(attacked: Scene, attach: Attach, condition: str) -> None:
    with attacked.attacker().open().begin() as attacker:
        attacker.tell(attach)
        attacker.detaches_with(condition)


def test_b07_the_same_name_again_steals_the_older_link(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_sender(0, name="mine") as attacker:
        attacker.tell(sender(1, name="mine"))
        attacker.detaches_with("amqp:link:stolen")


def test_b07_an_endless_name_ends_the_session(attacked: Scene) -> None:
    with attacked.attacker().open().begin() as attacker:
        attacker.tell(sender(0, name="n" * 50_000))
        attacker.ends_with(INVALID)
        attacker.is_served(1)


def test_b07_hundreds_of_links_with_much_to_say_for_themselves_cost_little(attacked: Scene) -> None:
    """Before login a few are let in at all; after it what they said is not kept."""
    properties: dict[object, object] = {Symbol(f"{number:03}"): number for number in range(240)}
    for mechanism, address, condition in (("ANONYMOUS", "$cbs", LIMIT), ("PLAIN", "target", "")):
        before = attacked.growth_bytes
        with attacked.attacker().open(mechanism).begin() as attacker:
            for handle in range(600):
                attach = receiver(handle, address)
                attach.properties = properties
                attacker.tell(attach)
                if handle % 100 == 0:
                    attacker.drain()
            if condition:
                attacker.closes_with(condition)
            else:
                for _ in range(600):
                    attacker.hear(Attach)
            assert attacked.growth_bytes - before < 16 * MIB


# -- bad input B8


def test_b08_a_transfer_without_a_link_ends_the_session(attacked: Scene) -> None:
    with attacked.attacker().open().begin() as attacker:
        attacker.transfer(Transfer(5, 0, b"t", 0), message())
        attacker.ends_with("amqp:session:unattached-handle")


def test_b08_a_transfer_of_the_receiver_ends_the_link(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_receiver() as attacker:
        attacker.transfer(Transfer(1, 0, b"t", 0), message())
        attacker.detaches_with(ILLEGAL_STATE)


@pytest.mark.parametrize("transfer", [Transfer(0), Transfer(0, 0), Transfer(0, None, b"t")])
def test_b08_a_delivery_without_id_or_tag_ends_the_link(attacked: Scene, transfer: Transfer) -> None:
    with attacked.attacker().open().begin().attach_sender() as attacker:
        attacker.transfer(transfer, message())
        attacker.detaches_with(INVALID)


def test_b08_a_tag_of_33_bytes_ends_the_link(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_sender() as attacker:
        attacker.transfer(Transfer(0, 0, b"t" * 33, 0), message())
        attacker.detaches_with(INVALID)


def test_b08_a_delivery_id_again_is_another_delivery(attacked: Scene) -> None:
    """Whatever id comes is taken, as on Azure: the Python SDK repeats them."""
    with attacked.attacker().open().begin().attach_sender() as attacker:
        for delivery_id in (5, 5, 4, 0xFFFFFFFF, 5):
            attacker.send(delivery_id, message())
            said = attacker.hear(Disposition)
            assert (said.first, said.last) == (delivery_id, delivery_id) and isinstance(said.state, Accepted)


def test_b08_another_delivery_in_the_middle_of_one_ends_the_link_and_frees_its_bytes(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_sender() as attacker:
        attacker.transfer(Transfer(0, 0, b"t", 0, more=True), message(b"x" * 50_000)[:40_000])
        attacker.transfer(Transfer(0, 1, b"u", 0), message())
        attacker.detaches_with(INVALID)


def test_b08_deliveries_called_off_leave_nothing_and_give_their_credit_back(attacked: Scene) -> None:
    before = attacked.growth_bytes
    with attacked.attacker().open().begin().attach_sender() as attacker:
        for number in range(1_500):
            attacker.transfer(Transfer(0, number, b"t", 0, more=True), b"x" * 40_000)
            attacker.transfer(Transfer(0, aborted=True), b"")
        attacker.hear(Flow)
        attacker.send(2_000, message(b"after all"))
        assert isinstance(attacker.hear(Disposition).state, Accepted)
    assert attacked.growth_bytes - before < 16 * MIB


def test_b08_unfinished_deliveries_are_bounded(attacked: Scene) -> None:
    """A known client may leave 32 MiB of them, a stranger what a token needs."""
    with attacked.attacker().open("ANONYMOUS").begin() as attacker:
        for handle in range(4):
            attacker.attach_sender(handle, "$cbs")
            attacker.transfer(Transfer(handle, handle, b"t", 0, more=True), b"x" * 40_000)
        attacker.detaches_with(LIMIT)


def test_b08_a_message_in_frames_of_no_bytes_at_all_costs_nothing(attacked: Scene) -> None:
    before = attacked.growth_bytes
    with attacked.attacker().open().begin().attach_sender() as attacker:
        attacker.transfer(Transfer(0, 0, b"t", 0, more=True), b"")
        attacker.say(encode_frame(0, Transfer(0, more=True)) * STORM)
        attacker.transfer(Transfer(0), message())
        assert isinstance(attacker.hear(Disposition).state, Accepted)
    assert attacked.growth_bytes - before < 4 * MIB


# -- bad input B9


def fill(attacker: Attacker, count: int, first: int = 0) -> None:
    """Messages in the queue, accepted."""
    for number in range(first, first + count):
        attacker.send(number, message(b"x" * 100, f"m{number}"))
    seen = 0
    while seen < count:
        disposition = attacker.hear(Disposition)
        seen += (disposition.last if disposition.last is not None else disposition.first) - disposition.first + 1


@pytest.mark.parametrize(
    ("credit", "delivery_count"), [(U32_MAX, 0), (U32_MAX, None), (10, U32_MAX), (2**31, 2**31), (1, U32_MAX - 5)]
)
def test_b09_credit_that_wraps_is_reckoned_with_as_serial_numbers_are(
    attacked: Scene, credit: int, delivery_count: int | None
) -> None:
    with attacked.attacker().open().begin().attach_sender().attach_receiver() as attacker:
        fill(attacker, 3)
        attacker.tell(flow(1, credit, delivery_count))
        attacker.tell(flow(1, 3, 0))
        attacker.hear(Transfer)
        attacker.is_served(1)


def test_b09_a_drain_of_nothing_is_answered_at_once(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_receiver(1, "bytes") as attacker:
        attacker.tell(flow(1, 0, 0, drain=True))
        answer = attacker.hear(Flow)
        assert (answer.handle, answer.link_credit, answer.drain) == (1, 0, True)
        attacker.tell(flow(1, 50, 0, drain=True))
        answer = attacker.hear(Flow)
        assert (answer.link_credit, answer.delivery_count) == (0, 50)


def test_b09_a_storm_of_echoes_is_answered_by_a_breeze(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_receiver(1, "bytes") as attacker:
        began = time.monotonic()
        attacker.say(encode_frame(0, flow(1, 0, 0, echo=True)) * STORM + encode_frame(0, flow(None, None, echo=True)))
        attacker.is_served(1)
        assert time.monotonic() - began < ANSWER_S
        assert len(attacker.said(Flow)) < STORM // 10


def test_b09_a_storm_of_drains_is_borne(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_receiver(1, "bytes") as attacker:
        attacker.say(encode_frame(0, flow(1, 5, 0, drain=True)) * STORM)
        attacker.is_served(1)


# -- bad input B10


@pytest.mark.parametrize(
    "disposition",
    [
        accept(1_000, 2_000),
        accept(5, 1),
        accept(0, U32_MAX),
        accept(U32_MAX, 5),
        accept(0, 2**31 - 2),
        Disposition(False, 0, U32_MAX, True, Accepted()),
        Disposition(False, 0, 10, False, Accepted()),
        Disposition(True, 0, 10, True, None),
        Disposition(True, 0, 10, True, Rejected(None)),
    ],
)
def test_b10_dispositions_of_deliveries_that_were_never_sent_are_ignored(
    attacked: Scene, disposition: Disposition
) -> None:
    with attacked.attacker().open().begin().attach_receiver(1, "bytes") as attacker:
        attacker.say(encode_frame(0, disposition) * 1_000)
        attacker.is_served(1)


def test_b10_another_sessions_deliveries_are_not_touched(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_sender(0, "bytes") as attacker:
        attacker.send(0, message(b"mine"))
        attacker.hear(Disposition)
        attacker.attach_receiver(1, "bytes", credit=1)
        attacker.hear(Transfer)
        attacker.begin(1)
        attacker.tell(accept(0, 100, settled=True), channel=1)
        attacker.is_served(2)
        attacker.tell(accept(0))
        settled = attacker.hear(Disposition)
        assert (settled.role, settled.settled, settled.state) == (False, True, Accepted())


def test_b10_all_outcomes_again_and_again_are_answered_once(attacked: Scene) -> None:
    """1,000 deliveries locked, then 5,000 frames that each settle all of them."""
    before = attacked.growth_bytes
    with attacked.attacker().open().begin().attach_sender() as attacker:
        fill(attacker, 1_000)
        attacker.attach_receiver(1, credit=1_000)
        for _ in range(1_000):
            attacker.hear(Transfer)
        began = time.monotonic()
        attacker.say(encode_frame(0, accept(0, 2**31 - 2)) * 5_000)
        settled = 0
        while settled < 1_000:
            answer = attacker.hear(Disposition)
            assert answer.state == Accepted()
            settled += (answer.last if answer.last is not None else answer.first) - answer.first + 1
        assert settled == 1_000
        assert time.monotonic() - began < ANSWER_S
        attacker.is_served(1)
    assert attacked.growth_bytes - before < 16 * MIB
