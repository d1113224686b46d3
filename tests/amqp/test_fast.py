"""Deliveries of one frame, read and written in the plainest form, held against the general ways."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.amqp.codec import DecodeBudget, encode
from spillway.amqp.errors import ProtocolError
from spillway.amqp.fast import PlainTransfer, TransferHeads, transfer_frame
from spillway.amqp.frames import AMQP, decode_general, encode_frame, encode_general
from spillway.amqp.performatives import Performative, Transfer
from spillway.amqp.types import Described, ULong
from tests.amqp.values import PLAIN_TRANSFERS, TRANSFERS, UINTS

PLAINEST = st.builds(
    Transfer, UINTS, UINTS, st.binary(max_size=32), st.sampled_from([0, None]), st.sampled_from([None, True, False])
)
LIST8 = 12  # where its size lies in a frame: behind the header, the descriptor and the constructor


def check(frame: bytes) -> bool:
    """Whether the plain way took it; if so, as the general way does."""
    if len(frame) <= LIST8 or frame[8:LIST8] != b"\x00\x53\x14\xc0":
        return False
    plain = PlainTransfer()
    if not plain.read(frame, LIST8, len(frame)):
        return False
    try:
        transfer, payload_at = decode_general(frame, 8, len(frame), DecodeBudget())
    except ProtocolError as error:
        raise AssertionError(f"{frame.hex()} is refused by the general way: {error.description}") from None
    assert isinstance(transfer, Transfer)
    assert (plain.handle, plain.delivery_id) == (transfer.handle, transfer.delivery_id), frame.hex()
    assert frame[plain.tag_at : plain.tag_end] == transfer.delivery_tag
    assert not transfer.message_format
    assert plain.is_settled == (transfer.settled is True)
    assert not (transfer.more or transfer.aborted or transfer.resume)
    assert transfer.state is None and transfer.rcv_settle_mode is None
    assert plain.payload_at == payload_at
    return True


def frames_of(transfer: Performative, payload: bytes) -> list[bytes]:
    """In its short form, in the general one, and without what may be left out at the end."""
    fields = transfer.fields()
    bodies = [encode(Described(ULong(transfer.code), fields[:count])) for count in range(1, len(fields) + 1)]
    cut = [b"\0\0\0\0\x02\0\0\0" + body + payload for body in bodies]
    return [encode_frame(0, transfer, payload), encode_general(AMQP, 0, transfer, payload), *cut]


@settings(deadline=None)
@given(PLAINEST, st.binary(max_size=8))
def test_a_delivery_of_one_frame_is_read_in_the_plain_way(transfer: Transfer, payload: bytes) -> None:
    taken = [check(frame) for frame in frames_of(transfer, payload)]
    assert taken[0] and taken[1]


def test_what_clients_write_is_read_in_the_plain_way() -> None:
    for fields in (
        "0b 43 7000000005 a00400000005 43 42 42 40 40 42 42 42",  # all eleven
        "0b 43 5205 a00400000005 43 42 42 40 40 42 42 41",  # and batchable
        "06 43 5205 a00400000005 43 42 42",
        "05 5201 43 a00101 43 41",
        "05 43 43 a00101 43 42",
    ):
        body = bytes.fromhex(fields)
        assert check(bytes(8) + b"\x00\x53\x14\xc0" + bytes([len(body)]) + body + b"payload"), fields


@settings(max_examples=200, deadline=None)
@given(TRANSFERS | PLAIN_TRANSFERS | PLAINEST, st.binary(max_size=8))
def test_any_transfer_gives_the_same_or_nothing(transfer: Transfer, payload: bytes) -> None:
    for frame in frames_of(transfer, payload):
        check(frame)


@settings(max_examples=300, deadline=None)
@given(PLAINEST | TRANSFERS, st.binary(max_size=4), st.data())
def test_any_damaged_transfer_gives_the_same_or_nothing(
    transfer: Transfer, payload: bytes, data: st.DataObject
) -> None:
    frame = data.draw(st.sampled_from(frames_of(transfer, payload)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(LIST8, max(len(frame) - 1, LIST8)))
        change = data.draw(st.binary(max_size=2) | st.sampled_from([b"\x40", b"\x41", b"\x43", b"\x52", b"\xa0"]))
        frame = frame[:at] + change + frame[at + data.draw(st.integers(0, 2)) :]
    check(frame)


def test_whatever_byte_is_changed_and_wherever_it_is_cut_it_is_the_same_or_nothing() -> None:
    for transfer in (Transfer(0, 0, b"", 0, False), Transfer(1, 2, b"abcd", 0, True), Transfer(300, 2**31, b"t")):
        for frame in frames_of(transfer, b"pay"):
            for at in range(LIST8, len(frame)):
                check(frame[:at])
                for byte in range(256):
                    check(frame[:at] + bytes([byte]) + frame[at + 1 :])


def test_random_bytes_give_the_same_or_nothing() -> None:
    source = random.Random(16)
    codes = b"\x40\x41\x42\x43\x45\x52\x53\x56\x70\xa0\x50\x00\xc0"
    taken = 0
    for _ in range(20_000):
        fields = b"\x43\x52\x05\xa0\x01t" if source.random() < 0.5 else b""
        fields += bytes(
            source.choice(codes) if source.random() < 0.8 else source.randrange(8) for _ in range(source.randrange(10))
        )
        size = len(fields) + 1 if source.random() < 0.9 else source.randrange(40)
        taken += check(bytes(8) + bytes([0x00, 0x53, 0x14, 0xC0, size, source.randrange(13)]) + fields)
    assert taken > 0


@settings(deadline=None)
@given(
    st.integers(0, 2**16 - 1),
    st.lists(st.tuples(UINTS, UINTS, st.binary(max_size=32), st.booleans(), st.binary(max_size=300)), max_size=8),
)
def test_heads_of_deliveries_are_those_of_their_frames(
    channel: int, deliveries: list[tuple[int, int, bytes, bool, bytes]]
) -> None:
    heads = TransferHeads(channel)
    for handle, delivery_id, tag, settled, payload in deliveries:
        head = heads.head(handle, delivery_id, tag, settled, len(payload))
        assert head + payload == transfer_frame(channel, handle, delivery_id, tag, 0, settled, False, payload)


def test_heads_of_many_deliveries_in_a_row_are_those_of_their_frames() -> None:
    heads = TransferHeads(3)
    for delivery_id in range(2**32 - 300, 2**32):
        payload = bytes(delivery_id % 700)
        tag = delivery_id.to_bytes(16, "little")
        head = heads.head(7, delivery_id, tag, False, len(payload))
        assert head + payload == transfer_frame(3, 7, delivery_id, tag, 0, False, False, payload)
