"""The connection: opening and closing, channels, time, and bytes that are no AMQP."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.connection import CLOSE_WAIT_MS, LIGHT_FRAME_BYTES, Connection, ConnectionOptions
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    ConnectionOpened,
    SessionBegun,
    SessionEnded,
    TransferReceived,
)
from spillway.amqp.frames import AMQP_HEADER, EMPTY_FRAME, encode_frame
from spillway.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
)
from spillway.amqp.types import Symbol
from spillway.testing.wire import WirePair, client_options, server_options
from tests.amqp.script import NOW, WINDOW, Script, condition


def closing_condition(script: Script) -> str:
    """The error of our close, which must be the last frame, and which the owner must have heard once."""
    close = script.hear()[-1][1]
    assert isinstance(close, Close)
    (told,) = [event for event in script.events if isinstance(event, ConnectionClosed)]
    assert told.error == close.error
    return condition(close.error)


# -- opening and closing ----------------------------------------------------------------------------------


def test_our_open_says_every_field_up_to_the_idle_time_out() -> None:
    script = Script(options=ConnectionOptions("us", properties={"product": "spillway"}))
    script.give(AMQP_HEADER + encode_frame(0, Open("peer")))
    ((channel, answer, _),) = script.hear()
    assert isinstance(answer, Open)
    assert channel == 0
    assert (answer.container_id, answer.max_frame_size, answer.channel_max) == ("us", 65_536, 4_999)
    assert answer.idle_time_out == 240_000
    assert answer.properties == {"product": "spillway"}


def test_a_close_is_answered_and_told_with_its_error() -> None:
    script = Script()
    script.open()
    script.frame(0, Close(AmqpError("amqp:connection:forced", "bye")))
    ((_, answer, _),) = script.hear()
    assert isinstance(answer, Close)
    assert answer.error is None
    closed = script.events[-1]
    assert isinstance(closed, ConnectionClosed)
    assert closed.error == AmqpError("amqp:connection:forced", "bye")
    assert script.connection.is_closed


def test_our_close_waits_for_the_answer_and_says_nothing_behind_it() -> None:
    wire = WirePair()
    wire.open()
    session = wire.client.connection.begin()
    wire.pump()
    wire.server.connection.close(AmqpError("amqp:connection:forced", "shutting down"))
    assert not wire.server.connection.is_closed
    session.settle(0, None)
    wire.server.connection.close()
    wire.pump()
    assert wire.client.connection.is_closed
    assert wire.server.connection.is_closed
    assert condition(wire.client.pop(ConnectionClosed).error) == "amqp:connection:forced"
    assert wire.server.pop(ConnectionClosed).error is None


def test_a_peer_that_never_answers_our_close_is_left_after_a_while() -> None:
    script = Script()
    script.open()
    script.connection.close()
    assert script.connection.next_due_ms() == NOW + CLOSE_WAIT_MS
    script.connection.tick(NOW + CLOSE_WAIT_MS - 1)
    assert not script.connection.is_closed
    script.connection.tick(NOW + CLOSE_WAIT_MS)
    assert script.connection.is_closed
    assert script.connection.next_due_ms() == 0


def test_an_error_before_our_open_is_told_behind_an_open() -> None:
    script = Script()
    script.log_in()
    script.hear()
    script.give(AMQP_HEADER + encode_frame(0, Begin(None, 0, 1, 1)))
    assert [type(body) for _, body, _ in script.hear()] == [Open, Close]


def test_a_frame_size_below_the_minimum_is_refused() -> None:
    script = Script()
    script.log_in()
    script.give(AMQP_HEADER + encode_frame(0, Open("peer", max_frame_size=511)))
    assert closing_condition(script) == "amqp:invalid-field"


# -- channels ---------------------------------------------------------------------------------------------


def test_a_channel_above_channel_max_is_a_framing_error() -> None:
    for performative in (Begin(None, 0, 1, 1), End()):
        script = Script()
        script.open()
        script.frame(5_000, performative)
        assert closing_condition(script) == "amqp:connection:framing-error"


def test_a_channel_is_free_again_after_its_session_ended() -> None:
    script = Script()
    script.open()
    for _ in range(3):
        script.begin(7)
        script.frame(7, End())
    begun = [event.session for event in script.events if isinstance(event, SessionBegun)]
    ended = [event.session for event in script.events if isinstance(event, SessionEnded)]
    assert len(begun) == 3
    assert begun == ended
    assert not script.connection.sessions


def test_frames_on_a_session_the_peer_has_just_ended_are_ignored() -> None:
    script = Script()
    script.open()
    script.begin(1)
    script.attached(0, channel=1)
    script.frame(1, End())
    script.hear()
    script.events.clear()
    script.frame(1, Detach(0, True))
    script.transfer(0, 1, channel=1)
    script.frame(1, End())
    assert not script.hear()
    assert not script.events
    assert not script.connection.is_closed


def test_an_answer_to_a_begin_that_was_never_sent_is_refused() -> None:
    script = Script()
    script.open()
    script.frame(0, Begin(3, 0, 1, 1))
    assert closing_condition(script) == "amqp:illegal-state"


def test_our_channel_respects_the_peers_channel_max() -> None:
    script = Script()
    script.log_in()
    script.give(AMQP_HEADER + encode_frame(0, Open("peer", channel_max=3)))
    script.hear()
    script.begin(900)
    ((channel, answer, _),) = script.hear()
    assert isinstance(answer, Begin)
    assert (channel, answer.remote_channel) == (0, 900)


# -- time -------------------------------------------------------------------------------------------------


def test_heartbeats_keep_an_idle_connection_open() -> None:
    server = server_options()
    server.idle_timeout_ms = 60_000
    client = client_options()
    client.idle_timeout_ms = 30_000
    wire = WirePair(client, server)
    wire.open()
    for _ in range(40):
        wire.advance(10_000)
        wire.pump()
    assert not wire.server.connection.is_closed
    assert not wire.client.connection.is_closed


def test_an_empty_frame_is_written_at_half_the_peers_idle_time_out() -> None:
    script = Script()
    script.log_in()
    script.give(AMQP_HEADER + encode_frame(0, Open("peer", idle_time_out=60_000)))
    script.hear()
    assert script.connection.next_due_ms() == NOW + 30_000
    script.connection.tick(NOW + 29_999)
    assert not script.connection.drain_output()
    script.connection.tick(NOW + 30_000)
    assert script.connection.drain_output() == [EMPTY_FRAME]
    assert script.connection.next_due_ms() == NOW + 60_000


def test_nothing_is_due_for_peers_without_limits() -> None:
    script = Script(options=ConnectionOptions("us", idle_timeout_ms=0))
    script.give(AMQP_HEADER + encode_frame(0, Open("peer")))
    assert script.connection.next_due_ms() == 0
    script.connection.tick(NOW + 10**9)
    assert not script.connection.is_closed


def test_a_silent_peer_is_closed_after_twice_our_idle_time_out() -> None:
    script = Script()
    script.open()
    script.connection.tick(NOW + 479_999)
    assert not script.connection.is_closed
    script.connection.tick(NOW + 480_000)
    assert script.connection.is_closed
    script.events += script.connection.drain_events()
    assert closing_condition(script) == "amqp:resource-limit-exceeded"


def test_a_peer_that_never_even_opens_is_dropped() -> None:
    script = Script()
    script.connection.tick(NOW + 480_000)
    assert script.connection.is_closed
    assert not script.connection.drain_output()


def test_a_heartbeat_counts_as_a_sign_of_life() -> None:
    script = Script()
    script.open()
    script.connection.receive(EMPTY_FRAME, NOW + 400_000)
    script.connection.tick(NOW + 500_000)
    assert not script.connection.is_closed


# -- bytes that are no AMQP -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        b"\x00\x00\x00\x07\x02\x00\x00\x00",  # smaller than its header
        b"\x00\x01\x00\x01\x02\x00\x00\x00",  # larger than we allow
        b"\xff\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x00\x00\x10\x01\x00\x00\x00",  # the body begins inside the header
        b"\x00\x00\x00\x10\xff\x00\x00\x00",  # the body begins behind the frame
        b"\x00\x00\x00\x10\x02\x02\x00\x00",  # of no known type
    ],
)
def test_a_frame_that_cannot_be_one_is_a_framing_error(header: bytes) -> None:
    script = Script()
    script.open()
    script.give(header + bytes(8))
    assert closing_condition(script) == "amqp:connection:framing-error"
    assert script.connection.is_closed


def test_a_body_that_cannot_be_decoded_is_a_decode_error() -> None:
    script = Script()
    script.open()
    script.give(b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x10\xc0")
    assert closing_condition(script) == "amqp:decode-error"
    assert script.connection.is_closed


VALID: list[Performative] = [
    Open("peer"),
    Begin(None, 0, 10, 10),
    Attach("name", 3, True, source=Source("a"), target=Target("b")),
    Flow(0, 10, 0, 10, 0, 0, 10),
    Transfer(0, 1, b"tag", 0, False),
    Disposition(True, 0, 0, True),
    Detach(0, True, AmqpError("amqp:internal-error", "why", None)),
    End(),
    Close(),
]


@pytest.mark.parametrize("performative", VALID, ids=[type(one).__name__ for one in VALID])
def test_a_frame_cut_at_any_byte_waits_or_is_an_error(performative: Performative) -> None:
    whole = encode_frame(1, performative)
    for size in range(len(whole)):
        waiting = Script()
        waiting.open()
        waiting.begin(1)
        waiting.hear()
        waiting.events.clear()
        waiting.give(whole[:size])
        assert not waiting.events
        assert not waiting.hear()
        if size >= 8:  # the same bytes in a frame that claims to be no longer
            broken = Script()
            broken.open()
            broken.begin(1)
            broken.give(size.to_bytes(4, "big") + whole[4:size])
            assert broken.connection.is_closed or size == 8


@given(data=st.binary(max_size=300))
def test_no_bytes_make_a_fresh_connection_raise(data: bytes) -> None:
    script = Script()
    script.give(data)
    script.hear()


@given(data=st.binary(max_size=300))
def test_no_bytes_make_an_open_connection_raise(data: bytes) -> None:
    script = Script()
    script.open()
    script.begin(0)
    script.attached(0)
    script.give(data)
    script.hear()
    assert script.connection.bytes_kept <= 65_536


@given(
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    pick=st.sampled_from(VALID),
    body=st.binary(max_size=20),
)
def test_no_damaged_frame_makes_an_open_connection_raise(
    flips: list[tuple[int, int]], pick: Performative, body: bytes
) -> None:
    frame = bytearray(encode_frame(1, pick, body if isinstance(pick, Transfer) else b""))
    for at, value in flips:
        frame[8 + at % (len(frame) - 8)] = value
    script = Script()
    script.open()
    script.begin(1, WINDOW)
    script.attached(0, channel=1)
    script.attached(3, we_send=True, channel=1).send(b"t", b"x", False)
    script.give(bytes(frame))
    script.hear()


def test_bytes_may_come_one_at_a_time() -> None:
    wire = WirePair(chunk_bytes=1)
    wire.open()
    wire.client.connection.begin()
    wire.pump()
    wire.client.pop(ConnectionOpened)
    wire.client.pop(SessionBegun)


def test_no_more_frames_are_read_than_the_owner_asks_for_and_the_rest_is_read_when_it_asks_again() -> None:
    server = Connection(ConnectionOptions("server"), True, 0)
    opening = AMQP_HEADER + encode_frame(0, Open("client")) + encode_frame(0, Begin(None, 0, 100, 100))
    server.receive(opening, 0)
    flows = encode_frame(0, Flow(0, 100, 0, 100)) * 10
    server.receive(flows + flows[:5], 0, 4)
    before = server.frames_count
    assert server.is_cut
    assert server.bytes_kept == len(flows) // 10 * 6 + 5
    server.receive(b"", 0, 0)
    assert (server.frames_count, server.is_cut) == (before, True)
    server.receive(b"", 0, 6)
    server.receive(b"", 0, 1)
    assert (server.frames_count, server.is_cut) == (before + 6, False)
    server.receive(flows[5 : len(flows) // 10], 0, 1)
    server.receive(b"", 0, 1)
    assert (server.frames_count, server.is_cut, server.bytes_kept) == (before + 7, False, 0)


def test_a_large_frame_counts_as_many() -> None:
    server = Connection(ConnectionOptions("server"), True, 0)
    server.receive(AMQP_HEADER + encode_frame(0, Open("client")) + encode_frame(0, Begin(None, 0, 100, 100)), 0)
    weight_before = server.frames_weight
    frame = encode_frame(0, Flow(0, 5_000, 0, 5_000, properties={"x": "y" * 10 * LIGHT_FRAME_BYTES}))
    before = server.frames_count
    server.receive(frame * 20, 0, frames_max=22)
    assert (server.frames_count - before, server.is_cut) == (2, True)
    server.receive(b"", 0, 1_000)
    assert (server.frames_count - before, server.is_cut) == (20, False)
    assert server.frames_weight - weight_before == 20 * (1 + 10)


# -- the peer's bounds --------------------------------------------------------------------------------------


def bounded(
    *,
    sessions_max: int = 10,
    links_max: int = 10,
    elements_max: int = 1_000,
    partial_bytes_max: int = 10_000,
    weighs_frames: bool = True,
) -> Script:
    """An open session on a connection whose bounds were not set before it was open."""
    script = Script()
    script.open()
    script.begin(0)
    script.connection.set_bounds(
        sessions_max=sessions_max,
        links_max=links_max,
        elements_max=elements_max,
        partial_bytes_max=partial_bytes_max,
        weighs_frames=weighs_frames,
    )
    script.hear()
    script.events.clear()
    return script


def test_bounds_count_from_when_they_are_set() -> None:
    script = bounded(sessions_max=2)
    script.begin(1)
    assert not script.connection.is_closing
    script.begin(2)
    assert closing_condition(script) == "amqp:resource-limit-exceeded"


def test_links_that_were_attached_before_a_lower_bound_stay() -> None:
    script = bounded(links_max=2)
    links = [script.attached(0), script.attached(1)]
    script.connection.set_bounds(
        sessions_max=1, links_max=1, elements_max=1_000, partial_bytes_max=10_000, weighs_frames=True
    )
    script.frame(0, Detach(1, True))
    script.hear()
    script.events.clear()
    script.frame(0, Attach("third", 1, True, source=Source("a"), target=Target("b")))
    assert not script.events, "the owner never hears of it"
    (refused,) = script.heard(Detach)
    assert isinstance(refused, Detach)
    assert condition(refused.error) == "amqp:resource-limit-exceeded"
    assert links[0].is_open


def test_a_peer_that_is_trusted_may_say_more_in_a_frame() -> None:
    script = bounded(elements_max=40)
    script.attached(0)  # a frame by the lower bound
    script.connection.set_bounds(
        sessions_max=10, links_max=10, elements_max=1_000, partial_bytes_max=10_000, weighs_frames=True
    )
    properties: dict[object, object] = {Symbol("many"): [True] * 60}
    script.frame(0, Attach("l", 1, True, source=Source("a"), target=Target("b"), properties=properties))
    assert isinstance(script.events[-1], AttachRequested)


def test_bytes_of_unfinished_deliveries_are_bounded_as_was_set() -> None:
    script = bounded(partial_bytes_max=1_000)
    script.attached(0)
    script.attached(1)
    script.hear()
    script.transfer(0, 0, bytes(800), more=True)
    script.transfer(1, 1, bytes(800), more=True)
    (ended,) = script.heard(Detach)
    assert isinstance(ended, Detach)
    assert condition(ended.error) == "amqp:resource-limit-exceeded"
    script.frame(0, Transfer(0), b"the rest")
    assert isinstance(script.events[-1], TransferReceived), "what was begun within the bound is finished"


def test_frames_are_weighed_when_they_are_to_be() -> None:
    frame = encode_frame(0, Flow(0, 5_000, 0, 5_000, properties={"x": "y" * 10 * LIGHT_FRAME_BYTES}))
    weights = []
    for weighs_frames in (False, True):
        script = bounded(weighs_frames=weighs_frames)
        before = script.connection.frames_weight
        script.give(frame)
        weights.append(script.connection.frames_weight - before)
    assert weights == [1, 11]


def test_options_are_their_owners_and_stay_as_they_are() -> None:
    options = ConnectionOptions("us")
    first = Connection(options, True, NOW)
    first.set_bounds(sessions_max=1, links_max=1, elements_max=1, partial_bytes_max=1, weighs_frames=False)
    second = Connection(options, True, NOW)
    assert (second.sessions_max, second.links_max, second.weighs_frames) == (5_000, 5_000, True)
