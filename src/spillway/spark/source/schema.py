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
class MessageColumn:
    """`is_sent` says that a write takes it; the others are the service's to say."""

    name: str
    data_type: DataType
    is_sent: bool


BODY: Final = "body"
BODY_ERROR: Final = "body_error"
BODY_QUARANTINE: Final = "body_quarantine"
RAW: Final = "raw"

COLUMNS: Final = (
    MessageColumn("namespace", StringType(), False),
    MessageColumn("entity", StringType(), False),
    MessageColumn("sequence_number", LongType(), False),
    MessageColumn("enqueued_sequence_number", LongType(), False),
    MessageColumn("enqueued_time", TimestampType(), False),
    MessageColumn("state", StringType(), False),
    MessageColumn("delivery_count", IntegerType(), False),
    MessageColumn("lock_token", StringType(), False),
    MessageColumn("locked_until", TimestampType(), False),
    MessageColumn("message_id", StringType(), True),
    MessageColumn("session_id", StringType(), True),
    MessageColumn("partition_key", StringType(), True),
    MessageColumn("correlation_id", StringType(), True),
    MessageColumn("subject", StringType(), True),
    MessageColumn("content_type", StringType(), True),
    MessageColumn("to", StringType(), True),
    MessageColumn("reply_to", StringType(), True),
    MessageColumn("reply_to_session_id", StringType(), True),
    MessageColumn("time_to_live_ms", LongType(), True),
    MessageColumn("expires_at", TimestampType(), False),
    MessageColumn("scheduled_enqueue_time", TimestampType(), True),
    MessageColumn("dead_letter_reason", StringType(), False),
    MessageColumn("dead_letter_error_description", StringType(), False),
    MessageColumn("dead_letter_source", StringType(), False),
    MessageColumn("application_properties", TEXTS, True),
    MessageColumn("property_types", TEXTS, True),
    MessageColumn("body_type", StringType(), False),
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
