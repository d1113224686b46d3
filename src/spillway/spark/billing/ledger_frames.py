"""Ledgers as DataFrames: what metering and cost compute, for queries of one's own and for declarative pipelines.

A pipeline is defined over Spark Connect and run later. While it is defined Spark may not be asked for anything, not
even for the columns of a frame, as `mapInArrow` does: so Python comes in through functions of one column here.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spillway.spark.billing.charges import Charge, Metered, Tariff, charges_of
from spillway.spark.billing.ledger_files import LedgerFile, sum_file
from spillway.spark.billing.metering_inputs import Inputs, LedgerDirectory, find_sealed
from spillway.spark.billing.prices import money
from spillway.spark.platform.line_files import BadLine

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TASKS: Final = 8
KEYS: Final = ("day", "namespace", "entity", "kind", "source")
MEASURES: Final = ("operations", "units", "bytes")
SUMMED: Final = (
    "day string, namespace string, entity string, kind string, source string, operations bigint, units bigint, "
    "bytes bigint, first_epoch_s bigint, last_epoch_s bigint, lines bigint, "
    "bad_file string, bad_line bigint, bad_reason string, bad_text string"
)
CHARGED: Final = (
    "day string, namespace string, entity string, kind string, line string, operations bigint, units bigint, "
    "bytes bigint, hours bigint, operations_cost decimal(38,12), transfer_cost decimal(38,12), "
    "hours_cost decimal(38,12), cost decimal(38,12)"
)


def sealed_days(spark: "SparkSession", *directories: str | Path | LedgerDirectory, tasks: int = TASKS) -> "DataFrame":
    """The sealed days of these data directories, or of the `ledger` inside: sums by file, and what was set aside.

    `metered` and `set_aside` are the two halves of it. The files are looked for now, and read when the frame is run.
    """
    inputs = Inputs()
    for directory in directories:
        if not isinstance(directory, LedgerDirectory):
            directory = LedgerDirectory(Path(directory).absolute())
        find_sealed(directory, inputs)
    hands = dealt_out([file for of_day in inputs.by_day().values() for file in of_day], tasks)
    known = [_bad_row(bad) for bad in inputs.bad]

    def read(number: int) -> list[tuple[Any, ...]]:
        batches = [batch for file in hands[number] for batch in batches_of(file)]
        if number == 0:
            batches += _batches(known, arrow_of(SUMMED))
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    return _exploded(spark.range(0, len(hands), 1, len(hands)), "id", read, struct_of(SUMMED))


def metered(summed: "DataFrame") -> "DataFrame":
    """One row for each day, namespace, entity, kind and source."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    sums = [F.sum(name).alias(name) for name in MEASURES]
    times = [F.min("first_epoch_s").alias("first_epoch_s"), F.max("last_epoch_s").alias("last_epoch_s")]
    return summed.where("entity is not null").groupBy(*KEYS).agg(*sums, *times)


def set_aside(summed: "DataFrame") -> "DataFrame":
    """Lines and files that cannot be used, and why; `line` 0 is the file as a whole."""
    columns = ("bad_file AS file", "bad_line AS line", "bad_reason AS reason", "bad_text AS text")
    return summed.where("bad_reason is not null").selectExpr(*columns)


def charged(metered_rows: "DataFrame", tariff: Tariff) -> "DataFrame":
    """Every line of the bill of a metered table, exact to twelve digits.

    The lines of a month depend on each other, so this is one task, which holds the table: a row for each day, entity
    and kind. The cost job prices tables of any length, to the same digits.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = ("day", "namespace", "entity", "kind", *MEASURES, "first_epoch_s", "last_epoch_s")  # those of `Metered`

    def price(rows: list[Any]) -> list[tuple[Any, ...]]:
        charges, _ = charges_of([Metered(*row) for row in rows], tariff)
        return [_charge_row(charge) for charge in charges]

    all_rows = metered_rows.agg(F.collect_list(F.struct(*columns)).alias("rows"))
    return _exploded(all_rows, "rows", price, struct_of(CHARGED))


def _charge_row(charge: Charge) -> tuple[Any, ...]:
    pico = (charge.operations_pico, charge.transfer_pico, charge.hours_pico, charge.cost_pico)
    counts = (charge.operations, charge.units, charge.size_bytes, charge.hours)
    return (*charge[:5], *counts, *[money(amount) for amount in pico])


def _exploded(frame: "DataFrame", column: str, rows_of: Callable[[Any], list[Any]], row: "StructType") -> "DataFrame":
    """All rows that the function makes of the values of a column."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType

    # Without the types of its arguments, from which Spark would guess what kind of function it is, and warn.
    made = F.udf(lambda value: rows_of(value), ArrayType(row))(F.col(column))
    return frame.select(F.explode(made).alias("made")).select("made.*")


# -- files ----------------------------------------------------------------------------------------------------------


def dealt_out(files: Sequence[LedgerFile], count: int) -> list[list[LedgerFile]]:
    """By size, so that tasks end together; at least one hand, at most `count`."""
    hands = max(1, min(len(files), count))
    by_size = sorted(files, key=lambda file: -_size_of(file))
    dealt = [by_size[at::hands] for at in range(hands)]
    assert sum(map(len, dealt)) == len(files), "every file is in one hand"
    return dealt


def _size_of(file: LedgerFile) -> int:
    try:
        return Path(file.path).stat().st_size
    except OSError:
        return 0  # it has gone: whoever reads it will say so


def batches_of(file: LedgerFile) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    summed = sum_file(file)
    schema = arrow_of(SUMMED)
    if summed.table is not None:
        table = summed.table
        count = table.num_rows
        constant = {"day": file.day, "namespace": file.counted_as or file.namespace, "source": file.source}
        columns = []
        for each in schema:
            if each.name in constant:
                columns.append(pa.repeat(pa.scalar(constant[each.name], pa.string()), count))
            elif each.name in table.column_names:
                columns.append(table[each.name])
            else:
                columns.append(pa.nulls(count, each.type))
        yield from pa.table(columns, schema=schema).to_batches(max_chunksize=65_536)
    told = [{"day": file.day, "lines": summed.lines}, *[{"day": file.day, **_bad_row(bad)} for bad in summed.bad]]
    yield from _batches(told, schema)


def _bad_row(bad: BadLine) -> dict[str, Any]:
    return {"bad_file": bad.file, "bad_line": bad.line, "bad_reason": bad.reason, "bad_text": bad.text}


def _batches(rows: list[dict[str, Any]], schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    yield from pa.Table.from_pylist(rows, schema=schema).to_batches()


def arrow_of(columns: str) -> "pa.Schema":
    """Of the columns that are written here."""
    import pyarrow as pa

    types = {"string": pa.string(), "bigint": pa.int64(), "decimal(38,12)": pa.decimal128(38, 12)}
    return pa.schema([(name, types[kind]) for name, kind in _fields(columns)])


def struct_of(columns: str) -> "StructType":
    """The same for Spark, which would have to be asked for it: a pipeline may not ask while it is being defined."""
    from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

    types = {"string": StringType(), "bigint": LongType(), "decimal(38,12)": DecimalType(38, 12)}
    return StructType([StructField(name, types[kind]) for name, kind in _fields(columns)])


def _fields(columns: str) -> list[list[str]]:
    return [column.split() for column in columns.split(", ")]
