"""Messages become Arrow record batches, a column at a time, and only the columns that were asked for."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget
from spillway.amqp.message import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    DATA,
    Header,
    Properties,
    Sections,
    decode_body_value,
    decode_data_bodies,
    decode_header,
    decode_map,
    decode_properties,
    decode_sequences,
    split_sections,
)
from spillway.client import ReceivedMessage
from spillway.dialect.annotations import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    DEAD_LETTER_SOURCE,
    ENQUEUE_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    PARTITION_KEY,
    SCHEDULED_ENQUEUE_TIME,
    SEQUENCE_NUMBER,
)
from spillway.spark.source.options import BINARY, JSON, ReadOptions
from spillway.spark.source.schema import BODY, BODY_ERROR, BODY_QUARANTINE, RAW
from spillway.spark.source.values import MS_MAX, MS_MIN, plain_value, text_of, type_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


_NO_HEADER: Final = Header()
_NO_PROPERTIES: Final = Properties()
_NO_MAP: Final[dict[object, object]] = {}


class Parts:
    """A message with the sections that some column needs, each decoded once.

    `ReceivedMessage` decodes when it is asked, behind a mutex for each of them: too dear for every cell.
    """

    __slots__ = ("annotations", "application_properties", "header", "message", "properties", "sections")

    def __init__(self, message: ReceivedMessage, needs: frozenset[str]) -> None:
        raw = message.raw
        self.message = message
        self.sections: Sections = split_sections(raw, DecodeBudget(MESSAGE_ELEMENTS_MAX))
        self.header: Header = _NO_HEADER
        self.properties: Properties = _NO_PROPERTIES
        self.annotations: dict[object, object] = _NO_MAP
        self.application_properties: dict[object, object] = _NO_MAP
        if "header" in needs:
            self.header = decode_header(raw, self.sections)
        if "properties" in needs:
            self.properties = decode_properties(raw, self.sections)
        if "annotations" in needs:
            self.annotations = decode_map(raw, self.sections.message_annotations)
        if "application" in needs:
            self.application_properties = decode_map(raw, self.sections.application_properties)


Read = Callable[[Parts], object]

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
        self._needs = frozenset(need for name in self._names for need in _NEEDS.get(name, "").split())

    def batch(self, entity: str, messages: Sequence[ReceivedMessage]) -> "pa.RecordBatch":
        """One row a message, in their order."""
        import pyarrow as pa

        rows = [Parts(message, self._needs) for message in messages]
        columns = self._body_columns(rows) if self._has_bodies else {}
        columns["namespace"] = [self._namespace] * len(messages)
        columns["entity"] = [entity] * len(messages)
        arrays = [
            pa.array(columns[name] if name in columns else list(map(_READS[name], rows)), type=field.type)
            for name, field in zip(self._names, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _body_columns(self, rows: Sequence[Parts]) -> dict[str, Any]:
        bodies = [body_bytes(row.message.raw, row.sections) for row in rows]
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


def body_bytes(raw: bytes, sections: Sections) -> bytes:
    """Data as it is; a value that is text or bytes as those; any other value as JSON."""
    kind = sections.body_kind
    if kind == DATA:
        return b"".join([raw[at:end] for at, end in decode_data_bodies(raw, sections)])
    if kind == AMQP_VALUE:
        value = decode_body_value(raw, sections)
        if isinstance(value, str):
            return value.encode("utf-8", "surrogatepass")
        if isinstance(value, bytes):
            return bytes(value)
        return json.dumps(plain_value(value)).encode()
    if kind == AMQP_SEQUENCE:
        return json.dumps(plain_value(decode_sequences(raw, sections))).encode()
    return b""


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


def _moment(ms: int | None) -> int | None:
    """In microseconds, as Arrow keeps it; none where no calendar goes."""
    return None if ms is None or not MS_MIN <= ms <= MS_MAX else ms * 1000


def _text(value: object) -> str | None:
    return value if type(value) is str else text_of(value)


def _expires_at(row: Parts) -> int | None:
    at_ms = row.properties.absolute_expiry_time
    ttl_ms, enqueued_ms = row.header.ttl_ms, _number(row, ENQUEUED_TIME)
    if at_ms is None and ttl_ms is not None and enqueued_ms is not None:
        at_ms = enqueued_ms + ttl_ms
    return _moment(at_ms)


def _number(row: Parts, name: str) -> int | None:
    value = row.annotations.get(name)
    return value if isinstance(value, int) else None


def _state(row: Parts) -> str:
    state = _number(row, MESSAGE_STATE) or 0
    return STATES.get(state, str(state))


def _texts(row: Parts) -> list[tuple[str, str | None]]:
    return [(str(name), text_of(value)) for name, value in row.application_properties.items()]


def _types(row: Parts) -> list[tuple[str, str]]:
    return [(str(name), type_name(value)) for name, value in row.application_properties.items()]


def _lock_token(row: Parts) -> str | None:
    token = row.message.lock_token
    return None if token is None else str(token)


_READS: Final[dict[str, Read]] = {
    "sequence_number": lambda row: _number(row, SEQUENCE_NUMBER),
    "enqueued_sequence_number": lambda row: _number(row, ENQUEUE_SEQUENCE_NUMBER) or _number(row, SEQUENCE_NUMBER),
    "enqueued_time": lambda row: _moment(_number(row, ENQUEUED_TIME)),
    "state": _state,
    "delivery_count": lambda row: row.header.delivery_count or 0,
    "lock_token": _lock_token,
    "locked_until": lambda row: _moment(_number(row, LOCKED_UNTIL)),
    "message_id": lambda row: _text(row.properties.message_id),
    "session_id": lambda row: row.properties.group_id,
    "partition_key": lambda row: _text(row.annotations.get(PARTITION_KEY)),
    "correlation_id": lambda row: _text(row.properties.correlation_id),
    "subject": lambda row: row.properties.subject,
    "content_type": lambda row: _text(row.properties.content_type),
    "to": lambda row: row.properties.to,
    "reply_to": lambda row: row.properties.reply_to,
    "reply_to_session_id": lambda row: row.properties.reply_to_group_id,
    "time_to_live_ms": lambda row: row.header.ttl_ms,
    "expires_at": _expires_at,
    "scheduled_enqueue_time": lambda row: _moment(_number(row, SCHEDULED_ENQUEUE_TIME)),
    "dead_letter_reason": lambda row: _text(row.application_properties.get(DEAD_LETTER_REASON)),
    "dead_letter_error_description": lambda row: _text(row.application_properties.get(DEAD_LETTER_DESCRIPTION)),
    "dead_letter_source": lambda row: _text(row.annotations.get(DEAD_LETTER_SOURCE)),
    "application_properties": _texts,
    "property_types": _types,
    "body_type": lambda row: BODY_TYPES.get(row.sections.body_kind, "none"),
    RAW: lambda row: row.message.raw,
}

# Which sections a column is read from.
_IN_ANNOTATIONS: Final = (
    "sequence_number enqueued_sequence_number enqueued_time state locked_until partition_key scheduled_enqueue_time "
    "dead_letter_source"
)
_IN_PROPERTIES: Final = "message_id session_id correlation_id subject content_type to reply_to reply_to_session_id"
_NEEDS: Final[dict[str, str]] = {
    **dict.fromkeys(_IN_ANNOTATIONS.split(), "annotations"),
    **dict.fromkeys(_IN_PROPERTIES.split(), "properties"),
    **dict.fromkeys(("delivery_count", "time_to_live_ms"), "header"),
    "expires_at": "header properties annotations",
    "dead_letter_reason": "application",
    "dead_letter_error_description": "application",
    "application_properties": "application",
    "property_types": "application",
}
assert _NEEDS.keys() <= _READS.keys(), "a column that needs a section is read from it"
