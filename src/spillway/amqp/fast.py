"""The plain forms of transfer, disposition and flow, on raw offsets.

A decoder here gives exactly what the general way would give, or None for anything unusual: nulls in odd places, states
with fields, wide encodings nobody uses, errors. It never raises and never decides. An encoder gives a frame that
decodes to the same value; its numbers have fixed widths, so that one precompiled pack writes them.

Two forms are plainer still, and are nearly all there is: a delivery of one frame, read where it lies (`PlainTransfer`)
and written behind others of its session (`TransferHeads`).
"""

import struct
from typing import TYPE_CHECKING, Final

from spillway.amqp.encoder import encode
from spillway.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    DeliveryState,
    Disposition,
    Flow,
    Rejected,
    Released,
    Transfer,
)
from spillway.amqp.rising import LAST_BYTES, Rising

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int where it is not compiled

NULL: Final = -1
ODD: Final = -2  # not a plain form: the general decoder shall look at it

_TAG_SIZE_MAX: Final = 32  # [2.8.7]

# size | doff 2, type 0, channel | descriptor and list8 | list size and count | fields
_TRANSFER: Final = struct.Struct(">IIIHBIBIBB")
_TRANSFER_MIDDLE: Final = struct.Struct(">IIHBIB")
_DISPOSITION: Final = struct.Struct(">IIIHBBIBIB")
_FLOW: Final = struct.Struct(">IIIHBIBIBIBIBIBIBIBBBB")
_FORMAT: Final = struct.Struct(">BI")

_DOFF: Final = 0x02000000
_TRANSFER_LIST: Final = 0x005314C0
_DISPOSITION_LIST: Final = 0x005315C0
_FLOW_LIST: Final = 0x005313C0

# rcv-settle-mode and state null; resume, aborted, batchable false: written out for SDKs that count fields.
_TRANSFER_REST: Final = b"\x40\x40\x42\x42\x42"
# From message-format on: indexed by 2 * settled + more, for format 0 and for any other.
_TAILS_0: Final[list[bytes]] = [b"\x43" + flags + _TRANSFER_REST for flags in (b"BB", b"BA", b"AB", b"AA")]
_TAILS: Final[list[bytes]] = [flags + _TRANSFER_REST for flags in (b"BB", b"BA", b"AB", b"AA")]
_FALSE: Final = b"\x42"
_ACCEPTED: Final = b"\x00\x53\x24\x45"
_RELEASED: Final = b"\x00\x53\x26\x45"
_STATE_SIZE_MAX: Final = 200  # what surely fits a list8 beside the other fields


# --- reading ---------------------------------------------------------------------------------------------------------


def _uint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A uint or NULL, and where the next field begins."""
    if at >= end:
        return ODD, at
    code = data[at]
    if code == 0x43:
        return 0, at + 1
    if code == 0x52 and at + 2 <= end:
        return data[at + 1], at + 2
    if code == 0x70 and at + 5 <= end:
        return (data[at + 1] << 24) | (data[at + 2] << 16) | (data[at + 3] << 8) | data[at + 4], at + 5
    if code == 0x40:
        return NULL, at + 1
    return ODD, at


def _flag(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A boolean as 0 or 1, or NULL, and where the next field begins."""
    if at >= end:
        return ODD, at
    code = data[at]
    if code == 0x42:
        return 0, at + 1
    if code == 0x41:
        return 1, at + 1
    if code == 0x40:
        return NULL, at + 1
    if code == 0x56 and at + 2 <= end and data[at + 1] <= 1:
        return data[at + 1], at + 2
    return ODD, at


def uint_at(data: bytes, at: "i64") -> "i64":
    """Four bytes as a number; all of them are there."""
    first: i64 = data[at]
    second: i64 = data[at + 1]
    third: i64 = data[at + 2]
    last: i64 = data[at + 3]
    return first << 24 | second << 16 | third << 8 | last


class PlainTransfer:
    """The fields of a transfer that is a whole delivery and nothing else; read anew for each, without another object.

    It has an id, a tag and the message format 0 or none; no more frames follow, and it has no state and no settle mode.
    """

    def __init__(self) -> None:
        self.handle: i64 = 0
        self.delivery_id: i64 = 0
        self.tag_at: i64 = 0
        self.tag_end: i64 = 0
        self.is_settled = False
        self.payload_at: i64 = 0

    def read(self, data: bytes, at: "i64", end: "i64") -> bool:
        """`at` is the size of its list8, `end` where the frame ends. False: it is not so plain, or wrong."""
        if end - at < 9:
            return False
        after: i64 = at + 1 + data[at]
        count: i64 = data[at + 1]
        if after > end or after < at + 8 or count < 3 or count > 11:
            return False
        at += 2
        code: i64 = data[at]
        if code == 0x43:
            self.handle = 0
            at += 1
        elif code == 0x52:
            self.handle = data[at + 1]
            at += 2
        elif code == 0x70 and at + 5 < after:
            self.handle = uint_at(data, at + 1)
            at += 5
        else:
            return False
        code = data[at]
        if code == 0x43:
            self.delivery_id = 0
            at += 1
        elif code == 0x52 and at + 2 < after:
            self.delivery_id = data[at + 1]
            at += 2
        elif code == 0x70 and at + 5 < after:
            self.delivery_id = uint_at(data, at + 1)
            at += 5
        else:
            return False
        if at + 2 > after or data[at] != 0xA0 or data[at + 1] > _TAG_SIZE_MAX:
            return False
        self.tag_at = at + 2
        at += 2 + data[at + 1]
        self.tag_end = at
        self.is_settled = False
        index: i64 = 3
        while index < count:
            if at >= after:
                return False
            code = data[at]
            if index == 3:
                if code != 0x43 and code != 0x40:  # format 0, or none
                    return False
            elif index == 4:
                if code == 0x41:
                    self.is_settled = True
                elif code != 0x42 and code != 0x40:
                    return False
            elif index == 6 or index == 7:
                if code != 0x40:  # settle mode and state
                    return False
            elif code != 0x42 and code != 0x40 and (code != 0x41 or index != 10):
                return False  # more, resume, aborted; batchable says nothing
            at += 1
            index += 1
        self.payload_at = after
        return at == after


def decode_transfer(data: bytes, at: int, end: int) -> Transfer | None:
    """`at` is the count of its list8, `end` where the list ends."""
    count = data[at]
    handle, at = _uint(data, at + 1, end)
    if handle < 0 or count < 1 or count > 11:
        return None
    delivery_id = NULL
    tag: bytes | None = None
    message_format = NULL
    settled = NULL
    more = 0
    if count > 1:
        delivery_id, at = _uint(data, at, end)
    if count > 2:
        if at >= end:
            return None
        if data[at] == 0xA0:
            if at + 2 > end:
                return None
            size = data[at + 1]
            if size > _TAG_SIZE_MAX or at + 2 + size > end:
                return None
            tag = data[at + 2 : at + 2 + size]
            at += 2 + size
        elif data[at] == 0x40:
            at += 1
        else:
            return None
    if count > 3:
        message_format, at = _uint(data, at, end)
    if count > 4:
        settled, at = _flag(data, at, end)
    if count > 5:
        more, at = _flag(data, at, end)
    if delivery_id == ODD or message_format == ODD or settled == ODD or more == ODD:
        return None
    transfer = Transfer(
        handle,
        None if delivery_id < 0 else delivery_id,
        tag,
        None if message_format < 0 else message_format,
        None if settled < 0 else settled == 1,
        more == 1,
    )
    if count > 6:
        return _transfer_rest(data, at, end, count, transfer)
    return transfer if at == end else None


def _transfer_rest(data: bytes, at: int, end: int, count: int, transfer: Transfer) -> Transfer | None:
    """rcv-settle-mode and state must be null here; then resume, aborted, batchable."""
    resume = 0
    aborted = 0
    batchable = 0
    for _ in range(2 if count > 7 else 1):
        if at >= end or data[at] != 0x40:
            return None
        at += 1
    if count > 8:
        resume, at = _flag(data, at, end)
    if count > 9:
        aborted, at = _flag(data, at, end)
    if count > 10:
        batchable, at = _flag(data, at, end)
    if resume == ODD or aborted == ODD or batchable == ODD or at != end:
        return None
    transfer.resume = resume == 1
    transfer.aborted = aborted == 1
    transfer.batchable = batchable == 1
    return transfer


def decode_disposition(data: bytes, at: int, end: int) -> Disposition | None:
    count = data[at]
    role, at = _flag(data, at + 1, end)
    first, at = _uint(data, at, end)
    if role < 0 or first < 0 or count < 2 or count > 6:
        return None
    last = NULL
    settled = 0
    state: DeliveryState | None = None
    batchable = 0
    if count > 2:
        last, at = _uint(data, at, end)
    if count > 3:
        settled, at = _flag(data, at, end)
    if count > 4:
        state, at = _state(data, at, end)
    if count > 5:
        batchable, at = _flag(data, at, end)
    if last == ODD or settled == ODD or batchable == ODD or at != end:
        return None
    return Disposition(role == 1, first, None if last < 0 else last, settled == 1, state, batchable == 1)


def _state(data: bytes, at: int, end: int) -> tuple[DeliveryState | None, int]:
    """Null, or an accepted, released or rejected without fields. Anything else ends beyond `end`."""
    if at < end and data[at] == 0x40:
        return None, at + 1
    if at + 4 > end or data[at] != 0x00 or data[at + 1] != 0x53:
        return None, end + 1
    code = data[at + 2]
    if data[at + 3] == 0x45:
        after = at + 4
    elif data[at + 3] == 0xC0 and at + 6 <= end and data[at + 4] == 1 and data[at + 5] == 0:
        after = at + 6
    else:
        return None, end + 1
    if code == 0x24:
        return ACCEPTED, after
    if code == 0x26:
        return RELEASED, after
    if code == 0x25:
        return Rejected(), after
    return None, end + 1


def decode_flow(data: bytes, at: int, end: int) -> Flow | None:
    count = data[at]
    next_incoming_id, at = _uint(data, at + 1, end)
    incoming_window, at = _uint(data, at, end)
    next_outgoing_id, at = _uint(data, at, end)
    outgoing_window, at = _uint(data, at, end)
    if incoming_window < 0 or next_outgoing_id < 0 or outgoing_window < 0 or count < 4 or count > 11:
        return None
    handle = NULL
    delivery_count = NULL
    link_credit = NULL
    available = NULL
    drain = 0
    echo = 0
    if count > 4:
        handle, at = _uint(data, at, end)
    if count > 5:
        delivery_count, at = _uint(data, at, end)
    if count > 6:
        link_credit, at = _uint(data, at, end)
    if count > 7:
        available, at = _uint(data, at, end)
    if count > 8:
        drain, at = _flag(data, at, end)
    if count > 9:
        echo, at = _flag(data, at, end)
    if count > 10:
        if at >= end or data[at] != 0x40:
            return None
        at += 1
    if next_incoming_id == ODD or handle == ODD or delivery_count == ODD or link_credit == ODD or at != end:
        return None
    if available == ODD or drain == ODD or echo == ODD:
        return None
    return Flow(
        None if next_incoming_id < 0 else next_incoming_id,
        incoming_window,
        next_outgoing_id,
        outgoing_window,
        None if handle < 0 else handle,
        None if delivery_count < 0 else delivery_count,
        None if link_credit < 0 else link_credit,
        None if available < 0 else available,
        drain == 1,
        echo == 1,
    )


# --- writing ---------------------------------------------------------------------------------------------------------


class TransferHeads:
    """Heads of the deliveries on one session that are one frame of the message format 0: what comes before their
    payload. Ids rise, sizes are alike, and the rest is the same for every delivery of a link."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.sizes = Rising(4)
        self.ids = Rising(4)
        self.handle = -1  # of the last one, and how long its tag was
        self.tag_size = -1
        self.middle = b""  # from behind the size to the delivery-id

    def head(self, handle: int, delivery_id: int, tag: bytes, settled: bool, payload_size: int) -> bytes:
        """As `transfer_frame` writes it."""
        tag_size = len(tag)
        if handle != self.handle or tag_size != self.tag_size:
            self._begin(handle, tag_size)
        tail = _TAILS_0[2] if settled else _TAILS_0[0]
        size = 34 + tag_size + payload_size
        return b"%b%b%b%b%b\xa0%b%b%b" % (
            self.sizes.upper(size),
            LAST_BYTES[size & 0xFF],
            self.middle,
            self.ids.upper(delivery_id),
            LAST_BYTES[delivery_id & 0xFF],
            LAST_BYTES[tag_size],
            tag,
            tail,
        )

    def _begin(self, handle: int, tag_size: int) -> None:
        assert tag_size <= _TAG_SIZE_MAX, "a delivery tag has at most 32 bytes"
        self.handle = handle
        self.tag_size = tag_size
        self.middle = _TRANSFER_MIDDLE.pack(
            _DOFF | self.channel, _TRANSFER_LIST, ((21 + tag_size) << 8) | 11, 0x70, handle, 0x70
        )


def transfer_frame(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    message_format: int,
    settled: bool,
    more: bool,
    payload: bytes,
) -> bytes:
    """The first, and mostly only, frame of a delivery."""
    tag_size = len(tag)
    assert tag_size <= _TAG_SIZE_MAX, "a delivery tag has at most 32 bytes"
    flags = (2 if settled else 0) + (1 if more else 0)
    tail = _TAILS_0[flags] if message_format == 0 else _FORMAT.pack(0x70, message_format) + _TAILS[flags]
    list_size = 13 + tag_size + len(tail)
    head = _TRANSFER.pack(
        13 + list_size + len(payload),
        _DOFF | channel,
        _TRANSFER_LIST,
        (list_size << 8) | 11,
        0x70,
        handle,
        0x70,
        delivery_id,
        0xA0,
        tag_size,
    )
    return head + tag + tail + payload


def disposition_frame(
    channel: int, role: bool, first: int, last: int, settled: bool, state: DeliveryState | None
) -> bytes | None:
    """None when the state is too large for the short form: take the general way then."""
    if isinstance(state, Accepted):
        rest = _ACCEPTED
    elif isinstance(state, Released):
        rest = _RELEASED
    else:
        rest = encode(state)
        if len(rest) > _STATE_SIZE_MAX:
            return None
    list_size = 14 + len(rest)
    head = _DISPOSITION.pack(
        13 + list_size,
        _DOFF | channel,
        _DISPOSITION_LIST,
        (list_size << 8) | 6,
        0x41 if role else 0x42,
        0x70,
        first,
        0x70,
        last,
        0x41 if settled else 0x42,
    )
    return head + rest + _FALSE


def flow_frame(
    channel: int,
    next_incoming_id: int,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    handle: int,
    delivery_count: int,
    link_credit: int,
    drain: bool,
    echo: bool,
) -> bytes:
    """A flow of one link."""
    return _FLOW.pack(
        53,
        _DOFF | channel,
        _FLOW_LIST,
        (40 << 8) | 11,
        0x70,
        next_incoming_id,
        0x70,
        incoming_window,
        0x70,
        next_outgoing_id,
        0x70,
        outgoing_window,
        0x70,
        handle,
        0x70,
        delivery_count,
        0x70,
        link_credit,
        0x40,
        0x41 if drain else 0x42,
        0x41 if echo else 0x42,
        0x40,
    )


def encode_transfer_frame(channel: int, transfer: Transfer, payload: bytes) -> bytes | None:
    """None when it has fields that the plain form has not."""
    delivery_id = transfer.delivery_id
    tag = transfer.delivery_tag
    message_format = transfer.message_format
    settled = transfer.settled
    if delivery_id is None or tag is None or message_format is None or settled is None:
        return None
    if transfer.rcv_settle_mode is not None or transfer.state is not None or len(tag) > _TAG_SIZE_MAX:
        return None
    if transfer.resume or transfer.aborted or transfer.batchable:
        return None
    return transfer_frame(channel, transfer.handle, delivery_id, tag, message_format, settled, transfer.more, payload)


def encode_disposition_frame(channel: int, disposition: Disposition) -> bytes | None:
    last = disposition.last
    if last is None or disposition.batchable:
        return None
    return disposition_frame(channel, disposition.role, disposition.first, last, disposition.settled, disposition.state)


def encode_flow_frame(channel: int, flow: Flow) -> bytes | None:
    next_incoming_id = flow.next_incoming_id
    handle = flow.handle
    delivery_count = flow.delivery_count
    link_credit = flow.link_credit
    if next_incoming_id is None or handle is None or delivery_count is None or link_credit is None:
        return None
    if flow.available is not None or flow.properties is not None:
        return None
    return flow_frame(
        channel,
        next_incoming_id,
        flow.incoming_window,
        flow.next_outgoing_id,
        flow.outgoing_window,
        handle,
        delivery_count,
        link_credit,
        flow.drain,
        flow.echo,
    )
