"""Words and arithmetic of the ledger: units at their edges, times, and lines that come back as they went."""

import gzip
import json

import pytest

from spillway.model.ledger import (
    KIND_NAMES,
    PING,
    RECEIVE,
    RENEW,
    SEND,
    UNIT_BYTES,
    DayPacker,
    DayUnpacker,
    LedgerRow,
    Tally,
    Totals,
    day_name,
    day_of,
    line_of,
    minute_of,
    minute_text,
    row_of,
    units_of,
    unpack_tally,
)

ROWS = [
    LedgerRow(29_000_000 + number // 3, f"queue-{number}/$DeadLetterQueue", number % 11, number, number + 1, number * 7)
    for number in range(500)
]


def fields(rows: list[LedgerRow]) -> list[tuple[object, ...]]:
    return [(*row.key(), row.operations, row.units, row.size_bytes) for row in rows]


@pytest.mark.parametrize(
    ("size_bytes", "units"),
    [
        (0, 1),
        (1, 1),
        (UNIT_BYTES - 1, 1),
        (UNIT_BYTES, 1),
        (UNIT_BYTES + 1, 2),
        (2 * UNIT_BYTES, 2),
        (2 * UNIT_BYTES + 1, 3),
        (256 * 1024, 4),
    ],
)
def test_a_unit_is_64_kb_begun_and_one_at_least(size_bytes: int, units: int) -> None:
    assert units_of(size_bytes) == units


def test_a_minute_and_a_day_begin_where_utc_says() -> None:
    midnight_ms = 1_800_057_600_000  # 2027-01-16
    assert minute_text(minute_of(midnight_ms)) == "2027-01-16T00:00:00Z"
    assert minute_text(minute_of(midnight_ms - 1)) == "2027-01-15T23:59:00Z"
    assert day_name(day_of(minute_of(midnight_ms))) == "2027-01-16"
    assert day_name(day_of(minute_of(midnight_ms - 1))) == "2027-01-15"


def test_a_line_says_everything_about_its_row() -> None:
    line = line_of("contoso", LedgerRow(minute_of(1_800_057_600_000), "orders", RECEIVE, 3, 5, 200_000))
    assert json.loads(line) == {
        "format": 1,
        "namespace": "contoso",
        "minute": "2027-01-16T00:00:00Z",
        "epoch_s": 1_800_057_600,
        "entity": "orders",
        "kind": "receive",
        "operations": 3,
        "units": 5,
        "bytes": 200_000,
    }


def test_rows_come_back_from_a_day_as_they_went_in_whatever_the_pieces() -> None:
    packer = DayPacker("contoso")
    packed = packer.pack(ROWS[:200]) + packer.pack([]) + packer.pack(ROWS[200:]) + packer.finish()
    for size in (1, 7, 1_000, len(packed)):
        unpacker = DayUnpacker()
        rows = [row for at in range(0, len(packed), size) for row in unpacker.unpack(packed[at : at + size])]
        unpacker.finish()
        assert fields(rows) == fields(ROWS)


def test_a_day_is_gzip_as_every_tool_reads_it_and_the_same_bytes_each_time() -> None:
    packed = []
    for _ in range(2):
        packer = DayPacker("contoso")
        packed.append(packer.pack(ROWS) + packer.finish())
    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]).decode().splitlines() == [line_of("contoso", row) for row in ROWS]


@pytest.mark.parametrize("left_out", [1, 8, 200])
def test_a_day_that_is_cut_short_is_not_taken_for_a_whole_one(left_out: int) -> None:
    packer = DayPacker("contoso")
    packed = packer.pack(ROWS) + packer.finish()
    unpacker = DayUnpacker()
    unpacker.unpack(packed[:-left_out])
    with pytest.raises(ValueError, match="cut short"):
        unpacker.finish()


def test_what_is_no_gzip_is_said_so() -> None:
    with pytest.raises(ValueError, match="not packed by gzip"):
        DayUnpacker().unpack(b"plain text\n")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "format 1"),
        ({"kind": "gift"}, "kind that is known"),
        ({"entity": None}, "an entity"),
        ({"bytes": "many"}, "'bytes' is no whole number"),
        ({"epoch_s": None}, "'epoch_s' is no whole number"),
    ],
)
def test_a_line_that_cannot_be_a_row_is_refused(change: dict[str, object], problem: str) -> None:
    fields = json.loads(line_of("contoso", ROWS[0])) | change
    with pytest.raises(ValueError, match=problem):
        row_of(json.dumps(fields))


def test_a_tally_packed_and_unpacked_counts_on_where_it_was() -> None:
    tally = Tally("q", 7)
    tally.minute = 29_000_000
    assert tally.pack() == b""
    for size in (1, UNIT_BYTES + 1, 1 << 40):
        tally.send(size)
        tally.receive(size + 1)
        tally.settle()
        tally.count(PING, size)
    tally.count_many(RENEW, 5, 5, 0)
    twin = unpack_tally("q", 7, tally.pack())
    assert twin.pack() == tally.pack()
    twin.settle()
    tally.settle()
    rows: list[LedgerRow] = []
    tally.drain(rows)
    others: list[LedgerRow] = []
    twin.drain(others)
    assert fields(others) == fields(rows)
    assert {KIND_NAMES[row.kind]: row.operations for row in rows} == {
        "send": 3,
        "receive": 3,
        "settle": 4,
        "ping": 3,
        "renew": 5,
    }
    assert tally.is_empty() and tally.pack() == b""


def test_a_tally_with_a_flipped_bit_anywhere_or_cut_short_is_refused() -> None:
    tally = Tally("q", 7)
    tally.send(5)
    tally.count(PING, 5)
    packed = tally.pack()
    for at in range(len(packed) * 8):
        damaged = bytearray(packed)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(ValueError, match="does not hold"):
            unpack_tally("q", 7, bytes(damaged))
    for size in range(1, len(packed)):
        with pytest.raises(ValueError, match="does not hold"):
            unpack_tally("q", 7, packed[:size])


def test_totals_are_by_entity_and_kind() -> None:
    totals = Totals()
    for row in (
        LedgerRow(1, "a", SEND, 1, 2, 3),
        LedgerRow(2, "a", SEND, 10, 20, 30),
        LedgerRow(2, "b", SEND, 1, 1, 1),
    ):
        totals.add(row)
    assert {key: (count.operations, count.units, count.size_bytes) for key, count in totals.counts.items()} == {
        ("a", SEND): (11, 22, 33),
        ("b", SEND): (1, 1, 1),
    }


def test_every_kind_has_a_name_of_its_own() -> None:
    assert len(set(KIND_NAMES)) == len(KIND_NAMES) == 11
