"""What a message is in a DataFrame: one column for each thing that is known of it.

Spark hands no column pruning to Python sources. A schema given by the user, `.schema("entity string, body binary")`,
does it instead: columns that nobody asked for are not made.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spillway.spark.platform.access import OptionError
from spillway.spark.source.options import BINARY, ReadOptions

TEXTS: Final = MapType(StringType(), StringType(), True)


@dataclass(frozen=True)
class Column:
    """`is_sent` says that a write takes it; the others are the service's to say."""

    name: str
    data_type: DataType
    is_sent: bool


BODY: Final = "body"
BODY_ERROR: Final = "body_error"
BODY_QUARANTINE: Final = "body_quarantine"
RAW: Final = "raw"

COLUMNS: Final = (
    Column("namespace", StringType(), False),
    Column("entity", StringType(), False),
    Column("sequence_number", LongType(), False),
    Column("enqueued_sequence_number", LongType(), False),
    Column("enqueued_time", TimestampType(), False),
    Column("state", StringType(), False),
    Column("delivery_count", IntegerType(), False),
    Column("lock_token", StringType(), False),
    Column("locked_until", TimestampType(), False),
    Column("message_id", StringType(), True),
    Column("session_id", StringType(), True),
    Column("partition_key", StringType(), True),
    Column("correlation_id", StringType(), True),
    Column("subject", StringType(), True),
    Column("content_type", StringType(), True),
    Column("to", StringType(), True),
    Column("reply_to", StringType(), True),
    Column("reply_to_session_id", StringType(), True),
    Column("time_to_live_ms", LongType(), True),
    Column("expires_at", TimestampType(), False),
    Column("scheduled_enqueue_time", TimestampType(), True),
    Column("dead_letter_reason", StringType(), False),
    Column("dead_letter_error_description", StringType(), False),
    Column("dead_letter_source", StringType(), False),
    Column("application_properties", TEXTS, True),
    Column("property_types", TEXTS, True),
    Column("body_type", StringType(), False),
)


def schema_for(options: ReadOptions) -> StructType:
    """All columns that these options have."""
    fields = [StructField(column.name, column.data_type) for column in COLUMNS]
    if options.includes_body:
        if options.body_format == BINARY:
            fields.append(StructField(BODY, BinaryType()))
        else:
            fields += [
                StructField(BODY, StringType()),
                StructField(BODY_ERROR, StringType()),
                StructField(BODY_QUARANTINE, BinaryType()),
            ]
    if options.includes_raw:
        fields.append(StructField(RAW, BinaryType()))
    return StructType(fields)


def check_schema(wanted: StructType, options: ReadOptions) -> None:
    """A schema that the user gave has some of the columns, each of its type."""
    known = {each.name: each for each in schema_for(options).fields}
    for each in wanted.fields:
        column = known.get(each.name)
        if column is None:
            raise OptionError(f"schema: there is no column '{each.name}'; there are {', '.join(known)}")
        if column.dataType.simpleString() != each.dataType.simpleString():
            raise OptionError(
                f"schema: {each.name} is {column.dataType.simpleString()}, not {each.dataType.simpleString()}"
            )
        if not each.nullable:
            raise OptionError(f"schema: {each.name} may be null")
    if not wanted.fields:
        raise OptionError("schema: it has no columns")
