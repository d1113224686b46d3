"""Ledgers as frames: the sums of metering and the lines of a bill, and beside them what cannot be used."""

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spillway.spark.billing.charges import RawRow, Tariff, plain_total
from spillway.spark.billing.ledger_frames import charged, metered, sealed_days, set_aside
from spillway.spark.billing.metering_inputs import LedgerDirectory, MeteringError
from spillway.spark.billing.prices import find_list, money
from tests.spark.ledgers import write_sealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_S = 86_400
FIRST_S = 1_796_083_200  # 2026-12-01, UTC


def rows(namespace: str, entity: str, *kinds: str, days: int = 3) -> list[RawRow]:
    return [
        RawRow(namespace, FIRST_S + day * DAY_S + minute * 60, entity, kind, 2_000_000, 2_100_000, 64)
        for day in range(days)
        for minute in range(2)
        for kind in kinds
    ]


def test_the_frames_of_a_pairing_come_to_the_sum_over_its_raw_rows(spark: "SparkSession", tmp_path: Path) -> None:
    primary = rows("east", "orders", "send", "receive", "settle", "ping")
    backlog = rows("west", "east/x-servicebus-transfer/0", "send", "receive", "settle", "empty_receive")
    write_sealed(tmp_path / "primary", primary)
    write_sealed(tmp_path / "secondary", backlog)
    days = sealed_days(spark, tmp_path / "primary", str(tmp_path / "secondary" / "ledger"), tasks=2)
    table = metered(days)
    found = {(row["day"], row["entity"], row["kind"]): row["operations"] for row in table.collect()}
    assert len(found) == 3 * 8
    assert found["2026-12-02", "orders", "send"] == 4_000_000
    assert set_aside(days).collect() == []
    tariff = Tariff(find_list("standard"))
    lines = charged(table, tariff).collect()
    assert sum((row["cost"] for row in lines), Decimal(0)) == money(plain_total([*primary, *backlog], tariff)) > 0
    assert {"send_to_backlog", "receive_from_backlog", "send_to_primary", "idle_receive"} <= {
        row["line"] for row in lines
    }


def test_what_cannot_be_used_is_a_row_and_the_rest_counts(spark: "SparkSession", tmp_path: Path) -> None:
    damaged, good = write_sealed(tmp_path, rows("east", "orders", "send", days=2))
    damaged.write_bytes(damaged.read_bytes()[:-4])
    (tmp_path / "ledger" / "day=never").mkdir()
    days = sealed_days(spark, LedgerDirectory(tmp_path, "home"))
    bad = {row["file"]: row["reason"] for row in set_aside(days).collect()}
    assert set(bad) == {str(damaged), str(tmp_path / "ledger" / "day=never")}
    assert "cut short" in bad[str(damaged)]
    assert [(row["day"], row["namespace"]) for row in metered(days).collect()] == [("2026-12-02", "home")]
    assert good.exists()


def test_a_ledger_without_a_day_is_empty_and_one_that_is_not_there_is_said(
    spark: "SparkSession", tmp_path: Path
) -> None:
    (tmp_path / "ledger").mkdir()
    assert charged(metered(sealed_days(spark, tmp_path)), Tariff(find_list("standard"))).collect() == []
    with pytest.raises(MeteringError, match="is no directory"):
        sealed_days(spark, tmp_path / "nowhere")
