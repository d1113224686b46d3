"""Headers, frames and encodings that are none (bad input B1 to B5, B13), before login and after."""

import pytest

from spillway.amqp.codec import encode
from spillway.amqp.frames import AMQP_HEADER, SASL_HEADER, encode_frame, encode_sasl_frame
from spillway.amqp.performatives import Begin, Close, Detach, Disposition, End, Open, SaslInit, Transfer
from spillway.amqp.types import Symbol
from tests.hostile.attacker import accept, flow, message, receiver, sender
from tests.hostile.scene import BYTES, MIB, Scene

FRAMING = "amqp:connection:framing-error"
DECODE = "amqp:decode-error"
INVALID = "amqp:invalid-field"
U32_MAX = 2**32 - 1


# -- bad input B1


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x01\x01\x00\x00",
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x03\x02\x00\x00",
        b"\x00\x00\x00\x08\x02\x00\x00\x00",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\xff" * 8,
    ],
)
def test_b01_another_protocol_is_told_ours_and_closed(attacked: Scene, header: bytes) -> None:
    with attacked.attacker() as attacker:
        attacker.say(header)
        assert attacker.hear_end() == SASL_HEADER


def test_b01_http_is_answered_in_http_and_closed(attacked: Scene) -> None:
    asked_to_close = b"Host: x\r\nConnection: close\r\n"
    for request in (b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\nContent-Length: 99999999\r\n"):
        with attacked.attacker() as attacker:
            attacker.say(request + asked_to_close + b"\r\n")
            assert attacker.hear_end().startswith(b"HTTP/1.1 4")


def test_b01_a_tls_hello_that_is_none_is_closed(attacked: Scene) -> None:
    for hello in (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", b"\x16\x03\x01\xff\xff" + b"\x00" * 70_000):
        with attacked.attacker() as attacker:
            attacker.say(hello)
            attacker.hear_end(10)


@pytest.mark.parametrize("part", [b"A", b"AMQ", b"AMQP", b"AMQP\x03\x01\x00"])
def test_b01_a_header_that_breaks_off_costs_nothing(attacked: Scene, part: bytes) -> None:
    with attacked.attacker() as attacker:
        attacker.say(part)
    with attacked.attacker() as other:
        other.open()


def test_b01_the_sasl_header_twice_is_answered_by_the_one_that_was_due(attacked: Scene) -> None:
    with attacked.attacker() as attacker:
        attacker.say(SASL_HEADER + SASL_HEADER)
        attacker.hear_end()
    with attacked.attacker() as attacker:
        attacker.say(SASL_HEADER)
        assert attacker.header() == SASL_HEADER
        attacker.say(encode_sasl_frame(SaslInit("ANONYMOUS", b"")) + SASL_HEADER)
        assert attacker.hear_end().endswith(AMQP_HEADER)


def test_b01_sasl_frames_that_are_none_end_the_connection(attacked: Scene) -> None:
    for frame in (
        encode_sasl_frame(SaslInit("GSSAPI", b"")),
        encode_sasl_frame(SaslInit("EXTERNAL", b"")),
        encode_sasl_frame(SaslInit("PLAIN", b"\x00" * 3_000)),
        encode_sasl_frame(SaslInit("PLAIN", b"\x00RootManageSharedAccessKey\x00wrong")),
        encode_frame(0, Open("too early")),
        b"\x00\x00\x00\x09\x02\x01\x00\x00\xff",
        b"\x00\x00\x10\x01\x02\x01\x00\x00",
    ):
        with attacked.attacker() as attacker:
            attacker.say(SASL_HEADER)
            assert attacker.header() == SASL_HEADER
            attacker.say(frame)
            attacker.hear_end()


# -- bad input B2


def frame_header(size: int, offset: int = 2, kind: int = 0, channel: int = 0) -> bytes:
    return size.to_bytes(4, "big") + bytes([offset, kind]) + channel.to_bytes(2, "big")


BAD_FRAMES = [
    *(frame_header(size) for size in (*range(8), 65_537, 2**24, 2**31, U32_MAX)),
    *(frame_header(16, offset) + bytes(8) for offset in (0, 1, 5, 255)),
    *(frame_header(16, kind=kind) + bytes(8) for kind in (2, 3, 127, 255)),
]


@pytest.mark.parametrize("is_open", [False, True], ids=["before open", "after open"])
def test_b02_frame_sizes_offsets_and_types_that_cannot_be_are_framing_errors(attacked: Scene, is_open: bool) -> None:
    before = attacked.growth_bytes
    for frame in BAD_FRAMES:
        with attacked.attacker() as attacker:
            attacker.open() if is_open else attacker.sasl()
            attacker.say(frame)
            attacker.closes_with(FRAMING)
    assert attacked.growth_bytes - before < 8 * MIB, "a claimed size was believed"


def test_b02_a_sasl_frame_after_sasl_is_a_framing_error(attacked: Scene) -> None:
    with attacked.attacker().open() as attacker:
        attacker.say(encode_sasl_frame(SaslInit("ANONYMOUS", b"")))
        attacker.closes_with(FRAMING)


# -- bad input B3


VALID_FRAMES = {
    "open": encode_frame(0, Open("another", "localhost", 65_536, 100, 60_000, properties={Symbol("product"): "x"})),
    "begin": encode_frame(1, Begin(None, 0, 5_000, 5_000)),
    "attach": encode_frame(0, sender(7)),
    "flow": encode_frame(0, flow(1, 5)),
    "transfer": encode_frame(0, Transfer(0, 0, b"tag", 0, settled=False), message(b"body")),
    "disposition": encode_frame(0, accept(0, 5)),
    "detach": encode_frame(0, Detach(1, True)),
    "end": encode_frame(0, End()),
    "close": encode_frame(0, Close()),
}


@pytest.mark.parametrize("name", VALID_FRAMES)
def test_b03_a_frame_cut_at_any_byte_is_an_error_or_waited_for(attacked: Scene, name: str) -> None:
    """Cut with a size that says so: an error. Cut by the end of the stream: nothing but the end."""
    frame = VALID_FRAMES[name]
    payload_at = len(frame) - len(message(b"body")) if name == "transfer" else len(frame)
    for size in range(8, len(frame), 1 if len(frame) < 60 else 3):
        with attacked.attacker().open().begin().attach_sender().attach_receiver() as attacker:
            attacker.say(size.to_bytes(4, "big") + frame[4:size])
            if size == 8:
                attacker.is_served(3)  # a heartbeat
            elif size < payload_at:
                attacker.closes_with(DECODE, INVALID)
            else:
                attacker.hear(Disposition)  # a message cut short: refused, or one without a body
    for size in range(1, len(frame), 7):
        with attacked.attacker().open().begin().attach_sender().attach_receiver() as attacker:
            attacker.say(frame[:size])


# -- bad input B4


def described(code: int, *fields: bytes) -> bytes:
    """A performative with its fields as given."""
    content = b"".join(fields)
    return (
        b"\x00\x53"
        + bytes([code])
        + b"\xd0"
        + (len(content) + 4).to_bytes(4, "big")
        + len(fields).to_bytes(4, "big")
        + content
    )


def framed(body: bytes, channel: int = 0) -> bytes:
    return frame_header(8 + len(body), channel=channel) + body


def nested(depth: int) -> bytes:
    value = b"\x45"
    for _ in range(depth):
        value = b"\xd0" + (len(value) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + value
    return value


def array(code: int, count: int, content: bytes = b"") -> bytes:
    return b"\xf0" + (5 + len(content)).to_bytes(4, "big") + count.to_bytes(4, "big") + bytes([code]) + content


def listed(*values: bytes) -> bytes:
    content = b"".join(values)
    return b"\xd0" + (len(content) + 4).to_bytes(4, "big") + len(values).to_bytes(4, "big") + content


BOMBS = {
    "lists 6,000 deep": nested(6_000),
    "list constructors 10,000 deep": b"\xc0\xff\x01" * 10_000,
    "described 10,000 deep": b"\x00" * 10_000,
    "a map of an odd count": b"\xc1\x04\x01\xa1\x01a",
    "a map with a key twice": b"\xc1\x07\x04\xa1\x01a\x40\xa1\x01a",
    "an array of 2**32 - 1 nulls": array(0x40, U32_MAX),
    "an array of 2**32 - 1 true": array(0x41, U32_MAX),
    "an array of 2**32 - 1 uint0": array(0x43, U32_MAX),
    "an array of 2**32 - 1 list0": array(0x45, U32_MAX),
    "4,000 arrays of 256 nulls": listed(*[array(0x40, 256)] * 4_000),
    "an array of arrays of nulls": array(0xF0, 1_100, array(0x40, 250)[1:] * 1_100),
    "a list of 2**32 - 1": b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
    "a map of 2**32 - 2": b"\xd1\x00\x00\x00\x04\xff\xff\xff\xfe",
    "an array described by itself": b"\xe0\x05\x01\x00\x00\x00\x00",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_b04_bombs_are_decode_errors_before_login(attacked: Scene, bomb: bytes) -> None:
    with attacked.attacker() as attacker:
        attacker.say(SASL_HEADER)
        assert attacker.header() == SASL_HEADER
        body = described(0x41, encode(Symbol("ANONYMOUS")), bomb)[:4_000]
        attacker.say((8 + len(body)).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body)
        attacker.hear_end()
    with attacked.attacker().sasl("ANONYMOUS") as attacker:
        attacker.say(framed(described(0x10, encode("bomber"), *[b"\x40"] * 8, bomb)))
        attacker.closes_with(DECODE)


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_b04_bombs_are_decode_errors_after_login(attacked: Scene, bomb: bytes) -> None:
    """In a performative they end the connection, in a message only the message."""
    with attacked.attacker().open().begin() as attacker:
        attacker.say(framed(described(0x12, encode("name"), b"\x43", b"\x42", *[b"\x40"] * 4, bomb)))
        attacker.closes_with(DECODE)
    with attacked.attacker().open().begin().attach_sender() as attacker:
        for number, section in enumerate((b"\x00\x53\x77", b"\x00\x53\x72", b"\x00\x53\x74", b"\x00\x53\x73")):
            attacker.send(number, (section + bomb)[:60_000])
            state = attacker.hear(Disposition).state
            assert "amqp:decode-error" in repr(state), state


def test_b04_many_elements_are_allowed_to_those_who_are_known_and_to_no_others(attacked: Scene) -> None:
    properties = encode({Symbol("list"): [True] * 5_000})
    with attacked.attacker().sasl("PLAIN") as attacker:
        attacker.say(framed(described(0x10, encode("known"), *[b"\x40"] * 8, properties)))
        attacker.hear(Open)
    with attacked.attacker().sasl("ANONYMOUS") as attacker:
        attacker.say(framed(described(0x10, encode("stranger"), *[b"\x40"] * 8, properties)))
        attacker.closes_with(DECODE)


# -- bad input B5


BAD_SIZES = {
    "a list8 longer than its elements": b"\xc0\x05\x01\x40\x40\x40\x40",
    "a list8 shorter than its elements": b"\xc0\x02\x03\x40",
    "a list8 past the end": b"\xc0\xff\x01\x40",
    "a list32 past the end": b"\xd0\x00\x01\x00\x00\x00\x00\x00\x01\x40",
    "a list32 of a negative size": b"\xd0\x80\x00\x00\x00\x00\x00\x00\x01\x40",
    "a list32 of size 3": b"\xd0\x00\x00\x00\x03\x00\x00\x00\x00",
    "a str8 past the end": b"\xa1\xffabc",
    "a str32 past the end": b"\xb1\x00\x00\xff\xffabc",
    "a str32 of a negative size": b"\xb1\xff\xff\xff\xffabc",
    "a binary of a negative size": b"\xb0\x80\x00\x00\x01abc",
    "a ulong cut short": b"\x80\x00\x00",
    "an unknown constructor": b"\x9f\x00",
    "a boolean of two": b"\x56\x02",
    "a char that is none": b"\x73\x00\x11\x00\x00",
}


@pytest.mark.parametrize("value", BAD_SIZES.values(), ids=BAD_SIZES)
def test_b05_sizes_that_do_not_fit_are_decode_errors(attacked: Scene, value: bytes) -> None:
    for body in (value, described(0x10, encode("x"), value), described(0x12, encode("x"), b"\x43", b"\x42", value)):
        with attacked.attacker().open().begin() as attacker:
            attacker.say(framed(body))
            attacker.closes_with(DECODE)


@pytest.mark.parametrize(
    "body",
    [
        described(0x12),
        described(0x12, encode("no handle")),
        described(0x12, encode("x"), encode("a string for a handle"), b"\x42"),
        described(0x13, *[b"\x40"] * 11),
        described(0x14),
        described(0x15, b"\x41"),
        described(0x16),
    ],
)
def test_b05_a_field_that_is_missing_or_of_a_wrong_type_is_an_invalid_field(attacked: Scene, body: bytes) -> None:
    with attacked.attacker().open().begin() as attacker:
        attacker.say(framed(body))
        attacker.closes_with(INVALID, DECODE)


@pytest.mark.parametrize("body", [described(0x30), described(0x53), b"\x45", b"\x00\xa3\x04amqp\x45", b"\x00\x53"])
def test_b05_what_is_no_performative_is_a_decode_error(attacked: Scene, body: bytes) -> None:
    with attacked.attacker().open().begin() as attacker:
        attacker.say(framed(body))
        attacker.closes_with(DECODE)


# -- bad input B13


BAD_TEXT = {
    "a lone continuation": b"\xa1\x01\x80",
    "an overlong slash": b"\xa1\x02\xc0\xaf",
    "a lone surrogate": b"\xa1\x03\xed\xa0\x80",
    "beyond Unicode": b"\xa1\x04\xf5\x80\x80\x80",
    "cut in a character": b"\xa1\x01\xe2",
    "a symbol that is no ASCII": b"\xa3\x02\xc3\xa9",
}


@pytest.mark.parametrize("text", BAD_TEXT.values(), ids=BAD_TEXT)
def test_b13_text_that_is_no_utf8_is_a_decode_error(attacked: Scene, text: bytes) -> None:
    with attacked.attacker().sasl() as attacker:
        attacker.say(framed(described(0x10, text)))
        attacker.closes_with(DECODE)
    with attacked.attacker().open().begin() as attacker:
        target = described(0x29, text)
        attacker.say(framed(described(0x12, encode("x"), b"\x43", b"\x42", b"\x40", b"\x40", described(0x28), target)))
        attacker.closes_with(DECODE)
    with attacked.attacker().open().begin().attach_sender() as attacker:
        attacker.send(0, b"\x00\x53\x77" + text)
        assert "amqp:decode-error" in repr(attacker.hear(Disposition).state)


@pytest.mark.parametrize(
    "name", ["tar\x00get", "target\x00", "\u202etegrat", "tar\ufeffget", "../target", "x" * 50_000]
)
def test_b13_names_of_entities_that_are_none_are_not_found(attacked: Scene, name: str) -> None:
    with attacked.attacker().open().begin() as attacker:
        attacker.tell(sender(0, name), receiver(1, name))
        for _ in range(2):
            attacker.detaches_with("amqp:not-found")


def test_b13_text_with_nul_is_stored_byte_for_byte(attacked: Scene) -> None:
    body = b"\x00\x53\x77" + encode("a\x00b\U0010ffff")
    with attacked.attacker().open().begin().attach_sender(0, BYTES).attach_receiver(1, BYTES, credit=1) as attacker:
        attacker.send(0, body)
        attacker.hear(Transfer)
        assert attacker.payloads[-1].endswith(body)
        attacker.tell(accept(0))
        assert attacker.hear(Disposition).settled
