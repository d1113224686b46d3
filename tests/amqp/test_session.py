"""Sessions: windows both ways, delivery ids, dispositions and handles."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.connection import ConnectionOptions
from spillway.amqp.dispositions import is_said_alike
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    DispositionReceived,
    EndConfirmed,
    IncomingSettled,
    LinkDetached,
    SessionEnded,
    TransferReceived,
    WindowOpened,
)
from spillway.amqp.frames import encode_frame
from spillway.amqp.link import Link
from spillway.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Attach,
    Begin,
    DeliveryState,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Received,
    Rejected,
    Source,
    Target,
    Transfer,
)
from spillway.amqp.types import Symbol
from tests.amqp.script import WINDOW, Script, condition

LAST = (1 << 32) - 1


def opened(options: ConnectionOptions | None = None, incoming_window: int = WINDOW) -> Script:
    script = Script(options=options)
    script.open()
    script.begin(0, incoming_window)
    script.hear()
    script.events.clear()
    return script


def ending_condition(script: Script) -> str:
    """The error of our end, which the owner must have heard once; the connection lives on."""
    (end,) = [body for _, body, _ in script.hear() if isinstance(body, End)]
    (told,) = [event for event in script.events if isinstance(event, SessionEnded)]
    assert told.error == end.error
    assert not script.connection.is_closed
    return condition(end.error)


def transfers(script: Script) -> list[tuple[Transfer, bytes]]:
    return [(body, payload) for _, body, payload in script.hear() if isinstance(body, Transfer)]


# -- beginning and ending ---------------------------------------------------------------------------------


def test_our_begin_names_channel_windows_and_handle_max() -> None:
    script = Script()
    script.open()
    script.begin(9)
    ((channel, begin, _),) = script.hear()
    assert isinstance(begin, Begin)
    assert (channel, begin.remote_channel, begin.next_outgoing_id) == (9, 9, 0)
    assert begin.incoming_window == (1 << 31) - 1
    assert begin.handle_max == 4_999


def test_an_end_takes_the_links_with_it_and_tells_only_the_session() -> None:
    script = opened()
    link = script.attached(4)
    script.events.clear()
    script.frame(0, End(AmqpError("amqp:internal-error", "sorry")))
    (event,) = script.events
    assert isinstance(event, SessionEnded)
    assert event.error is not None
    assert list(event.session.links.values()) == [link]
    assert link.is_detached
    assert event.session.is_ended


def test_our_own_end_is_confirmed() -> None:
    script = opened()
    session = script.connection.sessions[0]
    session.end(AmqpError("amqp:internal-error", "ours"))
    script.begin(1)
    script.events.clear()
    script.frame(0, End())
    (event,) = script.events
    assert isinstance(event, EndConfirmed)
    assert 0 not in script.connection.sessions


# -- the peer's window ------------------------------------------------------------------------------------


def test_deliveries_beyond_the_peers_window_wait_and_leave_in_order_when_it_opens() -> None:
    script = opened(incoming_window=3)
    link = script.attach(0, we_send=True)
    assert link.attach is not None
    link.accept(link.attach.source, link.attach.target)
    script.frame(0, Flow(0, 3, 0, WINDOW, 0, 0, 100))
    for number in range(8):
        assert link.send(bytes([number]), b"payload", True) == number
    assert [body.delivery_id for body, _ in transfers(script)] == [0, 1, 2]
    assert link.unsent == 5
    assert link.session.window == 0
    script.events.clear()
    script.frame(0, Flow(2, 3, 0, WINDOW))
    assert [body.delivery_id for body, _ in transfers(script)] == [3, 4]
    assert not [event for event in script.events if isinstance(event, WindowOpened)], "it is shut again"
    script.frame(0, Flow(5, 30, 0, WINDOW))
    assert [body.delivery_id for body, _ in transfers(script)] == [5, 6, 7]
    assert [type(event) for event in script.events] == [WindowOpened]
    assert link.unsent == 0


def test_a_window_that_was_used_up_exactly_is_told_when_it_opens() -> None:
    script = opened(incoming_window=2)
    link = script.attached(0, we_send=True)
    script.frame(0, Flow(0, 2, 0, WINDOW))
    link.send(b"a", b"", True)
    link.send(b"b", b"", True)
    assert link.session.window == 0
    script.events.clear()
    script.frame(0, Flow(0, 2, 0, WINDOW))
    assert not script.events
    script.frame(0, Flow(2, 2, 0, WINDOW))
    assert [type(event) for event in script.events] == [WindowOpened]
    script.frame(0, Flow(2, 5, 0, WINDOW))
    assert len(script.events) == 1


def test_a_large_delivery_stops_before_a_shut_window_and_goes_on_behind_it() -> None:
    script = opened(ConnectionOptions("us", max_frame_size=512), incoming_window=2)
    link = script.attached(0, we_send=True)
    script.frame(0, Flow(0, 2, 0, WINDOW, 0, 0, 100))
    payload = bytes(range(256)) * 8
    link.send(b"large", payload, False)
    link.send(b"small", b"x", False)
    first = transfers(script)
    assert [body.more for body, _ in first] == [True, True]
    assert first[0][0].delivery_tag == b"large"
    assert first[1][0].delivery_id is None
    assert link.unsent == 1
    script.frame(0, Flow(2, 100, 0, WINDOW))
    rest = transfers(script)
    assert b"".join(part for _, part in (first + rest)[:-1]) == payload
    assert [body.more for body, _ in rest][-2:] == [False, False]
    assert rest[-1][0].delivery_tag == b"small"


def test_a_flow_without_a_next_incoming_id_counts_from_our_first_id() -> None:
    script = opened()
    link = script.attached(0, we_send=True)
    link.send(b"a", b"", True)
    script.frame(0, Flow(None, 10, 0, WINDOW))
    assert link.session.window == 9


def test_a_peer_that_claims_ids_we_never_sent_gets_no_larger_window() -> None:
    script = opened()
    link = script.attached(0, we_send=True)
    script.frame(0, Flow(500, 10, 0, WINDOW))
    assert link.session.window == 10


def test_withdrawn_deliveries_leave_no_gap_in_the_ids() -> None:
    script = opened(incoming_window=1)
    script.frame(0, Flow(0, 1, 0, WINDOW))
    one = script.attach(0, we_send=True)
    two = script.attach(1, we_send=True)
    for link in (one, two):
        assert link.attach is not None
        link.accept(link.attach.source, link.attach.target)
    script.frame(0, Flow(0, 1, 0, WINDOW, 0, 0, 10))
    script.frame(0, Flow(0, 1, 0, WINDOW, 1, 0, 10))
    one.send(b"1a", b"", False)
    one.send(b"1b", b"", False)
    two.send(b"2a", b"", False)
    one.send(b"1c", b"", False)
    two.send(b"2b", b"", False)
    assert one.drain_unsent() == [b"1b", b"1c"]
    assert one.unsent == 0
    assert one.credit == 9
    assert one.delivery_count == 1
    script.frame(0, Flow(1, 10, 0, WINDOW))
    assert [(body.delivery_id, body.delivery_tag) for body, _ in transfers(script)] == [
        (0, b"1a"),
        (1, b"2a"),
        (2, b"2b"),
    ]
    assert two.send(b"2c", b"", False) == 3


def test_a_link_that_goes_keeps_the_tags_that_never_left() -> None:
    script = opened(incoming_window=1)
    link = script.attached(0, we_send=True)
    script.frame(0, Flow(0, 1, 0, WINDOW))
    for tag in (b"a", b"b", b"c"):
        link.send(tag, b"", False)
    script.frame(0, Detach(0, True))
    assert link.drain_unsent() == [b"b", b"c"]
    assert link.drain_unsent() == []
    script.hear()
    script.frame(0, Flow(1, 10, 0, WINDOW))
    assert not transfers(script)


def test_a_session_that_goes_keeps_the_tags_that_never_left() -> None:
    script = opened(incoming_window=1)
    link = script.attached(0, we_send=True)
    script.frame(0, Flow(0, 1, 0, WINDOW))
    for tag in (b"a", b"b", b"c"):
        link.send(tag, b"", False)
    script.frame(0, End())
    assert link.drain_unsent() == [b"b", b"c"]


def test_a_delivery_cut_off_by_a_detach_is_not_continued() -> None:
    script = opened(ConnectionOptions("us", max_frame_size=512), incoming_window=1)
    link = script.attached(0, we_send=True)
    script.frame(0, Flow(0, 1, 0, WINDOW))
    link.send(b"large", bytes(2_000), False)
    assert len(transfers(script)) == 1
    link.detach()
    assert link.drain_unsent() == []
    script.hear()
    script.frame(0, Flow(1, 10, 0, WINDOW))
    assert not transfers(script)


# -- our window -------------------------------------------------------------------------------------------


def test_our_window_is_topped_up_before_it_is_half_empty() -> None:
    script = opened(ConnectionOptions("us", incoming_window=8))
    script.attached(0)
    script.hear()
    for delivery_id in range(5):
        script.transfer(0, delivery_id)
    (flow,) = script.heard(Flow)
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.next_incoming_id, flow.incoming_window) == (None, 5, 8)


def test_transfers_beyond_our_window_end_the_session() -> None:
    script = opened(ConnectionOptions("us", incoming_window=4))
    script.attached(0)
    script.hear()
    for delivery_id in range(5):
        script.transfer(0, delivery_id)
    assert ending_condition(script) == "amqp:session:window-violation"
    assert len([event for event in script.events if isinstance(event, TransferReceived)]) == 4


def test_the_peers_own_count_of_transfers_is_not_believed() -> None:
    script = opened()
    script.attached(0)
    script.transfer(0, 0, more=True)
    script.frame(0, Transfer(0, 0, b"tag", 0, False), b"y")
    script.frame(0, Flow(0, WINDOW, 1, WINDOW))  # Python counts the two frames as one
    script.frame(0, Flow(0, WINDOW, 4_000_000_000, WINDOW))
    assert not script.connection.sessions[0].is_ended


# -- dispositions -----------------------------------------------------------------------------------------


def sender_with_unsettled(count: int) -> tuple[Script, Link]:
    script = opened()
    link = script.attached(0, we_send=True, credit=max(count, 1))
    for number in range(count):
        link.send(bytes([number]), b"", False)
    script.hear()
    script.events.clear()
    return script, link


def test_a_settled_disposition_is_told_once_and_forgotten() -> None:
    script, link = sender_with_unsettled(5)
    script.frame(0, Disposition(True, 1, 3, True, ACCEPTED))
    script.frame(0, Disposition(True, 1, 3, True, ACCEPTED))
    (event,) = script.events
    assert isinstance(event, DispositionReceived)
    assert [delivery.tag for delivery in event.deliveries] == [b"\x01", b"\x02", b"\x03"]
    assert all(delivery.link is link for delivery in event.deliveries)
    assert event.settled
    assert event.state == ACCEPTED


def test_an_unsettled_disposition_is_answered_by_the_owner() -> None:
    script, link = sender_with_unsettled(2)
    script.frame(0, Disposition(True, 0, None, False, RELEASED))
    (event,) = script.events
    assert isinstance(event, DispositionReceived)
    assert not event.settled
    link.session.settle_sent(event.deliveries[0].delivery_id, RELEASED)
    link.session.settle_sent(event.deliveries[0].delivery_id, RELEASED)
    (echo,) = script.heard(Disposition)
    assert echo == Disposition(False, 0, 0, True, RELEASED)
    script.events.clear()
    script.frame(0, Disposition(True, 0, None, True, ACCEPTED))
    assert not script.events


def test_an_outcome_said_again_while_the_owner_owes_its_answer_is_not_told_again() -> None:
    script, link = sender_with_unsettled(200)
    for _ in range(50):
        script.frame(0, Disposition(True, 0, 1 << 30, False, ACCEPTED))
        script.frame(0, Disposition(True, 0, 1 << 30, False, Received(0, 0)))
    (event,) = script.events
    assert isinstance(event, DispositionReceived)
    assert len(event.deliveries) == 200
    for delivery in event.deliveries:
        link.session.settle_sent(delivery.delivery_id, ACCEPTED)
    assert script.heard(Disposition) == [Disposition(False, 0, 199, True, ACCEPTED)]
    assert not link.session.outgoing.disposed


@pytest.mark.parametrize(("first", "last"), [(100, 200), (3, 1), (0, LAST), (LAST, LAST - 5)])
def test_ids_never_sent_and_ranges_that_are_none_are_ignored(first: int, last: int) -> None:
    script, _ = sender_with_unsettled(3)
    script.frame(0, Disposition(True, first, last, True, ACCEPTED))
    assert not script.events
    assert not script.hear()


def test_a_range_of_half_the_ids_costs_no_more_than_what_is_outstanding() -> None:
    script, _ = sender_with_unsettled(3)
    started = time.process_time()
    script.frame(0, Disposition(True, 1, 1 + (1 << 31) - 1, True, ACCEPTED))
    assert time.process_time() - started < 1
    (event,) = script.events
    assert isinstance(event, DispositionReceived)
    assert len(event.deliveries) == 2


def test_a_disposition_in_the_senders_role_is_about_what_we_received() -> None:
    script, _ = sender_with_unsettled(1)
    script.frame(0, Disposition(False, 7, None, True, ACCEPTED))
    (event,) = script.events
    assert isinstance(event, IncomingSettled)
    assert (event.first, event.last, event.state) == (7, 7, ACCEPTED)
    script.frame(0, Disposition(False, 7, 9, False, ACCEPTED))
    assert len(script.events) == 1


def test_settlements_of_a_run_of_ids_are_one_frame() -> None:
    script = opened()
    session = script.connection.sessions[0]
    for delivery_id in (4, 5, 6, 7):
        session.settle(delivery_id, ACCEPTED)
    session.settle(8, RELEASED)
    session.settle(10, RELEASED)
    session.dispose(11, RELEASED)
    assert script.connection.output_bytes > 0
    assert script.heard(Disposition) == [
        Disposition(True, 4, 7, True, ACCEPTED),
        Disposition(True, 8, 8, True, RELEASED),
        Disposition(True, 10, 10, True, RELEASED),
        Disposition(True, 11, 11, False, RELEASED),
    ]
    assert not script.hear()


def test_a_run_goes_on_over_the_wrap_of_the_ids() -> None:
    script = opened()
    session = script.connection.sessions[0]
    for delivery_id in (LAST - 1, LAST, 0, 1):
        session.settle(delivery_id, ACCEPTED)
    assert script.heard(Disposition) == [Disposition(True, LAST - 1, 1, True, ACCEPTED)]


def test_what_was_said_of_deliveries_comes_before_the_detach_and_the_end() -> None:
    script = opened()
    link = script.attached(0)
    script.hear()
    link.session.settle(0, ACCEPTED)
    link.detach()
    link.session.settle(1, ACCEPTED)
    link.session.end()
    link.session.settle(2, ACCEPTED)
    assert [type(body) for _, body, _ in script.hear()] == [Disposition, Detach, Disposition, End]


def test_states_with_something_particular_are_said_one_by_one() -> None:
    error = Rejected(AmqpError("amqp:internal-error", "one"))
    assert is_said_alike(ACCEPTED, ACCEPTED)
    assert is_said_alike(None, None)
    assert is_said_alike(Rejected(), Rejected())
    assert is_said_alike(Modified(True, False), Modified(True, False))
    pairs: list[tuple[DeliveryState | None, DeliveryState | None]] = [
        (ACCEPTED, RELEASED),
        (None, ACCEPTED),
        (error, error),
        (Modified(True, False), Modified(True, True)),
        (Modified(True, False, {"a": 1}), Modified(True, False, {"a": 1})),
        (RELEASED, Modified()),
    ]
    for one, other in pairs:
        assert not is_said_alike(one, other)
        assert not is_said_alike(other, one)


@given(
    start=st.integers(0, LAST),
    steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([ACCEPTED, RELEASED])), max_size=30),
)
def test_every_settlement_is_said_exactly_once(start: int, steps: list[tuple[int, DeliveryState]]) -> None:
    script = opened()
    session = script.connection.sessions[0]
    delivery_id = start
    expected: list[tuple[int, DeliveryState]] = []
    for step, state in steps:
        delivery_id = (delivery_id + 1 + step) & LAST
        session.settle(delivery_id, state)
        expected.append((delivery_id, state))
    said: list[tuple[int, DeliveryState | None]] = []
    for body in script.heard(Disposition):
        assert isinstance(body, Disposition)
        last = body.first if body.last is None else body.last
        said += [((body.first + i) & LAST, body.state) for i in range(((last - body.first) & LAST) + 1)]
    assert said == expected


# -- delivery ids and handles -----------------------------------------------------------------------------


@pytest.mark.parametrize("delivery_id", [5, 4, 0, (5 + (1 << 31)) & LAST])
def test_an_id_that_does_not_follow_the_last_is_taken_like_any_other(delivery_id: int) -> None:
    """The Python SDK gives several requests under way the same one, and Azure takes whatever comes."""
    script = opened()
    script.attached(0)
    script.attached(1)
    script.transfer(0, 5)
    script.transfer(0, delivery_id)
    script.transfer(1, delivery_id)
    received = [event for event in script.events if isinstance(event, TransferReceived)]
    assert [event.delivery_id for event in received] == [5, delivery_id, delivery_id]
    for event in received:
        event.link.session.settle(event.delivery_id, ACCEPTED)
    said = script.heard(Disposition)
    assert [(body.first, body.last) for body in said if isinstance(body, Disposition)] == [
        (5, 5),
        (delivery_id, delivery_id),
        (delivery_id, delivery_id),
    ]


def test_ids_follow_each_other_over_the_wrap() -> None:
    script = opened()
    script.attached(0)
    for delivery_id in (LAST - 1, LAST, 0, 1):
        script.transfer(0, delivery_id)
    received = [event for event in script.events if isinstance(event, TransferReceived)]
    assert [event.delivery_id for event in received] == [LAST - 1, LAST, 0, 1]


def test_a_handle_above_handle_max_is_a_framing_error() -> None:
    script = opened()
    script.frame(0, Attach("far", 5_000, False, source=Source(), target=Target()))
    closed = script.events[-1]
    assert isinstance(closed, ConnectionClosed)
    assert condition(closed.error) == "amqp:connection:framing-error"


def test_a_handle_is_free_again_after_its_link_was_detached() -> None:
    script = opened()
    for _ in range(3):
        script.attached(2)
        script.frame(0, Detach(2, True))
    assert len([event for event in script.events if isinstance(event, AttachRequested)]) == 3
    assert not script.connection.sessions[0].links
    assert not script.connection.names
    assert script.connection.links_count == 0


def test_links_beyond_the_limit_are_refused_and_a_flood_of_them_closes() -> None:
    script = opened(ConnectionOptions("us", links_max=2))
    script.attached(0)
    script.attached(1)
    script.hear()
    script.events.clear()
    refused = Attach("third", 2, True, source=Source("a"), target=Target("b"))
    script.frame(0, refused)
    assert not script.events, "the owner never hears of it"
    attach, detach = [body for _, body, _ in script.hear()]
    assert isinstance(attach, Attach)
    assert isinstance(detach, Detach)
    assert attach.source is None and attach.target is None
    assert condition(detach.error) == "amqp:resource-limit-exceeded"
    script.frame(0, Detach(2, True))
    assert not script.events
    for handle in range(2, 5):
        script.frame(0, Attach(f"flood-{handle}", handle, True, source=Source("a"), target=Target("b")))
    closed = script.events[-1]
    assert isinstance(closed, ConnectionClosed)
    assert condition(closed.error) == "amqp:resource-limit-exceeded"


def test_sessions_beyond_the_limit_close_the_connection() -> None:
    script = opened(ConnectionOptions("us", sessions_max=2))
    script.frame(1, Begin(None, 0, 10, 10))
    script.frame(2, Begin(None, 0, 10, 10))
    closed = script.events[-1]
    assert isinstance(closed, ConnectionClosed)
    assert condition(closed.error) == "amqp:resource-limit-exceeded"


def test_a_frame_of_more_elements_than_the_owner_allows_closes_the_connection() -> None:
    script = opened(ConnectionOptions("us", elements_max=40))
    properties: dict[object, object] = {Symbol("many"): [True] * 40}
    script.frame(0, Attach("l", 0, True, source=Source("a"), target=Target("b"), properties=properties))
    closed = script.events[-1]
    assert isinstance(closed, ConnectionClosed)
    assert condition(closed.error) == "amqp:decode-error"


def test_every_frame_may_have_as_many_elements_as_the_owner_allows() -> None:
    script = opened(ConnectionOptions("us", elements_max=120))
    for handle in range(5):
        properties: dict[object, object] = {Symbol("many"): [True] * 60}
        script.frame(
            0, Attach(f"l{handle}", handle, True, source=Source("a"), target=Target("b"), properties=properties)
        )
        assert isinstance(script.events[-1], AttachRequested)


def test_a_link_with_an_endless_name_ends_its_session() -> None:
    script = opened()
    script.frame(0, Attach("n" * 1_025, 0, True, source=Source("a"), target=Target("b")))
    ended = script.events[-1]
    assert isinstance(ended, SessionEnded)
    assert condition(ended.error) == "amqp:invalid-field"


def test_the_older_link_of_a_name_is_stolen_also_from_another_session() -> None:
    script = opened()
    script.begin(1)
    older = script.attached(0, name="shared")
    other_role = script.attached(1, we_send=True, name="shared")
    script.hear()
    script.events.clear()
    newer = script.attach(7, channel=1, name="shared")
    detached, requested = script.events
    assert isinstance(detached, LinkDetached)
    assert isinstance(requested, AttachRequested)
    assert detached.link is older
    assert condition(detached.error) == "amqp:link:stolen"
    assert requested.link is newer
    assert other_role.is_open
    ((channel, detach, _),) = script.hear()
    assert isinstance(detach, Detach)
    assert (channel, condition(detach.error)) == (0, "amqp:link:stolen")
    script.events.clear()
    script.frame(0, Detach(0, True))
    assert not script.events, "it was told already"
    newest = script.attach(8, channel=1, name="shared")
    assert newer.is_detached, "also one that was not accepted yet"
    assert not newest.is_detached


def test_a_session_flow_with_echo_is_answered_once_for_a_storm() -> None:
    script = opened()
    script.give(encode_frame(0, Flow(0, WINDOW, 0, WINDOW, echo=True)) * 1_000)
    (flow,) = script.heard(Flow)
    assert isinstance(flow, Flow)
    assert flow.handle is None
    assert not flow.echo


def test_a_link_that_ends_costs_what_it_had_outstanding_whatever_is_outstanding_beside_it() -> None:
    script = opened(incoming_window=1 << 30)
    holder = script.attached(0, we_send=True, credit=3_000)
    for number in range(3_000):
        holder.send(number.to_bytes(4, "big"), b"", False)
    outgoing = holder.session.outgoing
    for _ in range(500):
        other = script.attached(1, we_send=True, credit=2)
        other.send(b"a", b"", False)
        other.send(b"b", b"", False)
        script.frame(0, Detach(1, True))
    assert outgoing.walked_count <= 2 * 2 * 500 + 3_000  # it was 500 times 3,000
    assert len(outgoing.unsettled) <= 2 * 3_000 + 2


def test_nothing_said_of_the_deliveries_of_a_link_that_is_over_is_heard_and_it_is_met_once() -> None:
    script = opened(incoming_window=1 << 30)
    holder = script.attached(0, we_send=True, credit=10)
    other = script.attached(1, we_send=True, credit=3)
    for number in range(10):
        holder.send(b"%d" % number, b"", False)
    for number in range(3):
        other.send(b"o%d" % number, b"", False)
    script.frame(0, Detach(1, True))
    script.events.clear()
    outgoing = holder.session.outgoing
    assert len(outgoing.unsettled) == 13
    script.frame(0, Disposition(True, 10, 12, False, ACCEPTED))
    assert not script.events
    assert len(outgoing.unsettled) == 10
    script.frame(0, Disposition(True, 0, 1 << 30, True, ACCEPTED))
    (event,) = script.events
    assert isinstance(event, DispositionReceived)
    assert len(event.deliveries) == 10
    assert (holder.outstanding, outgoing.dead_count) == (0, 0)


def test_an_answer_owed_to_a_link_that_is_over_is_not_given() -> None:
    script = opened(incoming_window=1 << 30)
    holder = script.attached(0, we_send=True, credit=10)
    other = script.attached(1, we_send=True, credit=1)
    for number in range(10):
        holder.send(b"%d" % number, b"", False)
    other.send(b"o", b"", False)
    script.frame(0, Disposition(True, 10, None, False, ACCEPTED))
    script.frame(0, Detach(1, True))
    script.hear()
    other.session.settle_sent(10, ACCEPTED)
    assert not script.hear()
    assert holder.session.outgoing.dead_count == 0
