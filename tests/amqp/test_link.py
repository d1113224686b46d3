"""Links: attaching, credit, drain, and deliveries of several frames."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.connection import ConnectionOptions
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    DetachConfirmed,
    DispositionReceived,
    FlowReceived,
    LinkAttached,
    LinkDetached,
    TransferAborted,
    TransferReceived,
    TransferTooLarge,
)
from spillway.amqp.link import Link
from spillway.amqp.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Rejected,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from tests.amqp.script import WINDOW, Script, condition

LAST = (1 << 32) - 1


def opened(options: ConnectionOptions | None = None) -> Script:
    script = Script(options=options)
    script.open()
    script.begin(0)
    script.hear()
    script.events.clear()
    return script


def receiving(options: ConnectionOptions | None = None, bytes_max: int = 0) -> tuple[Script, Link]:
    script = opened(options)
    link = script.attached(0)
    link.bytes_max = bytes_max
    script.hear()
    script.events.clear()
    return script, link


def sending() -> tuple[Script, Link]:
    script = opened()
    link = script.attach(0, we_send=True)
    assert link.attach is not None
    link.accept(link.attach.source, link.attach.target)
    script.hear()
    script.events.clear()
    return script, link


def detaching_condition(script: Script) -> str:
    """The error of our detach, which the owner must have heard once; the session lives on."""
    (detach,) = script.heard(Detach)
    assert isinstance(detach, Detach)
    assert detach.closed
    (told,) = [event for event in script.events if isinstance(event, LinkDetached)]
    assert told.error == detach.error
    assert not script.connection.sessions[0].is_ended
    return condition(detach.error)


# -- attaching and detaching ------------------------------------------------------------------------------


def test_accepting_echoes_name_and_settle_modes_and_says_the_limits() -> None:
    script = opened()
    script.frame(0, Attach("in", 3, False, 0, 1, Source("s"), Target("q"), initial_delivery_count=5))
    link = script.connection.sessions[0].links[3]
    link.accept(Source("s"), Target("q"), {"a": 1}, max_message_size=262_144)
    (answer,) = script.heard(Attach)
    assert isinstance(answer, Attach)
    assert (answer.name, answer.role, answer.snd_settle_mode, answer.rcv_settle_mode) == ("in", True, 0, 1)
    assert answer.max_message_size == 262_144
    assert answer.properties == {"a": 1}
    assert answer.initial_delivery_count is None
    assert link.delivery_count == 5
    assert link.is_open


def test_a_sender_says_its_initial_delivery_count() -> None:
    script = opened()
    script.frame(0, Attach("out", 3, True, 1, 0, Source("q"), Target("t")))
    script.connection.sessions[0].links[3].accept(Source("q"), Target("t"))
    (answer,) = script.heard(Attach)
    assert isinstance(answer, Attach)
    assert (answer.role, answer.initial_delivery_count, answer.snd_settle_mode) == (False, 0, 1)


@pytest.mark.parametrize("we_send", [True, False])
def test_refusing_is_an_attach_to_nowhere_and_a_closing_detach(we_send: bool) -> None:
    script = opened()
    link = script.attach(3, we_send=we_send)
    link.refuse(AmqpError("amqp:not-found", "no such queue"))
    attach, detach = [body for _, body, _ in script.hear()]
    assert isinstance(attach, Attach)
    assert isinstance(detach, Detach)
    assert attach.source is None and attach.target is None
    assert attach.initial_delivery_count == (0 if we_send else None)
    assert detach.closed
    assert condition(detach.error) == "amqp:not-found"
    script.events.clear()
    script.frame(0, Detach(3, True))
    assert [type(event) for event in script.events] == [DetachConfirmed]
    assert not script.connection.sessions[0].links


def test_errors_have_three_fields_on_the_wire() -> None:
    script, link = receiving()
    link.detach(AmqpError("amqp:not-found"))
    script.hear()
    error = b"\x00\x53\x1d\xc0\x13\x03\xa3\x0eamqp:not-found\x40\x40"
    assert script.raw.endswith(b"\x41" + error), "condition, description and info, the last two null"


@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_answered_in_kind_and_told(closed: bool) -> None:
    script, link = receiving()
    script.frame(0, Detach(0, closed, AmqpError("amqp:internal-error")))
    (answer,) = script.heard(Detach)
    assert answer == Detach(0, closed)
    (event,) = script.events
    assert isinstance(event, LinkDetached)
    assert (event.link, event.closed) == (link, closed)
    assert condition(event.error) == "amqp:internal-error"


def test_a_link_that_is_detached_while_the_owner_decides_gets_its_attach_first() -> None:
    script = opened()
    link = script.attach(3, we_send=True)
    script.frame(0, Detach(3, True))
    assert [type(body) for _, body, _ in script.hear()] == [Attach, Detach]
    assert link.is_detached
    assert isinstance(script.events[-1], LinkDetached)


def test_an_answer_to_a_link_that_has_gone_says_nothing() -> None:
    script = opened()
    one = script.attach(3, we_send=True)
    two = script.attach(4)
    script.frame(0, Detach(3, True))
    script.frame(0, Detach(4, True))
    script.hear()
    one.accept(Source("q"), Target("t"))
    two.refuse(AmqpError("amqp:not-found"))
    two.grant(10)
    assert not script.hear()


def test_what_was_on_its_way_when_we_detached_is_ignored() -> None:
    script, link = receiving()
    link.detach()
    script.hear()
    script.transfer(0, 0)
    script.flow(0, 10)
    assert not script.hear()
    assert not script.events


def test_a_delivery_that_was_on_its_way_when_we_detached_with_an_error_is_rejected_with_it_once() -> None:
    script, link = receiving()
    error = AmqpError("amqp:not-found", "Gone.")
    link.detach(error)
    script.hear()
    script.frame(0, Transfer(0, 7, b"t", 0, False, True), b"first part")
    script.frame(0, Transfer(0, 7, b"t", 0, False, False), b"last part")
    script.frame(0, Transfer(0, 8, b"u", 0, True, False), b"settled by its sender")
    assert script.heard(Disposition) == [Disposition(True, 7, 7, True, Rejected(error))]
    assert not script.events


def test_a_delivery_that_was_half_there_when_we_detached_with_an_error_is_rejected_before_the_detach() -> None:
    script, link = receiving()
    script.frame(0, Transfer(0, 7, b"t", 0, False, True), b"first part")
    link.detach(AmqpError("amqp:not-found", "Gone."))
    script.frame(0, Transfer(0, None, None, None, None, False), b"last part")
    assert [type(body) for _, body, _ in script.hear()] == [Disposition, Detach]
    assert not script.events


def test_a_client_hears_only_of_the_detach_when_it_is_refused() -> None:
    script = Script(is_server=False, options=ConnectionOptions("us"))
    script.connection.open()
    session = script.connection.begin()
    link = session.attach_receiver("r", Source("q"), Target("t"))
    link.grant(10)
    script.give(b"AMQP\x00\x01\x00\x00")
    script.frame(0, Open("peer"))
    script.frame(0, Begin(0, 0, WINDOW, WINDOW))
    flow = script.hear()[-1][1]
    assert isinstance(flow, Flow)
    assert flow.delivery_count is None, "we cannot know the sender's count yet"
    script.events.clear()
    script.frame(0, Attach("r", 8, False, initial_delivery_count=0))
    script.frame(0, Detach(8, True, AmqpError("amqp:not-found")))
    (event,) = script.events
    assert isinstance(event, LinkDetached)
    assert event.link is link
    assert not [event for event in script.events if isinstance(event, LinkAttached)]
    (answer,) = script.heard(Detach)
    assert answer == Detach(0, True)


def test_a_client_that_detached_before_the_answer_recognises_it() -> None:
    script = Script(is_server=False, options=ConnectionOptions("us"))
    script.connection.open()
    session = script.connection.begin()
    link = session.attach_sender("s", Source("q"), Target("t"))
    link.detach()
    script.give(b"AMQP\x00\x01\x00\x00")
    script.frame(0, Open("peer"))
    script.frame(0, Begin(0, 0, WINDOW, WINDOW))
    script.events.clear()
    script.frame(0, Attach("s", 8, True, source=Source("q"), target=Target("t")))
    script.frame(0, Detach(8, True))
    assert [type(event) for event in script.events] == [DetachConfirmed]
    assert not session.links


# -- credit of a sender -----------------------------------------------------------------------------------


def test_credit_is_absolute() -> None:
    script, link = sending()
    script.flow(0, 10)
    assert link.credit == 10
    for _ in range(4):
        link.send(b"t", b"", True)
    assert link.credit == 6
    script.flow(0, 10)  # granted before it saw any of the four
    assert link.credit == 6
    script.flow(0, 10, delivery_count=4)
    assert link.credit == 10
    script.flow(0, 2, delivery_count=1)
    assert link.credit == 0
    assert [type(event) for event in script.events] == [FlowReceived] * 4


@given(sent=st.integers(0, LAST), seen_back=st.integers(0, 1000), credit=st.integers(0, LAST))
def test_credit_is_absolute_at_the_wrap(sent: int, seen_back: int, credit: int) -> None:
    script, link = sending()
    link.delivery_count = sent
    script.flow(0, credit, delivery_count=(sent - seen_back) & LAST)
    assert link.credit == max(credit - seen_back, 0)


def test_a_flow_before_our_answer_is_kept_until_it() -> None:
    script = opened()
    link = script.attach(0, we_send=True)
    script.events.clear()
    script.frame(0, Flow(0, WINDOW, 0, WINDOW, 0, None, 10, drain=True))
    assert not script.events
    assert link.credit == 10
    link.accept(Source("q"), Target("t"))
    (event,) = script.connection.drain_events()
    assert isinstance(event, FlowReceived)
    assert event.drain


def test_a_drain_gives_the_rest_of_the_credit_back() -> None:
    script, link = sending()
    script.flow(0, 10, drain=True)
    (event,) = script.events
    assert isinstance(event, FlowReceived)
    assert event.drain
    link.send(b"t", b"", True)
    link.drained()
    transfer, flow = [body for _, body, _ in script.hear()]
    assert isinstance(transfer, Transfer)
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit, flow.drain) == (0, 10, 0, True)
    assert (link.credit, link.delivery_count) == (0, 10)


def test_a_drain_without_credit_is_answered_too() -> None:
    script, link = sending()
    script.flow(0, 0, drain=True)
    link.drained()
    (flow,) = script.heard(Flow)
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (0, 0, True)


def test_a_drain_is_answered_behind_what_waits_for_the_window() -> None:
    script, link = sending()
    script.frame(0, Flow(0, 1, 0, WINDOW, 0, 0, 5, drain=True))
    link.send(b"a", b"", True)
    link.send(b"b", b"", True)
    link.drained()
    assert [type(body) for _, body, _ in script.hear()] == [Transfer]
    script.frame(0, Flow(1, 5, 0, WINDOW))
    transfer, flow = [body for _, body, _ in script.hear()]
    assert isinstance(transfer, Transfer)
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit) == (5, 0)


def test_an_echo_is_answered_with_what_has_left_not_with_what_waits() -> None:
    script, link = sending()
    script.frame(0, Flow(0, 1, 0, WINDOW, 0, 0, 5))
    link.send(b"a", b"", True)
    link.send(b"b", b"", True)
    script.hear()
    script.frame(0, Flow(1, 0, 0, WINDOW, 0, 0, 5, echo=True))
    (flow,) = script.heard(Flow)
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 1, 4)


def test_a_storm_of_echoes_is_answered_once() -> None:
    script, _ = sending()
    for _ in range(100):
        script.flow(0, 10, echo=True)
    assert len(script.heard(Flow)) == 1


def test_deliveries_of_a_detached_link_are_forgotten() -> None:
    script, link = sending()
    script.flow(0, 10)
    link.send(b"a", b"", False)
    script.frame(0, Detach(0, True))
    script.events.clear()
    script.frame(0, Disposition(True, 0, 0, True, ACCEPTED))
    assert not [event for event in script.events if isinstance(event, DispositionReceived)]
    script.hear()
    link.session.settle_sent(0, ACCEPTED)
    assert not script.hear()


def test_a_large_delivery_is_cut_to_the_peers_frame_size() -> None:
    script = Script()
    script.log_in()
    script.give(b"AMQP\x00\x01\x00\x00")
    script.frame(0, Open("peer", max_frame_size=512))
    script.begin(0)
    link = script.attached(0, we_send=True)
    script.hear()
    payload = bytes(range(256)) * 20
    link.send(b"x" * 32, payload, False, 0x80013700)
    data = b"".join(script.connection.drain_output())
    sizes = []
    while data:
        size = int.from_bytes(data[:4], "big")
        sizes.append(size)
        data = data[size:]
    assert max(sizes) <= 512
    assert len(sizes) == -(-len(payload) // (512 - 72))


# -- credit of a receiver ---------------------------------------------------------------------------------


def test_a_grant_is_a_flow_and_each_delivery_uses_one() -> None:
    script, link = receiving()
    link.grant(3)
    (flow,) = script.heard(Flow)
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 0, 3)
    for delivery_id in range(5):  # the Python sender ignores credit: never an error
        script.transfer(0, delivery_id)
    assert link.credit_left == -2
    assert link.delivery_count == 5
    assert not script.hear()


def test_a_senders_noise_about_its_credit_changes_nothing() -> None:
    script, link = receiving()
    for delivery_id in range(3):
        script.transfer(0, delivery_id)
    script.events.clear()
    script.flow(0, 10_000, delivery_count=0)
    assert (link.credit_left, link.delivery_count) == (97, 3)
    assert not script.events


def test_a_drain_ends_when_the_sender_gives_the_credit_back() -> None:
    script, link = receiving()
    link.grant(10, drain=True)
    script.transfer(0, 0)
    script.events.clear()
    script.flow(0, 0, delivery_count=10, drain=True)
    (event,) = script.events
    assert isinstance(event, FlowReceived)
    assert event.drain
    assert (link.credit_left, link.delivery_count) == (0, 10)


def test_a_drain_ends_when_the_credit_is_used_up() -> None:
    script, link = receiving()
    link.grant(2, drain=True)
    script.transfer(0, 0)
    script.transfer(0, 1)
    script.flow(0, 0, delivery_count=2, drain=True)
    assert [type(event) for event in script.events] == [TransferReceived, TransferReceived, FlowReceived]


def test_a_receivers_count_wraps() -> None:
    script = opened()
    script.frame(0, Attach("in", 0, False, source=Source("a"), target=Target("b"), initial_delivery_count=LAST))
    link = script.connection.sessions[0].links[0]
    link.accept(Source("a"), Target("b"))
    link.grant(3)
    script.transfer(0, 0)
    assert link.delivery_count == 0
    script.flow(0, 0, delivery_count=2, drain=True)
    assert (link.credit_left, link.delivery_count) == (0, 2)


# -- deliveries received ----------------------------------------------------------------------------------


def test_a_delivery_in_one_frame() -> None:
    script, link = receiving()
    script.frame(0, Transfer(0, 7, b"tag", 0x80013700, True, state=TransactionalState(b"txn")), b"payload")
    (event,) = script.events
    assert isinstance(event, TransferReceived)
    assert (event.link, event.delivery_id, event.tag, event.settled) == (link, 7, b"tag", True)
    assert (event.message_format, event.payload) == (0x80013700, b"payload")
    assert event.state == TransactionalState(b"txn")


@pytest.mark.parametrize("repeats", [True, False])
def test_a_delivery_in_many_frames_has_the_values_of_the_first(repeats: bool) -> None:
    script, _ = receiving()
    script.frame(0, Transfer(0, 7, b"tag", 5, None, True), b"one")
    for part, more in ((b"two", True), (b"", True), (b"three", False)):
        if repeats:
            script.frame(0, Transfer(0, 7, b"other", 9, False, more), part)
        else:
            script.frame(0, Transfer(0, more=more), part)
    (event,) = script.events
    assert isinstance(event, TransferReceived)
    assert (event.tag, event.message_format, event.settled) == (b"tag", 5, False)
    assert event.payload == b"onetwothree"
    assert script.connection.partial_bytes == 0


def test_a_delivery_is_settled_if_any_of_its_frames_says_so() -> None:
    script, _ = receiving()
    script.frame(0, Transfer(0, 7, b"tag", 0, False, True), b"one")
    script.frame(0, Transfer(0, settled=True, more=True), b"two")
    script.frame(0, Transfer(0), b"three")
    (event,) = script.events
    assert isinstance(event, TransferReceived)
    assert event.settled


def test_deliveries_of_two_links_may_interleave() -> None:
    script, _ = receiving()
    script.attached(1)
    script.events.clear()
    script.transfer(0, 0, b"a1", more=True)
    script.transfer(1, 1, b"b1", more=True)
    script.frame(0, Transfer(1), b"b2")
    script.frame(0, Transfer(0), b"a2")
    payloads = [event.payload for event in script.events if isinstance(event, TransferReceived)]
    assert payloads == [b"b1b2", b"a1a2"]


def test_an_aborted_delivery_is_dropped_and_its_bytes_freed() -> None:
    script, link = receiving()
    script.transfer(0, 0, b"x" * 100, more=True)
    assert script.connection.partial_bytes > 0
    script.frame(0, Transfer(0, aborted=True), b"ignored")
    assert script.connection.partial_bytes == 0
    script.frame(0, Transfer(0, 1, b"t", 0, False, aborted=True))
    script.transfer(0, 2, b"whole")
    assert [type(event) for event in script.events] == [TransferAborted, TransferAborted, TransferReceived]
    assert link.credit_left == 97


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(0, None, b"tag", 0, False),
        Transfer(0, 1, None, 0, False),
    ],
    ids=["no id", "no tag"],
)
def test_a_delivery_without_id_or_tag_ends_the_link(transfer: Transfer) -> None:
    script, _ = receiving()
    script.frame(0, transfer)
    assert detaching_condition(script) == "amqp:invalid-field"


def test_a_tag_of_more_than_32_bytes_ends_the_link() -> None:
    script, _ = receiving()
    script.frame(0, Transfer(0, 1, b"x" * 33, 0, False))
    assert detaching_condition(script) == "amqp:invalid-field"


def test_a_delivery_that_begins_inside_another_ends_the_link() -> None:
    script, _ = receiving()
    script.transfer(0, 0, b"x" * 100, more=True)
    script.transfer(0, 1, b"y")
    assert detaching_condition(script) == "amqp:invalid-field"
    assert script.connection.partial_bytes == 0


@pytest.mark.parametrize("frame_bytes", [1001, 250, 7])
def test_a_delivery_over_the_limit_is_dropped_as_it_comes_and_told_at_its_end(frame_bytes: int) -> None:
    script, link = receiving(bytes_max=1000)
    payload = bytes(1001)
    for at in range(0, len(payload), frame_bytes):
        part = payload[at : at + frame_bytes]
        script.frame(0, Transfer(0, 0, b"t", 0, False, at + frame_bytes < len(payload)), part)
        assert script.connection.partial_bytes <= (1000 // frame_bytes + 1) * (frame_bytes + 64)
    (event,) = script.events
    assert isinstance(event, TransferTooLarge)
    assert (event.link, event.delivery_id, event.size, event.settled) == (link, 0, 1001, False)
    assert script.connection.partial_bytes == 0
    assert link.is_open
    script.events.clear()
    script.transfer(0, 1, bytes(1000))
    assert [type(event) for event in script.events] == [TransferReceived]


def test_bytes_of_unfinished_deliveries_are_bounded_over_all_links() -> None:
    script, _ = receiving(ConnectionOptions("us", partial_bytes_max=10_000))
    script.attached(1)
    script.hear()
    script.events.clear()
    script.transfer(0, 0, bytes(6_000), more=True)
    script.transfer(1, 1, bytes(6_000), more=True)
    assert detaching_condition(script) == "amqp:resource-limit-exceeded"
    script.frame(0, Transfer(0), b"the rest")
    assert isinstance(script.events[-1], TransferReceived), "the other link goes on"
    assert script.connection.partial_bytes == 0


def test_many_tiny_frames_are_charged_for_more_than_their_bytes() -> None:
    script, _ = receiving(ConnectionOptions("us", partial_bytes_max=65 * 100))
    for _ in range(100):
        script.transfer(0, 0, b"x", more=True)
    assert not script.events
    script.transfer(0, 0, b"x", more=True)
    assert detaching_condition(script) == "amqp:resource-limit-exceeded"


def test_an_end_frees_the_bytes_of_unfinished_deliveries() -> None:
    script, _ = receiving()
    script.transfer(0, 0, bytes(6_000), more=True)
    script.frame(0, End())
    assert script.connection.partial_bytes == 0
    assert script.connection.links_count == 0
