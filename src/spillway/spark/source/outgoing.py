"""Rows become messages: which columns a write takes, what types they may have, and what each row is sent as."""

import difflib
import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spillway.amqp.types import Byte, Float, Int, Short, Timestamp
from spillway.client import OutgoingMessage
from spillway.spark.platform.access import OptionError
from spillway.spark.source.options import COLUMN, WriteOptions
from spillway.spark.source.schema import BODY, BODY_ERROR, BODY_QUARANTINE, COLUMNS, RAW
from spillway.spark.source.values import EPOCH, value_of

if TYPE_CHECKING:
    import pyarrow as pa

SENT: Final = (BODY, *(column.name for column in COLUMNS if column.is_sent))
# What a read brings and the service says anew.
PASSED_OVER: Final = frozenset(
    {column.name for column in COLUMNS if not column.is_sent} | {BODY_ERROR, BODY_QUARANTINE, RAW}
)
_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)
_MOMENTS: Final = (TimestampType, TimestampNTZType)
# A column of properties holds one of these.
_PROPERTY_MAKERS: Final[dict[type[DataType], Callable[[Any], object]]] = {
    StringType: str,
    BinaryType: bytes,
    BooleanType: bool,
    ByteType: Byte,
    ShortType: Short,
    IntegerType: Int,
    LongType: int,
    FloatType: Float,
    DoubleType: float,
    TimestampType: lambda moment: Timestamp(milliseconds(moment)),
    TimestampNTZType: lambda moment: Timestamp(milliseconds(moment)),
}


class BadRow(ValueError):
    """A row that cannot be a message."""


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Which columns there are and of what types: where the query is planned, before anything is sent."""
    names = schema.fieldNames()
    if len({name.lower() for name in names}) != len(names):
        raise OptionError("two columns have the same name")
    for each in schema.fields:
        if each.name == options.entity_column:
            _expect(each.name, each.dataType, (StringType,), "string")
        elif each.name in SENT:
            _check_type(each.name, each.dataType)
        elif each.name not in PASSED_OVER:
            near = difflib.get_close_matches(each.name, SENT, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise OptionError(
                f"column '{each.name}' is no part of a message: {hint}a write takes {', '.join(SENT)}; others go "
                "into application_properties, or into the body with to_json(struct(*))"
            )
    if BODY not in names:
        raise OptionError("there is no column body (binary or string); to_json(struct(*)) makes one of all columns")
    if options.entity_column and options.entity_column not in names:
        raise OptionError(f"entityColumn={options.entity_column}: there is no such column")
    if options.message_id == COLUMN and "message_id" not in names:
        raise OptionError(
            "there is no column message_id. A task that is tried again sends its rows again, and the service tells "
            "them by their ids: give one, or say messageId=content to have it made from what the message contains"
        )
    if "property_types" in names:
        field = next((each for each in schema.fields if each.name == "application_properties"), None)
        if field is None or field.dataType.simpleString() != "map<string,string>":
            raise OptionError("property_types says what the texts of application_properties, a map<string,string>, are")


def _check_type(name: str, kind: DataType) -> None:
    if name == BODY:
        _expect(name, kind, (BinaryType, StringType), "binary or string")
    elif name == "time_to_live_ms":
        _expect(name, kind, _NUMBERS, "a whole number of milliseconds")
    elif name == "scheduled_enqueue_time":
        _expect(name, kind, _MOMENTS, "a timestamp")
    elif name == "application_properties":
        is_map = isinstance(kind, MapType) and isinstance(kind.keyType, StringType)
        if not is_map or type(kind.valueType) not in _PROPERTY_MAKERS:  # type: ignore[attr-defined]
            raise OptionError(f"application_properties is {kind.simpleString()}: a map from string to one simple type")
    elif name == "property_types":
        if kind.simpleString() != "map<string,string>":
            raise OptionError(f"property_types is {kind.simpleString()}: a map<string,string>")
    else:
        _expect(name, kind, (StringType,), "string")


def _expect(name: str, kind: DataType, allowed: tuple[type[DataType], ...], words: str) -> None:
    if not isinstance(kind, allowed):
        raise OptionError(f"column {name} is {kind.simpleString()}: it has to be {words}")


class MessageMaker:
    """Encodes rows of one schema."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        self._columns = [name for name in schema.fieldNames() if name in SENT]
        field = next((each for each in schema.fields if each.name == "application_properties"), None)
        self._make_property: Callable[[Any], object] = str
        if field is not None and isinstance(field.dataType, MapType):
            self._make_property = _PROPERTY_MAKERS[type(field.dataType.valueType)]

    def messages(self, batch: "pa.RecordBatch") -> Iterator[tuple[str, str, bytes]]:
        """Of each row: where it goes, its id, its bytes."""
        columns = {name: batch.column(name).to_pylist() for name in self._columns}
        entity = self._options.entity
        entities = batch.column(self._options.entity_column).to_pylist() if not entity else None
        for index in range(batch.num_rows):
            row = {name: values[index] for name, values in columns.items()}
            to = entity if entities is None else entities[index]
            if not to or not to.strip("/"):
                raise BadRow(f"a row has no entity in column {self._options.entity_column}")
            message = self._message(row)
            message_id = message.message_id or ""
            yield to, message_id, message.encode()

    def _message(self, row: dict[str, Any]) -> OutgoingMessage:
        body = row[BODY]
        scheduled = row.get("scheduled_enqueue_time")
        ttl_ms = row.get("time_to_live_ms")
        if ttl_ms is not None and not 0 < ttl_ms < 2**32:
            raise BadRow(f"time_to_live_ms is {ttl_ms}: it has to be from 1 to {2**32 - 1}")
        message = OutgoingMessage(
            b"" if body is None else body,
            message_id=row.get("message_id"),
            session_id=row.get("session_id"),
            partition_key=row.get("partition_key"),
            subject=row.get("subject"),
            to=row.get("to"),
            reply_to=row.get("reply_to"),
            reply_to_session_id=row.get("reply_to_session_id"),
            correlation_id=row.get("correlation_id"),
            content_type=row.get("content_type"),
            time_to_live_ms=ttl_ms,
            scheduled_enqueue_time_ms=None if scheduled is None else milliseconds(scheduled),
            application_properties=self._properties(row),
        )
        if not message.message_id:
            if self._options.message_id == COLUMN:
                raise BadRow("a row has no message_id; messageId=content makes one from what the message contains")
            message.message_id = hashlib.sha256(message.encode()).hexdigest()
        return message

    def _properties(self, row: dict[str, Any]) -> dict[str, object]:
        given = row.get("application_properties")
        if not given:
            return {}
        types = dict(row.get("property_types") or ())
        properties: dict[str, object] = {}
        for name, value in given:
            kind = types.get(name)
            if kind is not None:
                try:
                    properties[name] = value_of(value, kind)
                except ValueError as error:
                    raise BadRow(f"application property '{name}': {error}") from None
            else:
                properties[name] = None if value is None else self._make_property(value)
        return properties


def milliseconds(moment: datetime) -> int:
    """Since the epoch; a time without a zone is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)
