"""Files of a ledger, read on an executor: summed by entity and kind as they are read, in bounded memory.

A line that cannot be used is set aside with its number and a reason, and the others count. A file that is damaged as a
whole (gzip's checksum does not hold, or its end is missing) counts for nothing: what was read of it cannot be trusted.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.model.ledger import FORMAT, KIND_NAMES
from spillway.spark.billing.charges import RawRow, day_text
from spillway.spark.platform.line_files import (
    CHUNK_BYTES,
    LINE_BYTES_MAX,
    BadLine,
    DamagedFile,
    chunks_of,
    shown,
    whole,
    words,
)

if TYPE_CHECKING:
    import pyarrow as pa

BAD_LINES_MAX: Final = 100  # told of one file; the rest of them are counted
COUNT_MAX: Final = 10**12  # operations or units of a minute: more is damage, and sums of it might not fit
BYTES_MAX: Final = 10**15
EPOCH_MAX: Final = 253_402_300_800  # the year 10000
DAY_S: Final = 86_400
PARTS_MAX: Final = 32  # sums of chunks that are kept before they are summed once more


class LedgerFile(NamedTuple):
    """Plain values, for they travel to executors. What every line of the file must be of."""

    path: str
    day: str
    namespace: str
    source: str  # broker, open, client
    counted_as: str = ""  # the name of the namespace in the table, if it is another


@dataclass
class Summed:
    """What a file came to: a table of sums (`sum_schema`), or nothing, and what was set aside."""

    table: "pa.Table | None"
    bad: list[BadLine]
    lines: int


def sum_schema() -> "pa.Schema":
    import pyarrow as pa

    names = ("operations", "units", "bytes", "first_epoch_s", "last_epoch_s")
    return pa.schema(
        [("entity", pa.string()), ("kind", pa.string())] + [pa.field(name, pa.int64()) for name in names],
    )


def sum_file(file: LedgerFile) -> Summed:
    """Never raises for what is in the file, nor for a file that has gone."""
    reading = _LedgerReading(file)
    try:
        for chunk in chunks_of(Path(file.path)):
            reading.add(chunk)
    except DamagedFile as damage:
        bad = BadLine(
            file.path, 0, f"{damage.reason}, after line {reading.lines:,}; nothing of the file is counted", ""
        )
        return Summed(None, [bad], reading.lines)
    except OSError as error:
        return Summed(None, [BadLine(file.path, 0, f"cannot be read: {error.strerror}", "")], reading.lines)
    return reading.finish()


class _LedgerReading:
    def __init__(self, file: LedgerFile) -> None:
        import pyarrow as pa
        import pyarrow.json

        self.file = file
        self.lines = 0
        self.bad: list[BadLine] = []
        self.bad_count = 0
        self.parts: list[pa.Table] = []
        fields = [(name, pa.string()) for name in ("namespace", "entity", "kind")]
        fields += [(name, pa.int64()) for name in ("format", "epoch_s", "operations", "units", "bytes")]
        self.as_said = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore", newlines_in_values=False
        )
        self.at_once = pyarrow.json.ReadOptions(use_threads=False, block_size=CHUNK_BYTES + LINE_BYTES_MAX)
        day_begin = day_begin_s(file.day)
        self.limits = (
            ("format", FORMAT, FORMAT),
            ("epoch_s", day_begin, day_begin + DAY_S - 1),
            ("operations", 0, COUNT_MAX),
            ("units", 0, COUNT_MAX),
            ("bytes", 0, BYTES_MAX),
        )

    def add(self, chunk: bytes) -> None:
        """Whole lines. Fast if all of them are as they should be, else one by one."""
        count = chunk.count(b"\n")
        table = self._parsed(chunk, count)
        if table is None:
            table = self._one_by_one(chunk)
        self.lines += count
        if table.num_rows:
            sums = [(name, "sum") for name in ("operations", "units", "bytes")]
            grouped = table.group_by(["entity", "kind"], use_threads=False)
            self.parts.append(_named(grouped.aggregate([*sums, ("epoch_s", "min"), ("epoch_s", "max")])))
        if len(self.parts) > PARTS_MAX:
            self.parts = [_merged(self.parts)]

    def finish(self) -> Summed:
        if self.bad_count > len(self.bad):
            more = self.bad_count - len(self.bad)
            self.bad.append(BadLine(self.file.path, 0, f"and {more:,} more lines that cannot be used", ""))
        return Summed(_merged(self.parts) if self.parts else None, self.bad, self.lines)

    def _parsed(self, chunk: bytes, count: int) -> "pa.Table | None":
        """None: something in it is not as it should be, and has to be found."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.json

        if not chunk.isascii():  # the broker escapes whatever is not
            return None
        try:
            table = pyarrow.json.read_json(io.BytesIO(chunk), self.at_once, self.as_said)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if table.num_rows != count or any(column.null_count for column in table.columns):
            return None
        for name, least, most in self.limits:
            found = pc.min_max(table[name])
            if found["min"].as_py() < least or found["max"].as_py() > most:
                return None
        kinds, namespaces = pc.unique(table["kind"]).to_pylist(), pc.unique(table["namespace"]).to_pylist()
        if namespaces != [self.file.namespace] or any(kind not in KIND_NAMES for kind in kinds):
            return None
        return table.select(["entity", "kind", "operations", "units", "bytes", "epoch_s"])

    def _one_by_one(self, chunk: bytes) -> "pa.Table":
        import pyarrow as pa

        good: list[RawRow] = []
        for at, line in enumerate(chunk.split(b"\n")[:-1]):
            try:
                good.append(checked_row(line, self.file.day, self.file.namespace))
            except ValueError as error:
                self.bad_count += 1
                if len(self.bad) < BAD_LINES_MAX:
                    self.bad.append(BadLine(self.file.path, self.lines + at + 1, str(error), shown(line)))
        return pa.table(
            {
                "entity": pa.array([row.entity for row in good], pa.string()),
                "kind": pa.array([row.kind for row in good], pa.string()),
                "operations": pa.array([row.operations for row in good], pa.int64()),
                "units": pa.array([row.units for row in good], pa.int64()),
                "bytes": pa.array([row.size_bytes for row in good], pa.int64()),
                "epoch_s": pa.array([row.epoch_s for row in good], pa.int64()),
            }
        )


def _named(table: "pa.Table") -> "pa.Table":
    names = ("operations_sum", "units_sum", "bytes_sum", "epoch_s_min", "epoch_s_max")
    return table.select(["entity", "kind", *names]).cast(_with_names(names)).rename_columns(sum_schema().names)


def _with_names(names: tuple[str, ...]) -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([("entity", pa.string()), ("kind", pa.string())] + [(name, pa.int64()) for name in names])


def _merged(parts: "list[pa.Table]") -> "pa.Table":
    import pyarrow as pa

    sums = [(name, "sum") for name in ("operations", "units", "bytes")]
    grouped = pa.concat_tables(parts).group_by(["entity", "kind"], use_threads=False)
    found = grouped.aggregate([*sums, ("first_epoch_s", "min"), ("last_epoch_s", "max")])
    names = ("operations_sum", "units_sum", "bytes_sum", "first_epoch_s_min", "last_epoch_s_max")
    return found.select(["entity", "kind", *names]).rename_columns(sum_schema().names)


# -- lines --------------------------------------------------------------------------------------------------------


def checked_row(line: bytes, day: str | None = None, namespace: str | None = None) -> RawRow:
    """ValueError says what is wrong with it."""
    try:
        fields = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not a line of a ledger: nested too deep") from None
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    numbers = [
        whole(fields, "format", FORMAT, FORMAT),
        whole(fields, "epoch_s", 0, EPOCH_MAX),
        whole(fields, "operations", 0, COUNT_MAX),
        whole(fields, "units", 0, COUNT_MAX),
        whole(fields, "bytes", 0, BYTES_MAX),
    ]
    row = RawRow(words(fields, "namespace"), numbers[1], words(fields, "entity"), words(fields, "kind"), *numbers[2:])
    if row.kind not in KIND_NAMES:
        raise ValueError(f"'kind' must be one of {', '.join(KIND_NAMES)}, not '{row.kind[:50]}'")
    if namespace is not None and row.namespace != namespace:
        raise ValueError(f"'namespace' is '{row.namespace[:50]}', but the file is of '{namespace}'")
    if day is not None and day_text(row.epoch_s) != day:
        raise ValueError(f"'epoch_s' is on {day_text(row.epoch_s)}, but the file is of {day}")
    return row


def day_begin_s(day: str) -> int:
    from datetime import UTC, datetime

    return int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())


def rows_of(path: Path) -> Iterator[RawRow]:
    """Every row of a file that has nothing wrong with it; ValueError and `DamagedFile` otherwise."""
    for chunk in chunks_of(path):
        for line in chunk.split(b"\n")[:-1]:
            yield checked_row(line)
