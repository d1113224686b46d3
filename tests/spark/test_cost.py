"""The cost job on real Spark: every line as the rules in plain Python have it, the total to the last digit."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from spillway.spark.billing import pricing
from spillway.spark.billing.charges import Metered, RawRow, Tariff, charges_of, plain_total
from spillway.spark.billing.cost_report import page
from spillway.spark.billing.cost_summary import CostSummary, Sum, shown_cents
from spillway.spark.billing.ledger_files import rows_of
from spillway.spark.billing.metering_inputs import LedgerDirectory
from spillway.spark.billing.prices import ACCOUNT, PICO, PriceListError, cents, find_list, money
from spillway.spark.jobs import cost, metering
from spillway.spark.jobs.cost import CostConfig, CostError, make_tariff, run, words_of
from spillway.spark.jobs.metering import MeteringConfig
from tests.spark.ledgers import write_sealed
from tests.spark.test_charges import DAY_S, NOON, STANDARD, M, metered, raw_rows, small_tiers, syphoned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark, each has several jobs
QUIET = {"say": lambda line: None}
# January: 87 million at 0.80, 2,400 at 0.50, 300.02 at 0.20. February: 87 at 0.80, 600.004 at 0.50. 746 hours twice.
TOTAL = "1719.35"


def put_down(spark: "SparkSession", table: list[Metered]) -> Any:
    rows = [(each.namespace, each.entity, each.kind, "broker", *each[4:], each.day) for each in table]
    return spark.createDataFrame(rows, pricing.METERED)


def pico(amount: Decimal) -> int:
    return int(amount * PICO)


def as_tuples(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (
            *(each[name] for name in ("day", "namespace", "entity", "kind", "line", "operations", "units", "bytes")),
            each["hours"],
            *(pico(each[name]) for name in ("operations_cost", "transfer_cost", "hours_cost")),
        )
        for each in frame.collect()
    )


MIXED = Tariff(
    replace(small_tiers, scope=ACCOUNT),
    {"west": find_list("premium"), "north": small_tiers},
    messaging_units=4,
    aliases={"west": "north"},
)


# Two examples, of many rows: a query takes seconds. The rules themselves have hundreds in test_charges.py.
@settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(raw_rows, min_size=60, max_size=120), st.sampled_from([MIXED, STANDARD]))
def test_spark_makes_the_same_lines_as_plain_python_to_the_last_digit(
    spark: "SparkSession", rows: list[RawRow], tariff: Tariff
) -> None:
    table = metered(rows)
    expected, _ = charges_of(table, tariff)
    lines, _ = pricing.priced(spark, put_down(spark, table), tariff)
    made = as_tuples(lines)
    assert made == [tuple(each) for each in expected]
    assert sum(sum(each[-3:]) for each in made) == plain_total(rows, tariff)


def rows_of_two_months() -> list[RawRow]:
    """January climbs over all tiers; a backlog came home on each day; February has begun."""
    rows = []
    for day in (0, 1, 2, 3, 31):
        for each in syphoned(1000 + day):
            at_s = each.epoch_s + day * DAY_S
            rows += [each._replace(epoch_s=at_s), each._replace(epoch_s=at_s + 3600)]
        rows.append(RawRow("east", NOON + day * DAY_S, "big", "send", 700 * M, 700 * M + day, 7 * M))
        rows.append(RawRow("east", NOON + day * DAY_S, "orders", "ping", 60, 60, 0))
    return rows


def report(spark: "SparkSession", rows: list[RawRow], tmp_path: Path) -> CostSummary:
    write_sealed(tmp_path / "data", rows)
    config = MeteringConfig(tmp_path / "metered", (LedgerDirectory(tmp_path / "data"),))
    metering.run(spark, config, say=QUIET["say"])
    return run(spark, CostConfig(tmp_path / "metered", tmp_path / "cost", STANDARD), **QUIET)


def test_the_report_equals_to_the_cent_the_plain_sum_over_the_raw_rows(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = report(spark, rows_of_two_months(), tmp_path)
    raw = [row for path in (tmp_path / "data").rglob("*.gz") for row in rows_of(path)]
    due = plain_total(raw, STANDARD)
    assert summary.total == str(cents(due)) == TOTAL
    assert Decimal(summary.total_exact) == money(due)
    for sums in (summary.by_line, summary.by_namespace):
        assert sum(Decimal(one.cost) for one in sums) == money(due)
        assert sum(shown_cents([Decimal(one.cost) for one in sums])) == Decimal(summary.total)
    written = spark.read.parquet(str(tmp_path / "cost" / "charges")).agg({"cost": "sum"}).collect()[0][0]
    assert written == money(due)
    by_line = {one.name: one.units for one in summary.by_line}
    home = sum(2 * (1000 + day) for day in (0, 1, 2, 3, 31))
    for line in ("send_to_backlog", "receive_from_backlog", "send_to_primary", "receive_from_primary"):
        assert by_line[line] == home
    assert by_line["ping"] == 5 * 60
    check_page(tmp_path / "cost" / "cost.html", summary)
    check_words(summary)
    february = ["--metered", str(tmp_path / "metered"), "--out", str(tmp_path / "two"), "--month", "2027-02", "--json"]
    assert cost.main(february) == 0
    check_month(json.loads(capsys.readouterr().out.splitlines()[-1]), summary)
    with pytest.raises(CostError, match="has no metered days of 2026-01"):
        run(spark, CostConfig(tmp_path / "metered", tmp_path / "none", STANDARD, "2026-01"), **QUIET)


def check_month(month: dict[str, Any], summary: CostSummary) -> None:
    """A month alone is what it is within the whole."""
    expected = [each for each in summary.by_day if each["day"].startswith("2027-02")]
    assert month["by_day"] == expected and (month["first_day"], month["last_day"]) == ("2027-02-01", "2027-02-01")
    assert Decimal(month["total_exact"]) == sum(Decimal(each["cost"]) for each in expected)


def check_page(path: Path, summary: CostSummary) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"{Decimal(TOTAL):,}" in text and text.count("<svg") == 2
    assert "://" not in text.replace("https://azure.microsoft.com", "").replace("http://www.w3.org/2000/svg", "")
    assert "default-src &#x27;none&#x27;" in text
    assert "<script" not in text and "src=" not in text
    assert json.loads(path.with_name("cost.json").read_text(encoding="utf-8"))["total"] == summary.total


def check_words(summary: CostSummary) -> None:
    lines = words_of(summary).splitlines()
    assert lines[0] == f"2027-01-01 to 2027-02-01: USD {Decimal(TOTAL):,}"
    assert any(line.split() == ["ping", "300", "300", "0.00", "0.000240"] for line in lines)


def test_names_of_entities_are_text_in_the_page_and_every_price_list_is_shown() -> None:
    tariff = Tariff(find_list("standard"), {"west": find_list("premium")}, messaging_units=2)
    summary = CostSummary("out", "USD", "0.01", "0.0135", "2027-01-01", "2027-01-01")
    summary.by_line = summary.by_namespace = [Sum("east", 5, 5, 0, "0.0135", "0.000004")]
    summary.by_entity = [Sum("east/<script>alert(1)</script>", 5, 5, 10**13, "0", "0")]
    summary.by_day = [{"day": "2027-01-01", "namespace": "east", "line": "base", "units": 0, "cost": "0.0135"}]
    summary.prices = {"east": "Standard", "west": "Premium"}
    summary.notes = ["<b>"]
    text = str(page(summary, tariff))
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text and "<b>&lt;b&gt;" not in text
    assert "base, an hour</td><td>0.0135" in text
    assert "messaging unit, an hour (2 counted)</td><td>0.9275" in text
    assert "a million operations, 13,000,000 to 100,000,000</td><td>0.80" in text


def test_what_cannot_be_reported_is_refused_before_spark_is_asked(tmp_path: Path) -> None:
    with pytest.raises(CostError, match="has no metered days: `spillway pipeline metering --out"):
        CostConfig(tmp_path, tmp_path, STANDARD).check()
    (tmp_path / "metered" / "day=2027-01-01").mkdir(parents=True)
    (tmp_path / "charges" / "mine").mkdir(parents=True)
    with pytest.raises(CostError, match="charges holds something else, which would be replaced"):
        CostConfig(tmp_path, tmp_path, STANDARD).check()
    with pytest.raises(CostError, match="--month must be like 2027-01, not 'May'"):
        CostConfig(tmp_path, tmp_path, STANDARD, "May").check()
    with pytest.raises(CostError, match="--messaging-units must be from 1"):
        make_tariff([], 0, {})
    with pytest.raises(PriceListError, match="price list gold: not a file"):
        make_tariff(["west=gold"], 1, {})
    assert make_tariff(["west=premium", "basic"], 1, {}).list_of("west").sku == "premium"


def test_shown_cents_add_up_to_the_rounded_sum() -> None:
    thirds = [Decimal(1) / 3] * 3
    assert shown_cents(thirds) == [Decimal("0.34"), Decimal("0.33"), Decimal("0.33")]
    assert shown_cents([Decimal("0.004")] * 3) == [Decimal("0.01"), Decimal("0.00"), Decimal("0.00")]
    assert shown_cents([]) == []


def test_a_submitted_job_says_in_one_line_what_is_wrong(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cost.main(["--metered", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "has no metered days" in capsys.readouterr().err
    monkeypatch.setenv("SPILLWAY_CONNECTION_STRING", "Endpoint=sb://x;SharedAccessKey=hidden")
    assert metering.main(["--open-day", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("metering: SPILLWAY_CONNECTION_STRING: ") and "hidden" not in said
    assert metering.main(["--ledger", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "none is no directory" in capsys.readouterr().err
    write_sealed(tmp_path / "data", rows_of_two_months()[:9])
    arguments = ["--ledger", f"east={tmp_path / 'data'}", "--out", str(tmp_path / "out"), "--json"]
    assert metering.main(arguments) == 2
    assert "one name for several namespaces: east, west" in capsys.readouterr().err
