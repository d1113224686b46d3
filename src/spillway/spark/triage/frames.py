"""Dead letters in a DataFrame: the columns that a condition may name, and groups of them."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from spillway.spark.platform.access import OptionError
from spillway.spark.platform.reasons import reason_of
from spillway.spark.source.values import text_of, timestamp_text
from spillway.spark.triage.planned import BODY, Edit, Planned, Setting, dead_letters_of, key_of, kind_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REASON: Final = "reason"
ENTITY: Final = "entity"
AGE: Final = "age"
ERROR: Final = "error"
PATTERN: Final = "pattern"
KEYS: Final = (REASON, ENTITY, AGE, ERROR, PATTERN)
ERROR_CHARS_MAX: Final = 300
GROUPS_MAX: Final = 1_000
# By how long ago a message was enqueued: each up to so many seconds.
AGES: Final = (("hour", 3_600), ("day", 86_400), ("week", 7 * 86_400), ("month", 30 * 86_400))
assert tuple(sorted(AGES, key=lambda age: age[1])) == AGES, "the first age that fits is the one that counts"
OLDER: Final = "older"
AGE_NAMES: Final = (*(name for name, _ in AGES), OLDER)


def dead_letters(
    spark: "SparkSession", options: Mapping[str, str], entities: Sequence[str], now: datetime, *, has_body: bool
) -> "DataFrame":
    """All dead letters of these, with all that is known of them; browsed, so that nothing is locked or changed."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    paths = json.dumps([dead_letters_of(each) for each in entities])
    bodies = {"bodyFormat": "string"} if has_body else {"includeBody": "false"}
    rows = spark.read.format("servicebus").options(**options, **bodies, entity=paths).load()
    rows = rows.withColumns(
        {
            ENTITY: F.regexp_replace(ENTITY, r"(?i)/\$deadletterqueue$", ""),
            REASON: F.coalesce("dead_letter_reason", F.lit("")),
            ERROR: _first_line(),
            "age_s": (F.lit(int(now.timestamp())) - F.unix_seconds("enqueued_time")).cast("bigint"),
        }
    )
    return rows.withColumns({AGE: _age(), PATTERN: _pattern()})


def chosen(rows: "DataFrame", where: str) -> "DataFrame":
    """Those for which a condition in SQL is true; `OptionError` if it is none."""
    return _analysed("where", lambda: rows.where(where)) if where.strip() else rows


def names_body(*texts: str) -> bool:
    """Whether expressions may be about bodies, which are fetched for nobody else."""
    return any(BODY in text.lower() for text in texts)


# -- groups -----------------------------------------------------------------------------------------------------------


def groups_of(rows: "DataFrame", by: Sequence[str], top: int) -> list[dict[str, Any]]:
    """The largest groups: how many messages, from when to when, and one of them to look at: the oldest."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    groups = rows.groupBy(*by).agg(
        F.count(F.lit(1)).alias("messages"),
        F.unix_millis(F.min("enqueued_time")).alias("oldest"),
        F.unix_millis(F.max("enqueued_time")).alias("newest"),
        F.min_by(F.struct(ENTITY, "sequence_number"), F.struct("enqueued_time", "sequence_number")).alias("example"),
    )
    found = groups.orderBy(F.desc("messages"), *by).limit(top).collect()
    return [_group(row, by) for row in found]


def _group(row: Any, by: Sequence[str]) -> dict[str, Any]:
    return {
        **{name: row[name] for name in by},
        "messages": row["messages"],
        "oldest": _moment(row["oldest"]),
        "newest": _moment(row["newest"]),
        "example": {"entity": row["example"][ENTITY], "sequence_number": row["example"]["sequence_number"]},
        "where": " AND ".join(f"{name} = {_quoted(row[name])}" for name in by),
    }


def totals_of(rows: "DataFrame", by: Sequence[str]) -> dict[str, Any]:
    """How many messages and groups, and from when to when."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    sums = rows.agg(
        F.count(F.lit(1)).alias("messages"),
        F.unix_millis(F.min("enqueued_time")).alias("oldest"),
        F.unix_millis(F.max("enqueued_time")).alias("newest"),
        F.count_distinct(F.struct(*by)).alias("groups"),
    )
    row = sums.collect()[0]
    return {
        "messages": row["messages"],
        "groups": row["groups"],
        "oldest": _moment(row["oldest"]),
        "newest": _moment(row["newest"]),
    }


def _moment(at_ms: int | None) -> str:
    return "" if at_ms is None else timestamp_text(at_ms)


def _quoted(text: str) -> str:
    """As a string of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _first_line() -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    text = F.ltrim(F.regexp_replace(F.coalesce("dead_letter_error_description", F.lit("")), r"^\s+", ""))
    return F.substring(F.rtrim(F.split(text, r"\r\n|\r|\n", 2)[0]), 1, ERROR_CHARS_MAX)


def _pattern() -> "Column":
    """The first line of the error with its numbers and ids left out: what many messages have in common."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    guid = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    return F.regexp_replace(ERROR, rf"{guid}|\d+([.,:]\d+)*", "#")


def _age() -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    found: Any = F
    for name, seconds in AGES:
        found = found.when(F.col("age_s") < seconds, name)
    column: Column = found.otherwise(OLDER)
    return column


# -- a plan -----------------------------------------------------------------------------------------------------------


def planned(rows: "DataFrame", settings: Sequence[Setting], most: int) -> tuple[list[tuple[str, Planned]], int]:
    """Chosen dead letters in the order of their numbers, with the values of `--set`; and how many more there are."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    edits = [F.expr(each.expression).alias(f"edit_{index}") for index, each in enumerate(settings)]
    plain = _analysed(
        "set",
        lambda: rows.where("state = 'active'").select(
            ENTITY, "sequence_number", F.unix_millis("enqueued_time").alias("enqueued_ms"), *edits
        ),
    )
    types = [field.dataType.simpleString() for field in plain.schema.fields][3:]
    kinds = [kind_of(each.name, kind) for each, kind in zip(settings, types, strict=True)]
    # A timestamp would come as the local time of the driver.
    moments = {
        f"edit_{index}": F.unix_millis(F.col(f"edit_{index}").cast("timestamp"))
        for index, kind in enumerate(kinds)
        if kind == "timestamp"
    }
    plain = plain.withColumns(moments) if moments else plain
    counted = plain.withColumn("all_of_them", F.count(F.lit(1)).over(Window.partitionBy()))
    found = counted.orderBy(ENTITY, "sequence_number").limit(most).collect()
    more = found[0]["all_of_them"] - len(found) if found else 0
    return [(row[ENTITY], _planned(row, settings, kinds)) for row in found], more


def _planned(row: Any, settings: Sequence[Setting], kinds: Sequence[str]) -> Planned:
    edits = tuple(
        Edit(each.name, kind, _text(row[f"edit_{index}"]))
        for index, (each, kind) in enumerate(zip(settings, kinds, strict=True))
    )
    return Planned(key_of(row[ENTITY], row["sequence_number"], row["enqueued_ms"]), edits)


def _text(value: Any) -> str | None:
    """As `value_of` reads it again."""
    return text_of(bytes(value) if isinstance(value, bytearray) else value)


def _analysed(option: str, make: Any) -> "DataFrame":
    from pyspark.errors import AnalysisException, ParseException

    try:
        frame: DataFrame = make()
        frame.schema  # noqa: B018 - analysed here, and not where it is run
    except (AnalysisException, ParseException) as error:
        raise OptionError(f"{option}: {reason_of(error)}") from None
    return frame
