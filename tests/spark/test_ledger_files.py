"""Files of a ledger: what is in them is summed, what is wrong in them is set aside with file, line and reason."""

import gzip
import json
import random
from pathlib import Path

import pytest

from spillway.model.ledger import KIND_NAMES, DayPacker, LedgerRow, day_name
from spillway.spark.billing import ledger_files
from spillway.spark.billing.ledger_files import LedgerFile, Summed, rows_of, sum_file
from spillway.spark.platform import line_files

DAY = 20_819  # 2027-01-01
GOOD = (
    '{"format":1,"namespace":"east","minute":"2027-01-01T00:01:00Z","epoch_s":1798761660,"entity":"orders",'
    '"kind":"send","operations":2,"units":3,"bytes":100}'
)


def sealed(path: Path, rows: list[LedgerRow], namespace: str = "east") -> LedgerFile:
    packer = DayPacker(namespace)
    path.write_bytes(packer.pack(rows) + packer.finish())
    return LedgerFile(str(path), day_name(DAY), namespace, "broker")


def made(count: int, seed: int = 1) -> list[LedgerRow]:
    chance = random.Random(seed)
    return [
        LedgerRow(
            DAY * 1440 + chance.randrange(1440),
            f"queue-{chance.randrange(20)}",
            chance.randrange(len(KIND_NAMES)),
            chance.randrange(1, 100),
            chance.randrange(1, 200),
            chance.randrange(10_000),
        )
        for _ in range(count)
    ]


def written(path: Path, lines: list[str]) -> LedgerFile:
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")))
    return LedgerFile(str(path), day_name(DAY), "east", "broker")


def sums(summed: Summed) -> dict[tuple[str, str], tuple[int, ...]]:
    rows = [] if summed.table is None else summed.table.to_pylist()
    return {(row["entity"], row["kind"]): tuple(row.values())[2:] for row in rows}


@pytest.mark.parametrize("chunk_bytes", [1000, 8 << 20])
def test_a_sealed_day_is_summed_by_entity_and_kind(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (ledger_files, line_files):
        monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
    rows = made(3000)
    expected: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        at_s = row.minute * 60
        was = expected.setdefault((row.entity, KIND_NAMES[row.kind]), [0, 0, 0, at_s, at_s])
        was[0] += row.operations
        was[1] += row.units
        was[2] += row.size_bytes
        was[3:] = [min(was[3], at_s), max(was[4], at_s)]
    summed = sum_file(sealed(tmp_path / "east.jsonl.gz", rows))
    assert (summed.bad, summed.lines) == ([], 3000)
    assert sums(summed) == {key: tuple(value) for key, value in expected.items()}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[1]", "not a JSON object"),
        ("\udcff", "not JSON"),
        (GOOD.replace('"format":1', '"format":2'), "'format' must be 1"),
        (GOOD.replace('"operations":2', '"operations":2.0'), "'operations' must be a whole number"),
        (GOOD.replace('"operations":2', '"operations":true'), "'operations' must be a whole number"),
        (GOOD.replace('"operations":2', '"operations":-2'), "'operations' must be a whole number from 0"),
        (GOOD.replace('"units":3', '"units":99999999999999999999999'), "'units' must be a whole number"),
        (GOOD.replace('"bytes":100', '"bytes":null'), "'bytes' must be a whole number"),
        (GOOD.replace(',"bytes":100', ""), "'bytes' must be a whole number"),
        (GOOD.replace("orders", "\\ud800"), "'entity' has half a character in it"),
        (GOOD.replace('"orders"', "7"), "'entity' must be text"),
        (GOOD.replace("send", "teleport"), "'kind' must be one of send, receive"),
        (GOOD.replace("east", "west"), "'namespace' is 'west', but the file is of 'east'"),
        (GOOD.replace("1798761660", "1798848060"), "'epoch_s' is on 2027-01-02, but the file is of 2027-01-01"),
    ],
)
def test_a_line_that_cannot_be_used_is_set_aside_and_the_others_count(line: str, reason: str, tmp_path: Path) -> None:
    file = written(tmp_path / "east.jsonl.gz", [GOOD, line, GOOD])
    summed = sum_file(file)
    assert sums(summed) == {("orders", "send"): (4, 6, 200, 1798761660, 1798761660)}
    (bad,) = summed.bad
    assert (bad.file, bad.line) == (file.path, 2)
    assert bad.reason.startswith(reason) or reason in bad.reason
    assert len(bad.text) <= 300


def test_names_of_all_letters_count_escaped_or_not(tmp_path: Path) -> None:
    lines = [GOOD.replace("orders", "bücher/ö"), json.dumps(json.loads(GOOD.replace("orders", "bücher/ö")))]
    assert sums(sum_file(written(tmp_path / "east.jsonl.gz", lines))) == {
        ("bücher/ö", "send"): (4, 6, 200, 1798761660, 1798761660)
    }


def test_of_very_many_bad_lines_a_hundred_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    summed = sum_file(written(tmp_path / "east.jsonl.gz", ["?"] * 250))
    assert len(summed.bad) == 101
    assert summed.bad[-1].reason == "and 150 more lines that cannot be used"


def damage(whole: bytes, how: str) -> bytes:
    if how == "cut":
        return whole[: len(whole) // 2]
    if how == "flipped":
        return whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:]
    if how == "garbage in the middle":
        return whole[: len(whole) // 2] + b"\xff" * 64 + whole[len(whole) // 2 + 64 :]
    return {"empty": b"", "not gzip": b"hello\n"}[how]


@pytest.mark.parametrize("how", ["cut", "flipped", "garbage in the middle", "empty", "not gzip"])
def test_nothing_of_a_damaged_file_is_counted_and_the_reason_is_told(how: str, tmp_path: Path) -> None:
    file = sealed(tmp_path / "east.jsonl.gz", made(3000))
    path = Path(file.path)
    path.write_bytes(damage(path.read_bytes(), how))
    summed = sum_file(file)
    (bad,) = summed.bad
    assert summed.table is None
    assert (bad.file, bad.line) == (file.path, 0)
    assert "nothing of the file is counted" in bad.reason and "after line" in bad.reason


def test_a_packed_file_whose_last_line_has_no_end_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "east.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD.encode()[:-5]))
    assert "the last line has no end" in sum_file(LedgerFile(str(path), "2027-01-01", "east", "broker")).bad[0].reason


def test_a_file_that_unpacks_to_one_endless_line_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "east.jsonl.gz"
    path.write_bytes(gzip.compress(b"x" * (40 << 20)))
    assert "a line is longer than" in sum_file(LedgerFile(str(path), "2027-01-01", "east", "broker")).bad[0].reason


def test_a_file_that_has_gone_is_told(tmp_path: Path) -> None:
    summed = sum_file(LedgerFile(str(tmp_path / "none.gz"), "2027-01-01", "east", "broker"))
    assert summed.bad[0].reason == "cannot be read: No such file or directory"


def test_several_packed_files_in_one_are_read_to_the_end(tmp_path: Path) -> None:
    file = sealed(tmp_path / "east.jsonl.gz", made(10))
    path = Path(file.path)
    path.write_bytes(path.read_bytes() * 3)
    assert sum_file(file).lines == 30
    assert len(list(rows_of(path))) == 30
