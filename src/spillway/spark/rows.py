"""Messages become Arrow record batches, a column at a time, and only the columns that were asked for."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, Budget, decode_value
from spillway.amqp.message import AMQP_SEQUENCE, AMQP_VALUE, DATA
from spillway.amqp.types import Described
from spillway.client import ReceivedMessage
from spillway.dialect.annotations import ENQUEUE_SEQUENCE_NUMBER, PARTITION_KEY
from spillway.spark.options import BINARY, JSON, ReadOptions
from spillway.spark.schema import BODY, BODY_ERROR, BODY_QUARANTINE, RAW
from spillway.spark.values import EPOCH, MS_MAX, MS_MIN, plain_value, text_of, type_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Read = Callable[[ReceivedMessage], object]

STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}
BODY_TYPES: Final = {DATA: "data", AMQP_VALUE: "value", AMQP_SEQUENCE: "sequence"}


class RowMaker:
    """Makes batches of one schema."""

    def __init__(self, schema: "StructType", options: ReadOptions, namespace: str) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._names: list[str] = schema.fieldNames()
        self._options = options
        self._namespace = namespace
        self._has_bodies = bool({BODY, BODY_ERROR, BODY_QUARANTINE} & set(self._names))

    def batch(self, entity: str, messages: Sequence[ReceivedMessage]) -> "pa.RecordBatch":
        """One row a message, in their order."""
        import pyarrow as pa

        columns = self._body_columns(messages) if self._has_bodies else {}
        columns["namespace"] = [self._namespace] * len(messages)
        columns["entity"] = [entity] * len(messages)
        arrays = [
            pa.array(columns[name] if name in columns else list(map(_READS[name], messages)), type=field.type)
            for name, field in zip(self._names, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _body_columns(self, messages: Sequence[ReceivedMessage]) -> dict[str, Any]:
        bodies = [body_bytes(message) for message in messages]
        if self._options.body_format == BINARY:
            return {BODY: bodies}
        read = read_json if self._options.body_format == JSON else read_string
        texts: list[str | None] = []
        errors: list[str | None] = []
        quarantined: list[bytes | None] = []
        for body in bodies:
            text, error = read(body)
            texts.append(text)
            errors.append(error)
            quarantined.append(None if error is None else body)
        return {BODY: texts, BODY_ERROR: errors, BODY_QUARANTINE: quarantined}


def body_bytes(message: ReceivedMessage) -> bytes:
    """Data as it is; a value that is text or bytes as those; any other value as JSON."""
    kind = message.sections.body_kind
    if kind == DATA:
        return message.body
    if kind == AMQP_VALUE:
        value = message.value
        if isinstance(value, str):
            return value.encode("utf-8", "surrogatepass")
        if isinstance(value, bytes):
            return bytes(value)
        return json.dumps(plain_value(value)).encode()
    if kind == AMQP_SEQUENCE:
        return json.dumps(plain_value(_sequences(message))).encode()
    return b""


def _sequences(message: ReceivedMessage) -> list[object]:
    """The items of all its sections, one after the other."""
    body = message.sections.body
    found: list[object] = []
    at = body.start
    budget = Budget(MESSAGE_ELEMENTS_MAX)
    while at < body.end:
        value, at = decode_value(message.raw, at, body.end, budget)
        assert isinstance(value, Described) and isinstance(value.value, list), "sections were checked"
        found += value.value
    return found


def read_string(body: bytes) -> tuple[str | None, str | None]:
    """The text, or why there is none."""
    try:
        return body.decode("utf-8"), None
    except UnicodeDecodeError as error:
        return None, f"not UTF-8: byte {error.start} of {len(body)}"


def read_json(body: bytes) -> tuple[str | None, str | None]:
    """The text of a JSON value, as it was sent, or why it is none."""
    text, error = read_string(body)
    if text is None:
        return None, error
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as wrong:
        return None, f"not JSON: {wrong.msg}, line {wrong.lineno} column {wrong.colno}"
    except ValueError as wrong:  # a constant that JSON has not, or a number with too many digits
        return None, f"not JSON: {str(wrong)[:100]}"
    except RecursionError:
        return None, "not JSON that can be read: nested too deeply"
    return text, None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


def _moment(ms: int | None) -> datetime | None:
    if ms is None or not MS_MIN <= ms <= MS_MAX:
        return None
    return EPOCH + timedelta(milliseconds=ms)


def _text(value: object) -> str | None:
    return value if type(value) is str else text_of(value)


def _expires_at(message: ReceivedMessage) -> datetime | None:
    at_ms = message.properties.absolute_expiry_time
    ttl_ms, enqueued_ms = message.header.ttl_ms, message.enqueued_time_ms
    if at_ms is None and ttl_ms is not None and enqueued_ms is not None:
        at_ms = enqueued_ms + ttl_ms
    return _moment(at_ms)


def _number(message: ReceivedMessage, name: str) -> int | None:
    value = message.annotations.get(name)
    return value if isinstance(value, int) else None


def _texts(message: ReceivedMessage) -> list[tuple[str, str | None]]:
    return [(str(name), text_of(value)) for name, value in message.application_properties.items()]


def _types(message: ReceivedMessage) -> list[tuple[str, str]]:
    return [(str(name), type_name(value)) for name, value in message.application_properties.items()]


def _lock_token(message: ReceivedMessage) -> str | None:
    return None if message.lock_token is None else str(message.lock_token)


_READS: Final[dict[str, Read]] = {
    "sequence_number": lambda message: message.sequence_number,
    "enqueued_sequence_number": lambda message: _number(message, ENQUEUE_SEQUENCE_NUMBER),
    "enqueued_time": lambda message: _moment(message.enqueued_time_ms),
    "state": lambda message: STATES.get(message.state, str(message.state)),
    "delivery_count": lambda message: message.delivery_count,
    "lock_token": _lock_token,
    "locked_until": lambda message: _moment(message.locked_until_ms),
    "message_id": lambda message: _text(message.message_id),
    "session_id": lambda message: message.properties.group_id,
    "partition_key": lambda message: _text(message.annotations.get(PARTITION_KEY)),
    "correlation_id": lambda message: _text(message.properties.correlation_id),
    "subject": lambda message: message.properties.subject,
    "content_type": lambda message: _text(message.properties.content_type),
    "to": lambda message: message.properties.to,
    "reply_to": lambda message: message.properties.reply_to,
    "reply_to_session_id": lambda message: message.properties.reply_to_group_id,
    "time_to_live_ms": lambda message: message.header.ttl_ms,
    "expires_at": _expires_at,
    "scheduled_enqueue_time": lambda message: _moment(message.scheduled_enqueue_time_ms),
    "dead_letter_reason": lambda message: _text(message.dead_letter_reason),
    "dead_letter_error_description": lambda message: _text(message.dead_letter_description),
    "dead_letter_source": lambda message: _text(message.dead_letter_source),
    "application_properties": _texts,
    "property_types": _types,
    "body_type": lambda message: BODY_TYPES.get(message.sections.body_kind, "none"),
    RAW: lambda message: message.raw,
}
