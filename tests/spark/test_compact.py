"""Compaction on real Spark: the view reads the same before, while and after it, and whatever is killed."""

import json
import os
import signal
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spillway.client import OutgoingMessage
from spillway.spark.jobs import capture
from spillway.spark.jobs.compact import Compact, CompactConfig, CompactError, CompactSummary, check, main, run, text_of
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.job_directory import _Hadoop
from spillway.spark.source.compacted_days import MANIFESTS, manifests_of, snapshot_of
from spillway.spark.source.deduplicated_view import SCHEMA, captured, captured_files, captured_sql
from spillway.spark.source.lake import ABOUT, OURS, STAGING, Lake
from spillway.syphon.crash import AFTER, AT, COMPACTION_PLACES
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = "2026-11-14"
NEXT = "2026-11-15"
# The second day is over since an hour; the third is not.
NOW = datetime(2026, 11, 16, 1, tzinfo=UTC)
Row = tuple[str, str, int]


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


class Written:
    """A lake of the layout that captures write, made by Spark."""

    def __init__(self, spark: "SparkSession", path: Path) -> None:
        self.spark = spark
        self.path = path
        self.clock = Clock()
        self.lake = Lake(spark, str(path))
        self.lake.claim("out")

    def batch(self, name: str, *rows: Row) -> None:
        """Rows of (day, entity, sequence number), written to the staging directory and published."""
        values = ", ".join(f"('{day}', '{entity}', {number})" for day, entity, number in rows)
        columns = {
            "namespace": "'ns'",
            "sequence_number": "CAST(number AS BIGINT)",
            "enqueued_time": "timestamp_seconds(unix_date(DATE(of)) * 86400L + number)",
            "message_id": "concat('m', number)",
            "lock_token": f"'{name}'",
            "body": "CAST(concat(entity_, number) AS BINARY)",
        }
        frame = self.spark.sql(f"SELECT * FROM VALUES {values} AS t(of, entity_, number)")
        schema = self.spark.createDataFrame([], SCHEMA).schema
        found = [
            f"{columns.get(field.name, 'NULL')} AS `{field.name}`"
            if field.name in columns
            else f"CAST(NULL AS {field.dataType.simpleString()}) AS `{field.name}`"
            for field in schema.fields
            if field.name not in ("batch", "entity", "day")
        ]
        rows_ = frame.selectExpr(*found, "DATE(of) AS day", "entity_ AS entity")
        rows_.write.partitionBy("day", "entity").parquet(self.lake.staging(name))
        self.lake.publish(name)

    def compact(self, **options: Any) -> CompactSummary:
        return run(self.spark, CompactConfig(str(self.path), **options), clock=self.clock)

    def view(self) -> list[tuple[Any, ...]]:
        """Everything but the batch, which is the compaction's own afterwards."""
        return sorted(tuple(map(str, row)) for row in captured(self.spark, str(self.path)).drop("batch").collect())

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.path)) for path in self.path.glob("day=*/**/*.parquet"))


def rows(day: str, entity: str, numbers: Sequence[int]) -> list[Row]:
    return [(day, entity, number) for number in numbers]


@pytest.fixture
def written(spark: "SparkSession", tmp_path: Path) -> Written:
    made = Written(spark, tmp_path / "lake")
    made.batch(
        "20261114T080000Z-a-000001", *rows(DAY, "a/b", [3, 1, 2]), *rows(DAY, "007", [1]), *rows(NEXT, "a/b", [9])
    )
    # The lock of 3 was lost: it came again.
    made.batch("20261114T090000Z-a-000002", *rows(DAY, "a/b", [3, 4]), *rows("2026-11-16", "a/b", [20]))
    return made


def is_plain(written: Written) -> bool:
    frame = captured(written.spark, str(written.path)).where(f"day <= '{NEXT}'")
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    return "Window" not in plan


def test_days_that_are_over_become_sorted_files_with_each_message_once(written: Written) -> None:
    before = written.view()
    first = written.compact(dry_run=True)
    assert ([line["day"] for line in first.days], first.days_open) == ([DAY, NEXT], 1)
    assert first.days[0]["files"] == len([name for name in written.files() if f"day={DAY}" in name])
    assert manifests_of(written.lake) == {}
    summary = written.compact()
    assert (summary.messages, summary.copies, summary.files_deleted, summary.days_open) == (6, 1, 0, 1)
    assert [(line["messages"], line["copies"], line["files_after"]) for line in summary.days] == [(5, 1, 2), (1, 0, 1)]
    assert "2026-11-14: 5 messages" in text_of(summary) and "1 copy dropped" in text_of(summary)
    assert written.view() == before
    found = snapshot_of(written.lake)
    assert (len(found.plain), [path.rpartition("/")[2] for path in found.others]) == (2, ["day=2026-11-16"])
    numbers = [
        row["sequence_number"]
        for row in written.spark.read.parquet(f"{found.plain[0]}/entity=a%2Fb").select("sequence_number").collect()
    ]
    assert numbers == [1, 2, 3, 4]
    # Replaced files are still there for those who have listed them; every reader of all of them drops copies.
    assert captured_files(written.spark, str(written.path)).count() == len(before)
    for statement in captured_sql(str(written.path), "seen_compacted").split(";\n"):
        if statement.strip():
            written.spark.sql(statement)
    assert written.spark.table("seen_compacted").count() == len(before)
    again = written.compact()
    assert (again.days, again.days_clean, again.files_deleted) == ([], 2, 0)
    assert written.lake.directory.names(STAGING) == []


def test_the_view_of_a_lake_that_is_compacted_is_a_plain_scan(spark: "SparkSession", tmp_path: Path) -> None:
    written = Written(spark, tmp_path / "lake")
    assert written.view() == []
    written.batch("20261114T080000Z-a-000001", *rows(DAY, "a", [1, 2]), *rows(NEXT, "a", [3]))
    assert not is_plain(written)
    written.compact()
    assert is_plain(written)
    assert captured(spark, str(written.path)).where("day = '2026-11-14' AND entity = 'a'").count() == 2


def test_replaced_files_are_deleted_after_the_grace_and_a_reader_of_before_finds_them_until_then(
    written: Written,
) -> None:
    before, old = written.view(), captured(written.spark, str(written.path)).drop("batch")
    replaced = [name for name in written.files() if "day=2026-11-16" not in name]
    written.compact(grace_s=3_600.0)
    written.clock.now = NOW + timedelta(seconds=3_599)
    assert written.compact(grace_s=3_600.0).files_deleted == 0
    assert sorted(tuple(map(str, row)) for row in old.collect()) == before
    written.clock.now = NOW + timedelta(seconds=3_600)
    assert written.compact(grace_s=3_600.0).files_deleted == len(replaced)
    assert not set(replaced) & set(written.files())
    assert sorted(path.name for path in (written.path / f"day={DAY}").iterdir())[1:] == []
    assert written.view() == before
    assert list(written.path.glob("day=*/batch=*/entity=*/.*")) == list(
        written.path.glob("day=*/batch=*/entity=*/.part*.crc")
    )


def test_a_late_message_of_a_compacted_day_is_read_at_once_and_compacted_by_the_next_run(written: Written) -> None:
    before = written.view()
    written.compact(grace_s=0.0)
    # 4 comes once more, its lock was lost, and 5 is new.
    written.batch("20261116T000500Z-b-000001", *rows(DAY, "a/b", [4, 5]))
    assert len(written.view()) == len(before) + 1
    assert set(before) < set(written.view())
    late = written.view()
    summary = written.compact(grace_s=0.0)
    assert [(line["day"], line["messages"], line["copies"]) for line in summary.days] == [(DAY, 6, 1)]
    assert written.view() == late
    assert manifests_of(written.lake)[DAY].version == 2
    assert written.lake.directory.names(MANIFESTS) == [f"{DAY}.00000002.json", f"{NEXT}.00000001.json"]


def test_a_batch_that_is_published_while_its_day_is_compacted_is_neither_lost_nor_doubled(written: Written) -> None:
    class Busy(Compact):
        def _rewrite(self, files: Any, name: str) -> tuple[int, int]:
            if DAY in name:
                written.batch("20261116T000500Z-b-000001", *rows(DAY, "a/b", [4, 5]))
            return super()._rewrite(files, name)

    before = written.view()
    Busy(written.spark, CompactConfig(str(written.path), grace_s=0.0), clock=written.clock).run()
    assert len(written.view()) == len(before) + 1
    assert len(snapshot_of(written.lake).plain) == 1  # the other day
    written.compact(grace_s=0.0)
    assert len(written.view()) == len(before) + 1
    assert len(snapshot_of(written.lake).plain) == 2


def test_of_two_compactions_side_by_side_one_ends_without_effect(written: Written) -> None:
    class Slow(Compact):
        def _rewrite(self, files: Any, name: str) -> tuple[int, int]:
            done = super()._rewrite(files, name)
            if DAY in name:
                written.compact(day=DAY)
                # And a third, after which the files that this one read are gone.
                written.batch("20261116T000500Z-b-000001", *rows(DAY, "a/b", [5]))
                written.compact(day=DAY, grace_s=0.0)
            return done

    before = written.view()
    said: list[str] = []
    slow = Slow(written.spark, CompactConfig(str(written.path), day=DAY), said.append, written.clock)
    summary = slow.run()
    assert (summary.days_taken, summary.days) == ([DAY], [])
    assert "another compaction was first" in said[-1]
    assert len(written.view()) == len(before) + 1
    written.compact(day=DAY, grace_s=0.0)
    assert len(written.view()) == len(before) + 1
    assert len(snapshot_of(written.lake).plain) == 1


def test_a_file_that_cannot_be_read_ends_the_run_and_nothing_is_replaced(written: Written) -> None:
    damaged = written.path / written.files()[0]
    whole, before = damaged.read_bytes(), written.view()
    checksum = damaged.with_name(f".{damaged.name}.crc")
    checksum.unlink()
    damaged.write_bytes(b"?" * 200)
    # Spark may be told to pass over such files: they would be replaced by nothing.
    written.spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(CompactError, match="not a Parquet file"):
            written.compact(grace_s=0.0)
    finally:
        written.spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert manifests_of(written.lake) == {}
    damaged.write_bytes(whole)
    assert written.view() == before


def test_a_lake_on_another_file_system_is_compacted_by_the_same_steps(written: Written) -> None:
    before = written.view()
    for grace_s, version in ((0.0, 1), (0.0, 2)):
        compact = Compact(written.spark, CompactConfig(str(written.path), grace_s=grace_s), clock=written.clock)
        compact.lake.directory._files = _Hadoop(written.spark, f"file:{written.path}")
        summary = compact.run()
        assert summary.files_deleted > 0 and written.view() == before
        manifests = manifests_of(compact.lake)
        assert manifests == manifests_of(written.lake) and manifests[DAY].version == version
        assert snapshot_of(compact.lake) == snapshot_of(written.lake)
        assert len(snapshot_of(compact.lake).plain) == 2
        written.batch(f"2026111{6 + version}T000500Z-b-000001", *rows(DAY, "a/b", [4]))  # a copy, late


def killed_in_a_fork(written: Written, place: str, after: int) -> bool:
    """A driver that dies there: a copy of this process, at the same Spark; whether it died so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: this one waits for the copy
        child = os.fork()
    if child == 0:
        try:
            os.environ.update({AT: place, AFTER: str(after)})
            written.compact(grace_s=0.0)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert is_killed or os.waitstatus_to_exitcode(status) == 0
    return is_killed


@pytest.mark.parametrize("place", COMPACTION_PLACES)
def test_a_compaction_killed_at_any_place_leaves_a_lake_that_reads_the_same(written: Written, place: str) -> None:
    before = written.view()
    passes = 0
    # The first file, or day, then the second: until a run gets to its end.
    while killed_in_a_fork(written, place, passes):
        assert written.view() == before
        passes += 1
        assert passes < 20
    assert passes >= 1
    assert written.view() == before
    written.compact(grace_s=0.0)
    assert written.view() == before
    assert len(snapshot_of(written.lake).plain) == 2
    assert len(written.files()) == 2 + 1 + 1
    names = written.lake.directory.names(STAGING)
    assert all("-compact-" in name for name in names)
    assert written.lake.sweep_staging(NOW + timedelta(days=3)) == len(names)


def test_what_capture_writes_is_compacted_while_it_goes_on(spark: "SparkSession", bus: Bus, tmp_path: Path) -> None:
    queue, out = bus.queue("one", "two"), str(tmp_path / "lake")
    config = capture.CaptureConfig(
        (queue,), out, connection_string=bus.options["connectionString"], watch=True, interval_s=0.2, max_wait_s=0.2
    )
    # Days that are not over yet are, by this clock.
    clock = Clock()
    clock.now = datetime.now(UTC) + timedelta(days=2)

    def say(line: str) -> None:
        if " 2 in all" in line:
            done.append(run(spark, CompactConfig(out), clock=clock))
            bus.send(queue, [OutgoingMessage("three")])
        elif " 3 in all" in line:
            done.append(run(spark, CompactConfig(out, grace_s=0.0), clock=clock))
            job.stop()

    done: list[CompactSummary] = []
    job = capture.Capture(spark, config, say)
    summary = job.run()
    assert (summary.settled, bus.peek(queue)) == (3, [])
    assert [each.messages for each in done] in ([2, 3], [2, 1])  # the last if midnight came between them
    rows_ = captured(spark, out).selectExpr("string(body) AS body").collect()
    assert sorted(row["body"] for row in rows_) == ["one", "three", "two"]


def test_what_is_wrong_is_said_before_spark_starts(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Lake(None, str(tmp_path / "lake")).claim("out")
    wrongs: tuple[tuple[dict[str, Any], str], ...] = (
        ({"captured": " "}, "captured is missing"),
        ({"day": "yesterday"}, "day: 2026-11-16"),
        ({"day": "2026-11-02..2026-11-01"}, "lies before"),
        ({"grace_s": -1.0}, "grace: seconds"),
        ({"closed_after_s": 1e9}, "closed-after: seconds"),
        ({"file_mb": 0}, "file-mb: a whole number from 1"),
        ({"captured": str(tmp_path / "nothing")}, "no capture has written there"),
    )
    for wrong, said in wrongs:
        with pytest.raises(OptionError, match=said):
            check(CompactConfig(**{"captured": str(tmp_path / "lake"), **wrong}))
    (tmp_path / "old" / OURS).mkdir(parents=True)
    (tmp_path / "old" / ABOUT).write_text('{"job": "capture", "format": 1}')
    assert main(["--captured", str(tmp_path / "old")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("compact: captured ") and "capture to another directory" in err and err.count("\n") == 1
    assert main(["--captured", str(tmp_path / "lake"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["days"] == []
