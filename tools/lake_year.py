"""`make lake-year`: a year of a million messages a day as files, and how long it takes to list and to count them.

One day is written for real, at the layout that captures write, as a watch by default leaves it: 288 batches of two
files. The compact job makes four files of it. Other days are links to the same files in directories of their own, with
manifests of their own: a listing and a count cannot tell them from others. Bodies are short: neither reads them.

    watch        days that nobody has compacted: 1 and 4 of them; the year is drawn out from these
    compacted    30 days, and all 365

Each is read by `captured`, as a user reads it, in a warm session. Writes docs/evidence/lake-year.json.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from spillway.spark.jobs import compact  # noqa: E402
from spillway.spark.platform.session import build_session  # noqa: E402
from spillway.spark.source.compacted_days import Manifest, manifests_of, now_text, publish, snapshot_of  # noqa: E402
from spillway.spark.source.deduplicated_view import SCHEMA, captured  # noqa: E402
from spillway.spark.source.lake import BATCH, DAY, ENTITY, Lake  # noqa: E402
from tests.tools.commit import commit, machine  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST: Final = date(2026, 1, 1)
YEAR_DAYS: Final = 365
WATCHED_DAYS: Final = (1, 4)
COMPACTED_DAYS: Final = (30, YEAR_DAYS)
NAMESPACE: Final = "contoso.servicebus.windows.net"
ENTITY_NAME: Final = "orders"
ROUNDS: Final = 3
COLUMNS: Final = {
    "namespace": f"'{NAMESPACE}'",
    "sequence_number": "id + 1",
    "enqueued_sequence_number": "id + 1",
    "state": "'active'",
    "delivery_count": "0",
    "lock_token": "uuid()",
    "message_id": "uuid()",
    "subject": "'paid'",
    "application_properties": "map('shop', string(id % 100))",
    "property_types": "map('shop', 'string')",
    "body_type": "'data'",
    "body": "unhex(sha2(string(id), 256))",
}

Result = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Of a day: what a watch by default makes of a million messages on two cores."""

    messages: int = 1_000_000
    batches: int = 288  # one every five minutes
    files_of_batch: int = 2
    compacted_files: int = 4  # of about 256 MB, if a message has 1 KB


# -- trees -------------------------------------------------------------------------------------------------------------


def write_day(spark: "SparkSession", path: Path, size: Size) -> None:
    """One day, as batches of a watch: day=…/batch=…/entity=…/part-….parquet."""
    lake = Lake(spark, str(path))
    lake.claim("out")
    schema = spark.createDataFrame([], SCHEMA).schema
    began_s = int(datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC).timestamp())
    time_of = f"timestamp_millis({began_s}000L + id * 86400000L DIV {size.messages})"
    known = COLUMNS | {"enqueued_time": time_of, "locked_until": f"{time_of} + INTERVAL 1 MINUTE"}
    made = [
        f"CAST({known.get(field.name, 'NULL')} AS {field.dataType.simpleString()}) AS `{field.name}`"
        for field in schema.fields
        if field.name not in (BATCH, ENTITY, DAY)
    ]
    moment = f"timestamp_seconds({began_s} + (number + 1) * 86400 DIV {size.batches})"
    name = f"concat(date_format({moment}, \"yyyyMMdd'T'HHmmss'Z'\"), '-1f0c9a3e-', lpad(string(number), 6, '0'))"
    each = [f"DATE('{FIRST}') AS {DAY}", f"{name} AS {BATCH}", f"'{ENTITY_NAME}' AS {ENTITY}"]
    # A task has every so-manieth message: each batch becomes a file of each.
    rows = spark.range(0, size.messages, 1, 1).repartition(size.files_of_batch)
    rows = rows.selectExpr("id", f"id * {size.batches} DIV {size.messages} AS number")
    marks = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
    writer = rows.selectExpr(*made, *each).write.mode("append").option("compression", "zstd").option(marks, "false")
    writer.partitionBy(DAY, BATCH, ENTITY).parquet(str(path))


def compact_day(spark: "SparkSession", path: Path, size: Size) -> Manifest:
    """By the real job; the files that it replaced are deleted."""
    written = sum(file.stat().st_size for file in path.glob(f"{DAY}=*/**/*.parquet"))
    file_mb = max(1, math.floor(written / 1_000_000 / (size.compacted_files - 0.5)))
    compact.run(spark, compact.CompactConfig(str(path), grace_s=0.0, file_mb=file_mb))
    (manifest,) = manifests_of(Lake(spark, str(path))).values()
    return manifest


def link_days(spark: "SparkSession", path: Path, count: int, manifest: Manifest | None) -> None:
    """Days after the first, of the same files, until there are so many; with manifests if the first has one."""
    lake = Lake(spark, str(path))
    source = path / f"{DAY}={FIRST}"
    files = [file.relative_to(source) for file in source.rglob("*") if file.is_file()]
    for number in range(1, count):
        day = (FIRST + timedelta(days=number)).isoformat()
        target = path / f"{DAY}={day}"
        if target.exists():
            continue
        for file in files:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            os.link(source / file, target / file)
        if manifest is not None:
            published = now_text(datetime.now(UTC))
            is_first = publish(lake, Manifest(day, 1, manifest.batch, published, manifest.messages), [])
            assert is_first, f"{day} has a manifest"


# -- measuring ---------------------------------------------------------------------------------------------------------


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.monotonic()
    found = work()
    return time.monotonic() - began_s, found


def measure(spark: "SparkSession", path: Path, tree: str, days: int, size: Size, rounds: int) -> Result:
    """`view_s`: until there is a DataFrame, with all listings that are made; then counting all of it, and one day."""
    files = list(path.glob(f"{DAY}=*/**/*.parquet"))
    names: dict[str, list[float]] = {"snapshot_s": [], "view_s": [], "count_s": [], "day_s": []}
    day = (FIRST + timedelta(days=days - 1)).isoformat()
    counted = counted_day = 0
    for _ in range(rounds):
        names["snapshot_s"].append(timed(lambda: snapshot_of(Lake(spark, str(path))))[0])
        took_s, frame = timed(lambda: captured(spark, str(path)))
        names["view_s"].append(took_s)
        took_s, counted = timed(frame.count)
        names["count_s"].append(took_s)
        took_s, counted_day = timed(frame.where(f"{DAY} = '{day}'").count)
        names["day_s"].append(took_s)
    assert (counted, counted_day) == (days * size.messages, size.messages), (counted, counted_day)
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    found: Result = {
        "tree": tree,
        "days": days,
        "messages": counted,
        "files": len(files),
        "directories": sum(1 for each in path.glob(f"{DAY}=*/**") if each.is_dir()),
        "manifests": len(manifests_of(Lake(spark, str(path)))),
        "is_plain_scan": "Window" not in plan,
        "load": round(os.getloadavg()[0], 1),
    }
    found |= {name: round(statistics.median(values), 2) for name, values in names.items()}
    return found | {"all_" + name: [round(value, 2) for value in values] for name, values in names.items()}


def drawn_out(trees: Sequence[Result], days: int) -> Result:
    """A line through the smallest and the largest: what so many days would be."""
    first, last = min(trees, key=lambda each: each["days"]), max(trees, key=lambda each: each["days"])
    found: Result = {"tree": last["tree"], "days": days, "is_drawn_out": True}
    for name in ("messages", "files", "directories", "snapshot_s", "view_s", "count_s"):
        slope = (last[name] - first[name]) / (last["days"] - first["days"])
        value = last[name] + slope * (days - last["days"])
        found[name] = round(value, 1) if name.endswith("_s") else round(value)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=Size.messages, help="of a day")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each measurement; the median counts")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "lake-year.json")
    chosen = parser.parse_args()
    size = Size(messages=chosen.messages)
    about = {"commit": commit(), "machine": machine(), "began": datetime.now(UTC).isoformat(timespec="seconds")}
    with tempfile.TemporaryDirectory(prefix="spillway-year-") as directory:
        trees = measured(Path(directory), size, chosen.rounds)
    year = drawn_out([each for each in trees if each["tree"] == "watch"], YEAR_DAYS)
    facts = {**about, "day": size.__dict__, "rounds": chosen.rounds, "trees": trees, "year": year}
    chosen.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    for each in (*trees, year):
        print(f"lake-year: {each['tree']:<9} {each['days']:>3} days: {each['files']:,} files, {each['count_s']} s")
    print(f"lake-year: written to {chosen.out}")
    return 0


def measured(directory: Path, size: Size, rounds: int) -> list[Result]:
    spark = build_session("lake year", master="local[2,4]", config={"spark.driver.memory": "2g"})
    path = directory / "lake"
    write_day(spark, path, size)
    captured(spark, str(path)).count()  # Spark compiles what it runs the first times
    trees = []
    for days in WATCHED_DAYS:
        link_days(spark, path, days, None)
        trees.append(measure(spark, path, "watch", days, size, rounds))
        print(f"lake-year: {trees[-1]}", flush=True)
    for number in range(1, max(WATCHED_DAYS)):
        shutil.rmtree(path / f"{DAY}={FIRST + timedelta(days=number)}")
    manifest = compact_day(spark, path, size)
    for days in COMPACTED_DAYS:
        link_days(spark, path, days, manifest)
        trees.append(measure(spark, path, "compacted", days, size, rounds))
        print(f"lake-year: {trees[-1]}", flush=True)
    spark.stop()
    return trees


if __name__ == "__main__":
    sys.exit(main())
