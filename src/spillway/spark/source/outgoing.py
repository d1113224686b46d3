"""Rows become messages: which columns a write takes, what types they may have, and what each row is sent as."""

import difflib
import hashlib
import struct
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
from spillway.spark.source.quarantine import ADDED
from spillway.spark.source.refusals import OutgoingRow, message_problem
from spillway.spark.source.schema import BODY, BODY_ERROR, BODY_QUARANTINE, COLUMNS, RAW
from spillway.spark.source.values import EPOCH, value_of
from spillway.syphon.policy import path_problem

if TYPE_CHECKING:
    import pyarrow as pa

SENT: Final = (BODY, *(column.name for column in COLUMNS if column.is_sent))
# What a read brings and the service says anew, and what a quarantine has added to rows that were mended since.
PASSED_OVER: Final = frozenset(
    {column.name for column in COLUMNS if not column.is_sent} | {BODY_ERROR, BODY_QUARANTINE, RAW, *ADDED}
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
    unknown = [name for name in names if name not in (options.entity_column, *SENT) and name not in PASSED_OVER]
    if unknown:
        raise OptionError(_unknown_text(unknown))
    for each in schema.fields:
        if each.name == options.entity_column:
            _expect(each.name, each.dataType, (StringType,), "string")
        elif each.name in SENT:
            _check_type(each.name, each.dataType)
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


def _unknown_text(names: list[str]) -> str:
    """All columns that are no part of a message, up to ten, with what comes near."""
    near = {name: difflib.get_close_matches(name.lower(), SENT, 1) for name in names[:10]}
    hints = sorted({found[0] for found in near.values() if found})
    hint = f"did you mean {' or '.join(hints)}? " if hints else ""
    listed = ", ".join(f"'{name}'" for name in near) + (" …" if len(names) > len(near) else "")
    many = f"columns {listed} are" if len(names) > 1 else f"column {listed} is"
    return (
        f"{many} no part of a message: {hint}a write takes {', '.join(SENT)}; others go into application_properties, "
        "or into the body with to_json(struct(*))"
    )


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

    def rows(self, batch: "pa.RecordBatch") -> Iterator[OutgoingRow]:
        """Every row as a message, or with the problem for which it can be none."""
        columns = {name: _values_of(batch.column(name)) for name in self._columns}
        entity = self._options.entity
        entities = batch.column(self._options.entity_column).to_pylist() if not entity else None
        for index in range(batch.num_rows):
            row = {name: values[index] for name, values in columns.items()}
            to = entity if entities is None else entities[index] or ""
            try:
                if entities is not None:
                    self._check_entity(to)
                yield OutgoingRow((to, *self._encoded(row)), None, batch, index)
            except BadRow as error:
                named = row.get("message_id")
                yield OutgoingRow((to, named if isinstance(named, str) else "", b""), str(error), batch, index)

    def _check_entity(self, to: str) -> None:
        if not to.strip("/"):
            raise BadRow(f"a row has no entity in column {self._options.entity_column}")
        problem = path_problem(to)
        if problem is not None:
            raise BadRow(f"column {self._options.entity_column}: {problem}")

    def _encoded(self, row: dict[str, Any]) -> tuple[str, bytes]:
        """The id of the message, and its bytes."""
        for name, value in row.items():
            if isinstance(value, _Unreadable):
                raise BadRow(f"{name} is outside of what can be sent: {value.why}")
        message = self._message(row)
        try:
            if not message.message_id:
                message.message_id = hashlib.sha256(message.encode()).hexdigest()
            encoded = message.encode()
        except (ValueError, OverflowError, struct.error) as error:
            raise BadRow(f"it cannot be encoded: {error}") from None
        problem = message_problem(message, encoded, len(row[BODY]))
        if problem is not None:
            raise BadRow(problem)
        return message.message_id, encoded

    def _message(self, row: dict[str, Any]) -> OutgoingMessage:
        body = row[BODY]
        if body is None:
            raise BadRow("body is null; coalesce(body, '') sends an empty one")
        if not row.get("message_id") and self._options.message_id == COLUMN:
            raise BadRow("a row has no message_id; messageId=content makes one from what the message contains")
        scheduled = row.get("scheduled_enqueue_time")
        ttl_ms = row.get("time_to_live_ms")
        if ttl_ms is not None and not 0 < ttl_ms < 2**32:
            raise BadRow(f"time_to_live_ms is {ttl_ms}: it has to be from 1 to {2**32 - 1}")
        return OutgoingMessage(
            body,
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


class _Unreadable:
    """In place of a value that Python has no object for, as a time after the year 9999."""

    def __init__(self, why: str) -> None:
        self.why = why


def _values_of(column: "pa.Array") -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
        return found
    except (ValueError, OverflowError):
        return [_value_of(each) for each in column]


def _value_of(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError) as error:
        return _Unreadable(str(error))


def milliseconds(moment: datetime) -> int:
    """Since the epoch; a time without a zone is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)
