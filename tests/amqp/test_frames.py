"""The stream cut into frames, and the short ways held against the general one."""

import random
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.amqp.codec import DecodeBudget, encode
from spillway.amqp.errors import CONNECTION, DecodeError, ProtocolError
from spillway.amqp.frames import (
    AMQP,
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL,
    SASL_HEADER,
    Frame,
    FrameParser,
    decode_body,
    decode_general,
    decode_performative,
    encode_frame,
    encode_general,
    encode_sasl_frame,
)
from spillway.amqp.performatives import (
    ACCEPTED,
    Accepted,
    Close,
    Disposition,
    Flow,
    Performative,
    Rejected,
    SaslInit,
    SaslOutcome,
    Transfer,
)
from spillway.amqp.types import Described, ULong
from tests.amqp.values import CORPUS, FREQUENT, PERFORMATIVES, SASL_CORPUS

Outcome = tuple[str, object]


def outcome_of(data: bytes, is_general: bool) -> Outcome:
    """What decoding says: the value and its end, or the error."""
    decode = decode_general if is_general else decode_performative
    try:
        performative, end = decode(data, 0, len(data), DecodeBudget())
    except ProtocolError as error:
        return error.condition, error.description
    return repr(performative), end


@settings(max_examples=200, deadline=None)
@given(FREQUENT, st.binary(max_size=8))
def test_the_short_way_writes_what_the_general_way_reads(performative: Performative, payload: bytes) -> None:
    if not isinstance(performative, Transfer):
        payload = b""
    short = encode_frame(9, performative, payload)
    general = encode_general(AMQP, 9, performative, payload)
    assert short[4:8] == general[4:8]
    assert struct.unpack(">I", short[:4])[0] == len(short)
    for is_general in (False, True):
        for frame in (short, general):
            end = len(frame) - len(payload) - 8
            assert outcome_of(frame[8:], is_general) == (repr(performative), end)


@settings(max_examples=250, deadline=None)
@given(FREQUENT, st.data())
def test_the_short_way_reads_exactly_what_the_general_way_reads(
    performative: Performative, data: st.DataObject
) -> None:
    """Also after a few bytes were changed: same value or same error."""
    frame = encode_frame(0, performative) if data.draw(st.booleans()) else encode_general(AMQP, 0, performative, b"")
    body = bytearray(frame[8:])
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(
            st.sampled_from(b"\x00\x01\x02\x40\x41\x42\x43\x45\x52\x56\x70\xa0\xc0\xff")
        )
    assert outcome_of(bytes(body), False) == outcome_of(bytes(body), True)


@settings(max_examples=200, deadline=None)
@given(FREQUENT, st.integers(0, 12))
def test_the_short_way_reads_lists_that_leave_trailing_fields_out(performative: Performative, count: int) -> None:
    body = encode(Described(ULong(performative.code), performative.fields()[:count]))
    assert outcome_of(body, False) == outcome_of(body, True)


def test_random_bytes_behind_a_frequent_descriptor_are_read_alike() -> None:
    source = random.Random(7)
    codes = b"\x40\x41\x42\x43\x45\x52\x53\x56\x70\xa0\x50\x00\xc0"
    for _ in range(5000):
        count = source.randrange(13)
        fields = bytes(
            source.choice(codes) if source.random() < 0.7 else source.randrange(8) for _ in range(source.randrange(24))
        )
        size = len(fields) + 1 if source.random() < 0.9 else source.randrange(40)
        body = bytes([0x00, 0x53, source.choice(b"\x13\x14\x15"), 0xC0, size, count]) + fields
        assert outcome_of(body, False) == outcome_of(body, True), body.hex()


def test_random_frame_bodies_are_never_anything_but_a_protocol_error() -> None:
    source = random.Random(11)
    for _ in range(3000):
        base = bytearray(encode_frame(0, source.choice(CORPUS))[8:])
        for _ in range(source.randrange(1, 5)):
            base[source.randrange(len(base))] = source.randrange(256)
        outcome_of(bytes(base), False)


def test_plain_states_are_shared_and_rejections_are_not() -> None:
    data = encode_frame(0, Disposition(True, 1, 1, True, Accepted()))[8:]
    decoded, _ = decode_performative(data, 0, len(data), DecodeBudget())
    assert isinstance(decoded, Disposition) and decoded.state is ACCEPTED
    data = encode_frame(0, Disposition(True, 1, 1, True, Rejected()))[8:]
    decoded, _ = decode_performative(data, 0, len(data), DecodeBudget())
    assert isinstance(decoded, Disposition) and isinstance(decoded.state, Rejected) and decoded.state.error is None


def test_the_bytes_of_the_three_frequent_frames() -> None:
    assert encode_frame(3, Transfer(1, 2, b"abc", 0, True), b"pay").hex() == (
        "0000002802000003005314c0180b70000000017000000002a0036162634341424040424242706179"
    )
    assert encode_frame(3, Disposition(True, 1, 5, True, Accepted())).hex() == (
        "0000001f02000003005315c012064170000000017000000005410053244542"
    )
    assert len(encode_frame(3, Flow(1, 2, 3, 4, 5, 6, 7))) == 53


# --- cutting the stream ----------------------------------------------------------------------------------------------


def frames_of(parser: FrameParser) -> list[tuple[int, int, bytes]]:
    found = []
    while (frame := parser.next()) is not None:
        found.append((frame.kind, frame.channel, frame.data[frame.at : frame.end]))
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(PERFORMATIVES, min_size=1, max_size=6), st.data())
def test_frames_come_out_the_same_however_the_stream_is_cut(bodies: list[Performative], data: st.DataObject) -> None:
    encoded = [encode_frame(index, body) for index, body in enumerate(bodies)]
    stream = b"".join(encoded)
    parser = FrameParser(65536)
    found: list[tuple[int, int, bytes]] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream)))
        parser.feed(stream[at : at + size])
        found += frames_of(parser)
        at += size
    assert found == [(AMQP, index, frame[8:]) for index, frame in enumerate(encoded)]
    assert parser.unread == 0


def test_frames_come_out_byte_by_byte() -> None:
    stream = b"".join([encode_frame(0, body) for body in CORPUS])
    parser = FrameParser(65536)
    count = 0
    for byte in stream:
        parser.feed(bytes([byte]))
        count += len(frames_of(parser))
    assert count == len(CORPUS)


def test_bytes_fed_before_the_last_ones_were_taken_are_kept_in_order() -> None:
    parser = FrameParser(65536)
    one, two, three = (encode_frame(channel, Close()) for channel in (1, 2, 3))
    parser.feed(one + two[:3])
    parser.feed(two[3:] + three[:9])
    parser.feed(three[9:])
    assert [channel for _, channel, _ in frames_of(parser)] == [1, 2, 3]


def test_what_comes_behind_an_unfinished_frame_is_read_where_it_lies() -> None:
    frames = [encode_frame(channel, Transfer(0, channel, b"t", 0), bytes(100)) for channel in range(4)]
    stream = b"".join(frames)
    cut = len(frames[0]) + 20
    parser = FrameParser(65536)
    parser.feed(stream[:cut])
    assert [channel for _, channel, _ in frames_of(parser)] == [0]
    chunk = stream[cut:]
    parser.feed(chunk)
    assert parser.unread == len(stream) - len(frames[0])
    second, third = parser.next(), parser.next()
    assert second is not None and second.data == frames[1]
    assert third is not None and third.data is chunk
    parser.feed(frames[0])  # and more comes before all of it is read
    assert parser.unread == len(frames[3]) + len(frames[0])
    assert [channel for _, channel, _ in frames_of(parser)] == [3, 0]
    assert parser.unread == 0


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_frames_come_out_the_same_whenever_they_are_asked_for(seed: int) -> None:
    source = random.Random(seed)
    frames = [
        encode_frame(index, Transfer(0, 1, b"t", 0), bytes(source.randrange(60)))
        for index in range(source.randrange(9))
    ]
    stream = b"".join(frames)
    parser = FrameParser(65536)
    found: list[bytes] = []
    fed = 0
    while fed < len(stream) or len(found) < len(frames):
        if fed < len(stream) and source.random() < 0.6:
            size = source.randrange(1, 150)
            parser.feed(stream[fed : fed + size])
            fed = min(fed + size, len(stream))
        elif (frame := parser.next()) is not None:
            found.append(frame.data[frame.at - 8 : frame.end])
        else:
            assert fed < len(stream), "all was fed, and a frame is missing"
        assert parser.unread == fed - sum(len(each) for each in found)
    assert found == frames


def test_protocol_headers_and_frames_are_taken_from_one_stream() -> None:
    parser = FrameParser(65536)
    parser.feed(SASL_HEADER + encode_sasl_frame(SaslInit("ANONYMOUS")) + AMQP_HEADER[:5])
    assert parser.next_header() == SASL_HEADER
    frame = parser.next()
    assert frame is not None and frame.kind == SASL
    assert parser.next_header() is None
    parser.feed(AMQP_HEADER[5:] + encode_frame(0, Close()))
    assert parser.next_header() == AMQP_HEADER
    assert len(frames_of(parser)) == 1


def test_an_empty_frame_has_no_body() -> None:
    parser = FrameParser(512)
    parser.feed(EMPTY_FRAME)
    assert frames_of(parser) == [(AMQP, 0, b"")]


def test_an_extended_header_is_skipped() -> None:
    body = encode_frame(5, Close())[8:]
    parser = FrameParser(512)
    parser.feed(struct.pack(">IBBH", 16 + len(body), 4, 0, 5) + b"whatever" + body)
    assert frames_of(parser) == [(AMQP, 5, body)]


@pytest.mark.parametrize("size", [*range(8), 65537, 2**31, 2**32 - 1])
def test_a_wrong_size_is_a_framing_error_before_any_byte_of_it_comes(size: int) -> None:
    parser = FrameParser(65536)
    parser.feed(struct.pack(">IBBH", size, 2, 0, 0))
    with pytest.raises(ProtocolError) as caught:
        parser.next()
    assert (caught.value.scope, caught.value.condition) == (CONNECTION, "amqp:connection:framing-error")


@pytest.mark.parametrize(("offset", "kind"), [(0, 0), (1, 0), (3, 0), (255, 0), *[(2, kind) for kind in range(2, 256)]])
def test_a_wrong_offset_or_type_is_a_framing_error(offset: int, kind: int) -> None:
    parser = FrameParser(65536)
    parser.feed(struct.pack(">IBBH", 8, offset, kind, 0))
    with pytest.raises(ProtocolError) as caught:
        parser.next()
    assert caught.value.condition == "amqp:connection:framing-error"


def test_a_megabyte_in_small_pieces_takes_linear_time() -> None:
    frame = encode_frame(0, Transfer(0, 0, b"t", 0, False), bytes(1_000_000))
    parser = FrameParser(2_000_000)
    started = time.process_time()
    for at in range(0, len(frame), 50):
        parser.feed(frame[at : at + 50])
        found = parser.next()
        assert (found is None) == (at + 50 < len(frame))
    assert time.process_time() - started < 2


def test_frame_type_and_body_belong_together() -> None:
    for body in (*CORPUS, *SASL_CORPUS):
        is_sasl = body in SASL_CORPUS
        raw = encode_general(AMQP, 0, body, b"")
        good = Frame(SASL if is_sasl else AMQP, 0, raw, 8, len(raw))
        assert decode_body(good, DecodeBudget())[0] == body
        with pytest.raises(DecodeError):
            decode_body(Frame(AMQP if is_sasl else SASL, 0, raw, 8, len(raw)), DecodeBudget())


def test_only_a_transfer_has_a_payload() -> None:
    raw = encode_sasl_frame(SaslOutcome(0)) + b"x"
    with pytest.raises(DecodeError):
        decode_body(Frame(SASL, 0, raw, 8, len(raw)), DecodeBudget())
    raw = encode_frame(0, Transfer(0), b"x")
    assert decode_body(Frame(AMQP, 0, raw, 8, len(raw)), DecodeBudget())[1] == len(raw) - 1
