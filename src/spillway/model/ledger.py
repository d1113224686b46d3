"""The ledger's words and arithmetic: kinds of operations, 64 KB units, rows, and the lines of a sealed day.

docs/ledger.md says what each kind counts. Nothing here knows who counts: the broker does it for its own namespaces, a
client can do it for namespaces it does not own, and both write the same lines.
"""

import json
import struct
import zlib
from datetime import UTC, datetime
from typing import Final

# Kinds. The numbers are stored: they never change their meaning.
SEND: Final = 0
RECEIVE: Final = 1
EMPTY_RECEIVE: Final = 2
SETTLE: Final = 3
RENEW: Final = 4
PEEK: Final = 5
PING: Final = 6
SCHEDULE: Final = 7
CANCEL: Final = 8
SESSION: Final = 9
MANAGEMENT: Final = 10

KIND_NAMES: Final = (
    "send",
    "receive",
    "empty_receive",
    "settle",
    "renew",
    "peek",
    "ping",
    "schedule",
    "cancel",
    "session",
    "management",
)

UNIT_BYTES: Final = 64 * 1024
MS_PER_MINUTE: Final = 60_000
MINUTES_PER_DAY: Final = 24 * 60
NAMESPACE_ENTITY: Final = "$namespace"  # what is asked of the namespace as a whole; no entity can be called so
FORMAT: Final = 1  # of the lines

_TALLY: Final = struct.Struct("<qqqqqqqq")
_OTHER: Final = struct.Struct("<Bqqq")


def units_of(size_bytes: int) -> int:
    """What an operation with so many bytes is charged as: one for every 64 KB begun, one at least."""
    if size_bytes <= UNIT_BYTES:
        return 1
    return (size_bytes + UNIT_BYTES - 1) // UNIT_BYTES


def minute_of(now_ms: int) -> int:
    """Minutes since 1970: what happened before the minute is over is in its row."""
    return now_ms // MS_PER_MINUTE


def day_of(minute: int) -> int:
    """Days since 1970, in UTC."""
    return minute // MINUTES_PER_DAY


def day_name(day: int) -> str:
    return minute_text(day * MINUTES_PER_DAY)[:10]


def minute_text(minute: int) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Count:
    """Operations, the units they are charged as, and the bytes of the messages they carried."""

    def __init__(self) -> None:
        self.operations = 0
        self.units = 0
        self.size_bytes = 0

    def add(self, operations: int, units: int, size_bytes: int) -> None:
        self.operations += operations
        self.units += units
        self.size_bytes += size_bytes


class LedgerRow:
    """What was counted of one kind at one entity in one minute, or what is to be added to it."""

    def __init__(self, minute: int, entity: str, kind: int, operations: int, units: int, size_bytes: int) -> None:
        self.minute = minute
        self.entity = entity
        self.kind = kind
        self.operations = operations
        self.units = units
        self.size_bytes = size_bytes

    def key(self) -> tuple[int, str, int]:
        """The order of the rows, everywhere."""
        return (self.minute, self.entity, self.kind)


class Totals:
    """The sums of many rows, by entity and kind."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], Count] = {}

    def add(self, row: LedgerRow) -> None:
        count = self.counts.get((row.entity, row.kind))
        if count is None:
            count = Count()
            self.counts[(row.entity, row.kind)] = count
        count.add(row.operations, row.units, row.size_bytes)


class Tally:
    """What was counted at one entity in one minute and is not yet in rows. The frequent kinds have their own fields.

    A store can keep it as bytes beside the entity, where every commit writes anyway, and make rows of it once a minute.
    """

    def __init__(self, path: str, entity_id: int = 0) -> None:
        self.path = path
        self.entity_id = entity_id
        self.minute = 0
        self.is_open = False  # somebody holds it and will make rows of it
        self.is_unsaved = False  # changed since it was last packed
        self.sends = 0
        self.send_units = 0
        self.send_bytes = 0
        self.receives = 0
        self.receive_units = 0
        self.receive_bytes = 0
        self.settlements = 0
        self.others: dict[int, Count] = {}  # by kind

    def send(self, size_bytes: int) -> None:
        self.sends += 1
        self.send_units += 1 if size_bytes <= UNIT_BYTES else units_of(size_bytes)
        self.send_bytes += size_bytes

    def receive(self, size_bytes: int) -> None:
        self.receives += 1
        self.receive_units += 1 if size_bytes <= UNIT_BYTES else units_of(size_bytes)
        self.receive_bytes += size_bytes

    def settle(self) -> None:
        self.settlements += 1

    def count(self, kind: int, size_bytes: int = 0) -> None:
        self.count_many(kind, 1, units_of(size_bytes), size_bytes)

    def count_many(self, kind: int, operations: int, units: int, size_bytes: int) -> None:
        count = self.others.get(kind)
        if count is None:
            count = Count()
            self.others[kind] = count
        count.add(operations, units, size_bytes)

    def drain(self, rows: list[LedgerRow]) -> None:
        """Make rows of it, and begin anew."""
        minute = self.minute
        path = self.path
        if self.sends:
            rows.append(LedgerRow(minute, path, SEND, self.sends, self.send_units, self.send_bytes))
            self.sends = self.send_units = self.send_bytes = 0
        if self.receives:
            rows.append(LedgerRow(minute, path, RECEIVE, self.receives, self.receive_units, self.receive_bytes))
            self.receives = self.receive_units = self.receive_bytes = 0
        if self.settlements:
            rows.append(LedgerRow(minute, path, SETTLE, self.settlements, self.settlements, 0))
            self.settlements = 0
        if self.others:
            for kind, count in self.others.items():
                rows.append(LedgerRow(minute, path, kind, count.operations, count.units, count.size_bytes))
            self.others.clear()

    def is_empty(self) -> bool:
        return not (self.sends or self.receives or self.settlements or self.others)

    def pack(self) -> bytes:
        """Nothing for nothing, else with a checksum at the end."""
        if self.is_empty():
            return b""
        packed = _TALLY.pack(
            self.minute,
            self.sends,
            self.send_units,
            self.send_bytes,
            self.receives,
            self.receive_units,
            self.receive_bytes,
            self.settlements,
        )
        for kind, count in self.others.items():
            packed += _OTHER.pack(kind, count.operations, count.units, count.size_bytes)
        return packed + zlib.crc32(packed).to_bytes(4, "little")


def unpack_tally(path: str, entity_id: int, packed: bytes) -> Tally:
    """ValueError: it is damaged."""
    tally = Tally(path, entity_id)
    if not packed:
        return tally
    body = packed[:-4]
    is_long_enough = len(body) >= _TALLY.size and (len(body) - _TALLY.size) % _OTHER.size == 0
    if not is_long_enough or zlib.crc32(body).to_bytes(4, "little") != packed[-4:]:
        raise ValueError("the checksum of what was counted last does not hold")
    numbers: tuple[int, int, int, int, int, int, int, int] = _TALLY.unpack_from(body, 0)
    tally.minute, tally.sends, tally.send_units, tally.send_bytes = numbers[:4]
    tally.receives, tally.receive_units, tally.receive_bytes, tally.settlements = numbers[4:]
    for at in range(_TALLY.size, len(body), _OTHER.size):
        other: tuple[int, int, int, int] = _OTHER.unpack_from(body, at)
        tally.count_many(other[0], other[1], other[2], other[3])
    return tally


# -- the lines of a sealed day --------------------------------------------------------------------------------------


def line_of(namespace: str, row: LedgerRow) -> str:
    """One JSON object, without the end of the line. docs/ledger.md describes the fields."""
    return json.dumps(
        {
            "format": FORMAT,
            "namespace": namespace,
            "minute": minute_text(row.minute),
            "epoch_s": row.minute * 60,
            "entity": row.entity,
            "kind": KIND_NAMES[row.kind],
            "operations": row.operations,
            "units": row.units,
            "bytes": row.size_bytes,
        },
        separators=(",", ":"),
    )


def row_of(line: str) -> LedgerRow:
    """The row of a line; ValueError says what is wrong with it."""
    fields = json.loads(line)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError(f"not a line of a ledger of format {FORMAT}")
    if fields.get("kind") not in KIND_NAMES or not isinstance(fields.get("entity"), str):
        raise ValueError("a line of a ledger without a kind that is known and an entity")
    numbers: list[int] = []
    for name in ("epoch_s", "operations", "units", "bytes"):
        number = fields.get(name)
        if not isinstance(number, int):
            raise ValueError(f"a line of a ledger whose '{name}' is no whole number")
        numbers.append(number)
    kind = KIND_NAMES.index(fields["kind"])
    return LedgerRow(numbers[0] // 60, str(fields["entity"]), kind, numbers[1], numbers[2], numbers[3])


class DayPacker:
    """Makes the bytes of a day's file (gzip) piece by piece. The same rows give the same bytes, whoever packs when."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.deflating = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # 16: with a header as gzip has it

    def pack(self, rows: list[LedgerRow]) -> bytes:
        lines = "".join([line_of(self.namespace, row) + "\n" for row in rows])
        return self.deflating.compress(lines.encode("ascii"))

    def finish(self) -> bytes:
        return self.deflating.flush()


class DayUnpacker:
    """Reads the rows back, piece by piece: in bounded memory, however long the day was."""

    def __init__(self) -> None:
        self.inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self.rest = b""

    def unpack(self, data: bytes) -> list[LedgerRow]:
        """The rows that end in this piece. ValueError: it is no file of a ledger."""
        try:
            text = self.rest + self.inflating.decompress(data)
        except zlib.error as error:
            raise ValueError(f"not packed by gzip: {error}") from None
        lines = text.split(b"\n")
        self.rest = lines.pop()
        return [row_of(line.decode("ascii")) for line in lines]

    def finish(self) -> None:
        """ValueError if the file was cut short."""
        if not self.inflating.eof or self.rest:
            raise ValueError("the file is cut short")
