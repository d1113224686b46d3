"""The cost job: a metered table becomes charges in Parquet, a table on the terminal and a page of HTML.

`OUT/charges/day=…` has the lines, `OUT/cost.html` the report, `OUT/cost.json` the summary. Nothing is kept between
runs: the same table and the same price lists give the same charges.
"""

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from spillway.model.texts import count_text
from spillway.spark.billing.charges import PAIRING_LINES, ChargePlan, Tariff
from spillway.spark.billing.cost_summary import CENT, CostSummary, Sum, shown_cents
from spillway.spark.billing.prices import MESSAGING_UNITS_MAX, PICO, PriceList, PriceListError, find_list
from spillway.spark.jobs.job import Job
from spillway.spark.jobs.metering import TABLE, parse_alias, parse_named, write_whole
from spillway.spark.platform.java import SparkMissing
from spillway.spark.platform.option import Option
from spillway.spark.platform.preflight import check_writable, to_mend
from spillway.spark.platform.session import Say, build_session, check_spark, say_on_stderr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP: Final = "spillway-cost"
CHARGES: Final = "charges"
PAGE: Final = "cost.html"
SUMMARY: Final = "cost.json"
ENTITIES_SHOWN: Final = 20


class CostError(ValueError):
    """What was asked cannot be reported, and why; the user's to mend."""


@dataclass(frozen=True)
class CostConfig:
    metered: Path  # the `--out` of the metering job
    out: Path
    tariff: Tariff
    month: str = ""  # like 2027-01; all of them by default

    def check(self) -> None:
        """`CostError`, before anything is started."""
        if self.month and not re.fullmatch("[0-9]{4}-[0-9]{2}", self.month):
            raise CostError(f"--month must be like 2027-01, not '{self.month}'")
        table = self.metered / TABLE
        if not table.is_dir() or not any(table.glob("day=*")):
            made = f"`spillway pipeline metering --out {self.metered}` makes them"
            raise CostError(f"{self.metered} has no metered days: {made}")
        if self.month and not any(table.glob(f"day={self.month}-*")):
            raise CostError(f"{self.metered} has no metered days of {self.month}")
        charges = self.out / CHARGES
        if charges.exists() and any(not each.name.startswith(("day=", "_", ".")) for each in charges.iterdir()):
            raise CostError(f"--out: {charges} holds something else, which would be replaced")
        try:
            self.tariff.currency()
        except ValueError as error:
            raise CostError(str(error)) from None


def run_here(config: CostConfig, master: str | None = None) -> CostSummary:
    """In a session of this process. What the user has to mend is an `OptionError`, before Spark is started."""
    with to_mend(CostError, SparkMissing, OSError):
        check_spark(master)
        config.check()
        check_writable("--out", config.out)
    return run(build_session(APP, master=master), config)


def run(spark: "SparkSession", config: CostConfig, say: Say = say_on_stderr) -> CostSummary:
    """Raises `CostError` with what is wrong."""
    from spillway.spark.billing.cost_report import write_report
    from spillway.spark.billing.pricing import priced, read_metered

    began = time.monotonic()
    config.check()
    try:
        say("pricing: sums by day, to know how far each month had come")
        lines, plan = priced(spark, read_metered(spark, str(config.metered / TABLE)), config.tariff)
    except ValueError as error:
        raise CostError(str(error)) from None
    charges = config.out / CHARGES
    if config.month:
        lines = lines.where(f"substring(day, 1, 7) = '{config.month}'")
    say(f"pricing: {count_text(len(plan.namespace_days), 'day')} of namespaces into {charges}")
    lines.repartition("day").sortWithinPartitions("day", "namespace", "entity", "kind", "line").write.mode(
        "overwrite"
    ).partitionBy("day").parquet(str(charges))
    summary = CostSummary(str(config.out), config.tariff.currency())
    transfer = sum_up(spark, str(charges), summary)
    check_total(summary, plan, transfer, is_all=not config.month)
    tariff = config.tariff
    summary.prices = {name: described(tariff.list_of(name)) for name in sorted({n for n, _ in plan.namespace_days})}
    summary.notes += plan.notes
    summary.seconds = round(time.monotonic() - began, 2)
    write_report(config.out / PAGE, summary, tariff)
    write_whole(config.out / SUMMARY, json.dumps(asdict(summary), indent=1) + "\n")
    return summary


def described(prices: PriceList) -> str:
    return f"{prices.name}, {prices.currency}, from {prices.valid_from}"


def sum_up(spark: "SparkSession", charges: str, summary: CostSummary) -> Decimal:
    """Fills the summary; answers with what was charged for transfer."""
    from pyspark.sql import functions as F  # noqa: N812

    schema = (
        "namespace string, entity string, kind string, line string, operations bigint, units bigint, bytes bigint, "
        "hours bigint, operations_cost decimal(38,12), transfer_cost decimal(38,12), hours_cost decimal(38,12), "
        "cost decimal(38,12), list_cost decimal(38,12), day string"
    )
    table = spark.read.schema(schema).parquet(charges)
    measures = ("operations", "units", "bytes", "cost", "list_cost", "transfer_cost")
    sums = [F.sum(name).alias(name) for name in measures]
    # One pass: by day, namespace and line there are few; entities are asked for apart.
    groups = table.groupBy("day", "namespace", "line").agg(*sums, F.count(F.lit(1)).alias("lines")).collect()
    if not groups:
        raise CostError("there is nothing to report: no line is left")
    total = sum((row["cost"] for row in groups), Decimal(0))
    summary.total_exact, summary.total = exact(total), str(total.quantize(CENT, ROUND_HALF_UP))
    summary.first_day, summary.last_day = min(row["day"] for row in groups), max(row["day"] for row in groups)
    summary.lines = sum(row["lines"] for row in groups)
    summary.pairing = exact(sum((row["cost"] for row in groups if row["line"] in PAIRING_LINES), Decimal(0)))
    summary.by_namespace = by_name(groups, "namespace")
    summary.by_line = by_name(groups, "line")
    summary.by_day = [
        {"day": row["day"], "namespace": row["namespace"], "line": row["line"], "units": row["units"]}
        | {"cost": exact(row["cost"])}
        for row in sorted(groups, key=lambda row: (row["day"], row["namespace"], row["line"]))
    ]
    summary.by_entity = top_entities(table)
    return sum((row["transfer_cost"] for row in groups), Decimal(0))


def top_entities(table: "DataFrame") -> list[Sum]:
    from pyspark.sql import functions as F  # noqa: N812

    sums = [F.sum(name).alias(name) for name in ("operations", "units", "bytes", "cost", "list_cost")]
    found = (
        table.where("hours = 0")
        .groupBy("namespace", "entity")
        .agg(*sums)
        .orderBy(F.desc("cost"), F.desc("units"), "namespace", "entity")
        .limit(ENTITIES_SHOWN)
        .collect()
    )
    return [one_sum(f"{row['namespace']}/{row['entity']}", [row]) for row in found]


def by_name(groups: list[Any], name: str) -> list[Sum]:
    names = sorted({row[name] for row in groups})
    sums = [one_sum(each, [row for row in groups if row[name] == each]) for each in names]
    return sorted(sums, key=lambda one: (-Decimal(one.cost), -one.units, one.name))


def one_sum(name: str, rows: list[Any]) -> Sum:
    return Sum(
        name,
        sum(row["operations"] for row in rows),
        sum(row["units"] for row in rows),
        sum(row["bytes"] for row in rows),
        exact(sum((row["cost"] for row in rows), Decimal(0))),
        exact(sum((row["list_cost"] for row in rows), Decimal(0))),
    )


def exact(amount: Decimal) -> str:
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def check_total(summary: CostSummary, plan: ChargePlan, transfer: Decimal, is_all: bool) -> None:
    """The lines that were written come to what the days and hours cost: no line is lost, none counted twice."""
    due = plan.total_pico(int(transfer * PICO))
    found = int(Decimal(summary.total_exact) * PICO)
    assert not is_all or found == due, f"the lines come to {found} trillionths, the days to {due}"


# -- the command and spark-submit ----------------------------------------------------------------------------------


def make_tariff(prices: Sequence[str], messaging_units: int, aliases: Mapping[str, str]) -> Tariff:
    """From `--prices LIST` and `--prices NAMESPACE=LIST`. `PriceListError`, `CostError`."""
    if not 1 <= messaging_units <= MESSAGING_UNITS_MAX:
        raise CostError(f"--messaging-units must be from 1 to {MESSAGING_UNITS_MAX}, not {messaging_units}")
    default, of_namespace = find_list("standard"), {}
    for text in prices:
        name, wanted = parse_named(text)
        if name:
            of_namespace[name] = find_list(wanted)
        else:
            default = find_list(wanted)
    return Tariff(default, of_namespace, messaging_units, aliases)


@dataclass(frozen=True)
class CostOptions:
    """What is typed; `config` is what it means."""

    metered: Annotated[Path, Option("DIR", "What `spillway pipeline metering --out DIR` made.")]
    out: Annotated[
        Path, Option("DIR", "Where the charges and the report go.", more="What an earlier run left there is replaced.")
    ]
    prices: Annotated[
        tuple[str, ...],
        Option(
            "[NAMESPACE=]LIST",
            "`standard`, `basic`, `premium` or a file; with a name, for that namespace alone.",
            is_repeated=True,
            default="`standard`",
        ),
    ] = ()
    messaging_units: Annotated[
        int, Option("COUNT", "Messaging units of a Premium namespace.", 1, MESSAGING_UNITS_MAX)
    ] = 1
    aliases: Annotated[
        Mapping[str, str],
        Option(
            "NAME=NAMESPACE",
            "The name of a primary in the paths of its backlog queues, and what its namespace is called.",
            name="alias",
            parse=parse_alias,
            is_repeated=True,
            gather=dict,
            more="Such a name is like `localhost-5672`; the namespace's is that in the table.",
        ),
    ] = field(default_factory=dict)
    month: Annotated[str, Option("YYYY-MM", "This month alone.", default="all of them")] = ""

    def config(self) -> CostConfig:
        tariff = make_tariff(self.prices, self.messaging_units, self.aliases)
        return CostConfig(self.metered, self.out, tariff, self.month)


def run_typed(options: CostOptions, master: str | None = None) -> CostSummary:
    return run_here(options.config(), master)


def words_of(summary: CostSummary) -> str:
    """A table that any terminal can show."""
    costs = shown_cents([Decimal(one.cost) for one in summary.by_line])
    rows = [("line", "operations", "units", summary.currency, "at list price")]
    for one, cost in zip(summary.by_line, costs, strict=True):
        rows.append((one.name, f"{one.operations:,}", f"{one.units:,}", f"{cost:,}", shown_list(one.list_cost)))
    operations = sum(one.operations for one in summary.by_line)
    units = sum(one.units for one in summary.by_line)
    rows.append(("all", f"{operations:,}", f"{units:,}", f"{Decimal(summary.total):,}", ""))
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    told = [f"{summary.first_day} to {summary.last_day}: {summary.currency} {Decimal(summary.total):,}"]
    for row in rows:
        told.append("  ".join([row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in range(1, 5))]).rstrip())
    return "\n".join([*told, *summary.notes, f"{Path(summary.out) / PAGE}"])


def shown_list(amount: str) -> str:
    value = Decimal(amount)
    return f"{value.quantize(CENT, ROUND_HALF_UP):,}" if value >= 1 or not value else f"{value:.6f}"


JOB: Final = Job(
    "cost",
    "Show what metered operations cost: a table, charges in Parquet and a page of HTML.\n\n"
    "Prices are those of a dated list that has to be checked against your own: docs/cost.md.",
    CostOptions,
    run_typed,
    words_of,
    (SparkMissing,),
    (CostError, PriceListError),
)
main: Final = JOB.main


if __name__ == "__main__":
    sys.exit(main())
