"""The trees that `make lake-year` measures are what captures and compactions leave."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spillway.spark.source.lake import Lake, moment_of
from tools.lake_year import Size, compact_day, drawn_out, link_days, measure, write_day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = Size(messages=600, batches=3)
FILE = re.compile(r"day=(2026-01-0[123])/batch=([^/]+)/entity=orders/part-[^/]+\.zstd\.parquet")


def test_days_are_of_the_real_layout_and_the_view_counts_them(spark: "SparkSession", tmp_path: Path) -> None:
    write_day(spark, tmp_path, SIZE)
    found = [FILE.fullmatch(str(path.relative_to(tmp_path))) for path in tmp_path.rglob("*.parquet")]
    assert len(found) == 3 * SIZE.files_of_batch and all(found)
    assert {str(moment_of(each[2])) for each in found if each} == {
        "2026-01-01 08:00:00+00:00",
        "2026-01-01 16:00:00+00:00",
        "2026-01-02 00:00:00+00:00",
    }
    link_days(spark, tmp_path, 2, None)
    before = measure(spark, tmp_path, "watch", 2, SIZE, 1)
    assert (before["messages"], before["files"], before["is_plain_scan"]) == (1_200, 12, False)
    assert Lake(spark, str(tmp_path)).days() == ["2026-01-01", "2026-01-02"]


def test_compacted_days_are_plain_scans(spark: "SparkSession", tmp_path: Path) -> None:
    write_day(spark, tmp_path, SIZE)
    manifest = compact_day(spark, tmp_path, SIZE)
    link_days(spark, tmp_path, 3, manifest)
    found = measure(spark, tmp_path, "compacted", 3, SIZE, 1)
    assert (found["messages"], found["manifests"], found["is_plain_scan"]) == (1_800, 3, True)
    assert found["files"] == 3  # one each: there is too little for four


def test_a_year_is_drawn_out_from_the_smallest_and_the_largest_tree() -> None:
    def tree(days: int, seconds: float) -> dict[str, object]:
        sizes = dict.fromkeys(("messages", "files", "directories"), days * 10)
        return {"tree": "watch", "days": days, **sizes, "snapshot_s": seconds, "view_s": seconds, "count_s": seconds}

    found = drawn_out([tree(1, 3.0), tree(11, 8.0), tree(5, 99.0)], 365)
    assert (found["files"], found["count_s"]) == (3_650, pytest.approx(185.0))
