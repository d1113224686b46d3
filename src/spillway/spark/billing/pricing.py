"""The rules of `charges` on Spark: the same lines, to the last digit, for tables of any length.

What a month had come to when a day began is known after one small sum (`ChargePlan`), so every day is priced by itself
and in parallel. All money is whole numbers in decimals of 38 digits until the last step.
"""

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from spillway.spark.billing.charges import (
    AT_BACKLOG,
    BACKLOG_PATTERN,
    COMING_HOME,
    OUTBOUND_KINDS,
    Charge,
    ChargePlan,
    Subtotal,
    Tariff,
    make_plan,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

METERED: Final = (
    "namespace string, entity string, kind string, source string, operations bigint, units bigint, bytes bigint, "
    "first_epoch_s bigint, last_epoch_s bigint, day string"
)
PLAN: Final = (
    "namespace string, day string, kind string, is_backlog boolean, bill string, is_charged boolean, "
    "day_units decimal(18,0), day_pico decimal(19,0), byte_pico bigint, list_pico bigint, "
    "home_operations bigint, home_units bigint, home_bytes bigint, "
    "all_operations bigint, all_units bigint, all_bytes bigint"
)
HOURS: Final = "day string, namespace string, entity string, line string, hours bigint, hours_pico decimal(25,0)"
DAY_PICO_MAX: Final = 2**63 - 1
MEASURES: Final = ("operations", "units", "bytes")


def read_metered(spark: "SparkSession", path: str) -> "DataFrame":
    return spark.read.schema(METERED).parquet(path)


def with_backlog(metered: "DataFrame") -> "DataFrame":
    """The rows of the table are one for each day, namespace, entity and kind already: one source of a day counts."""
    from pyspark.sql import functions as F  # noqa: N812

    return metered.drop("source").withColumn("backlog", F.lower(F.regexp_extract("entity", BACKLOG_PATTERN, 1)))


def plan_of(lines: "DataFrame", tariff: Tariff) -> ChargePlan:
    from pyspark.sql import functions as F  # noqa: N812

    sums = [F.sum(name) for name in MEASURES]
    found = (
        lines.groupBy("day", "namespace", "kind", "backlog")
        .agg(*sums, F.min("first_epoch_s"), F.max("last_epoch_s"))
        .collect()
    )
    plan = make_plan([Subtotal(*row) for row in found], tariff)
    for (bill, day), price in plan.days.items():
        if price.cost_pico > DAY_PICO_MAX:
            raise ValueError(f"{day} of '{bill}' costs more than nine millions: that is no ledger of operations")
    return plan


def priced(spark: "SparkSession", metered: "DataFrame", tariff: Tariff) -> "tuple[DataFrame, ChargePlan]":
    """Every line of the bill; `cost` and its parts in the currency, exact to twelve digits."""
    from pyspark.sql import functions as F  # noqa: N812

    lines = with_backlog(metered)
    plan = plan_of(lines, tariff)
    known = lines.withColumn("is_backlog", F.col("backlog") != "")
    with_plan = known.join(F.broadcast(plan_table(spark, plan)), ["namespace", "day", "kind", "is_backlog"])
    # All that comes next is by bill and day, or by less of it: rows move once.
    costed = with_costs(split_home(with_plan.repartition("bill", "day")))
    return costed.unionByName(hours_table(spark, plan.by_the_hour)), plan


def plan_table(spark: "SparkSession", plan: ChargePlan) -> "DataFrame":
    """What the lines of a namespace, day and kind have to know."""
    rows: list[tuple[Any, ...]] = []
    tariff = plan.tariff
    for namespace, day in sorted(plan.namespace_days):
        prices, bill = tariff.list_of(namespace), tariff.bill_of(namespace)
        price = plan.days[bill, day]
        for kind, is_backlog in _kinds():
            home = None if is_backlog else plan.home.get((namespace, day, kind))
            everything = plan.all_of.get((namespace, day, kind))
            at_home = (None,) * 6 if home is None or everything is None else (*home, *everything)
            rows.append(
                (
                    namespace,
                    day,
                    kind,
                    is_backlog,
                    bill,
                    kind in prices.charged_kinds,
                    Decimal(price.units),
                    Decimal(price.cost_pico),
                    prices.egress_per_byte_pico if kind in OUTBOUND_KINDS else 0,
                    prices.first_price_pico if kind in prices.charged_kinds else 0,
                    *at_home,
                )
            )
    return spark.createDataFrame(rows, PLAN)


def _kinds() -> list[tuple[str, bool]]:
    from spillway.model.ledger import KIND_NAMES

    return [(kind, is_backlog) for kind in KIND_NAMES for is_backlog in (False, True)]


def split_home(lines: "DataFrame") -> "DataFrame":
    """Sends and receives of a primary in two: what the syphon brought, and the rest."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    upto = Window.partitionBy("bill", "day", "namespace", "kind", "is_backlog").orderBy("entity")
    upto = upto.rowsBetween(Window.unboundedPreceding, 0)
    found = lines
    for name in MEASURES:
        found = found.withColumn(f"upto_{name}", F.sum(name).over(upto))
    for name in MEASURES:
        part = shared(F.col(f"home_{name}"), F.col(f"upto_{name}"), F.col(name), F.col(f"all_{name}"))
        found = found.withColumn(f"brought_{name}", F.coalesce(part, F.lit(0)))
    own_line = F.col("kind")
    for kind, line in AT_BACKLOG.items():
        own_line = F.when(F.col("is_backlog") & (F.col("kind") == kind), F.lit(line)).otherwise(own_line)
    home_line = F.lit("")
    for kind, line in COMING_HOME.items():
        home_line = F.when(F.col("kind") == kind, F.lit(line)).otherwise(home_line)
    brought = F.struct(home_line.alias("line"), *[F.col(f"brought_{name}").alias(name) for name in MEASURES])
    rest = F.struct(
        own_line.alias("line"), *[(F.col(name) - F.col(f"brought_{name}")).alias(name) for name in MEASURES]
    )
    kept = ["namespace", "day", "entity", "kind", "bill", "is_charged", "day_units", "day_pico"]
    parts = F.when(F.col("home_units").isNull(), F.array(rest)).otherwise(F.array(brought, rest))
    split = found.select(*kept, "byte_pico", "list_pico", F.explode(parts).alias("part"), F.col("home_units"))
    some = " or ".join(f"part.{name} != 0" for name in MEASURES)
    return split.where(f"home_units is null or {some}").select(*kept, "byte_pico", "list_pico", "part.*")


def with_costs(lines: "DataFrame") -> "DataFrame":
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    order = Window.partitionBy("bill", "day").orderBy("namespace", "entity", "kind", "line")
    upto = order.rowsBetween(Window.unboundedPreceding, 0)
    charged = F.when(F.col("is_charged"), F.col("units")).otherwise(F.lit(0))
    counted = lines.withColumn("charged", charged).withColumn("upto", F.sum("charged").over(upto))
    cost = shared(F.col("day_pico"), F.col("upto"), F.col("charged"), F.col("day_units"))
    operations = F.coalesce(cost, F.lit(0)).cast("decimal(25,0)")
    transfer = (F.col("bytes").cast("decimal(19,0)") * F.col("byte_pico").cast("decimal(6,0)")).cast("decimal(25,0)")
    listed = (F.col("charged").cast("decimal(18,0)") * F.col("list_pico").cast("decimal(18,0)")).cast("decimal(25,0)")
    return counted.select(
        "day",
        "namespace",
        "entity",
        "kind",
        "line",
        *MEASURES,
        F.lit(0).cast("bigint").alias("hours"),
        in_currency(operations).alias("operations_cost"),
        in_currency(transfer).alias("transfer_cost"),
        in_currency(F.lit(0).cast("decimal(25,0)")).alias("hours_cost"),
        in_currency((operations + transfer).cast("decimal(25,0)")).alias("cost"),
        in_currency(listed).alias("list_cost"),
    )


def hours_table(spark: "SparkSession", charges: list[Charge]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    rows = [
        (each.day, each.namespace, each.entity, each.line, each.hours, Decimal(each.hours_pico)) for each in charges
    ]
    none = in_currency(F.lit(0).cast("decimal(25,0)"))
    cost = in_currency(F.col("hours_pico"))
    return spark.createDataFrame(rows, HOURS).select(
        "day",
        "namespace",
        "entity",
        F.col("line").alias("kind"),
        "line",
        *[F.lit(0).cast("bigint").alias(name) for name in MEASURES],
        "hours",
        none.alias("operations_cost"),
        none.alias("transfer_cost"),
        cost.alias("hours_cost"),
        cost.alias("cost"),
        none.alias("list_cost"),
    )


def shared(total: "Column", upto: "Column", weight: "Column", everything: "Column") -> "Column":
    """`charges.share`: the part is the difference of two running sums, each rounded down. Null without a total."""
    from pyspark.sql import functions as F  # noqa: N812

    whole, running = total.cast("decimal(19,0)"), upto.cast("decimal(19,0)")
    before = (upto - weight).cast("decimal(19,0)")
    divisor = F.when(everything != 0, everything.cast("decimal(19,0)"))
    part = F.call_function("div", whole * running, divisor) - F.call_function("div", whole * before, divisor)
    return F.when(total.isNotNull(), F.coalesce(part, F.lit(0)))


def in_currency(pico: "Column") -> "Column":
    """decimal(25,0) times decimal(12,12) is decimal(38,12): exact."""
    from pyspark.sql import functions as F  # noqa: N812

    return pico * F.lit(Decimal("0.000000000001")).cast("decimal(12,12)")
