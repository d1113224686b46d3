"""The properties of an encoded message, for the rules of subscriptions: read on demand, each section once.

A topic makes one view of a message and shows it to all its subscriptions, so what the first rule had decoded is there
for the others; what no rule asks for is never decoded.
"""

from typing import Final

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget, decode_value
from spillway.broker.topic import PropertyAccess
from spillway.dialect.admission import id_text, read_fields
from spillway.dialect.annotations import PREFIX, VIA_PARTITION_KEY
from spillway.dialect.delivery import merged
from spillway.dialect.encoded_maps import key_text, pairs_at, pairs_of
from spillway.dialect.property_values import known_value
from spillway.dialect.rewriting import rewritten
from spillway.model import properties as names
from spillway.model.message import NEVER, NO_TTL, Message, Overlay
from spillway.model.properties import ChangedProperties, Duration, MessageProperties, Moment, fold

# Fields of the properties section, by position [3.2.4].
_TO: Final = 2
_SUBJECT: Final = 3
_REPLY_TO: Final = 4
_CORRELATION_ID: Final = 5
_CONTENT_TYPE: Final = 6
_REPLY_TO_GROUP_ID: Final = 12
_MASK: Final = 1 << _TO | 1 << _SUBJECT | 1 << _REPLY_TO | 1 << _CORRELATION_ID | 1 << _CONTENT_TYPE | 1 << 12
_FIELDS: Final[dict[str, int]] = {
    names.LABEL: _SUBJECT,
    names.CORRELATION_ID: _CORRELATION_ID,
    names.TO: _TO,
    names.REPLY_TO: _REPLY_TO,
    names.CONTENT_TYPE: _CONTENT_TYPE,
    names.REPLY_TO_SESSION_ID: _REPLY_TO_GROUP_ID,
}


class EncodedProperties(MessageProperties):
    """A message on its way through a topic, where it has this number and was enqueued now."""

    def __init__(
        self, message: Message, sequence_number: int, now_ms: int, dead_letter_source: str | None = None
    ) -> None:
        self.message = message
        self.sequence_number = sequence_number
        self.now_ms = now_ms
        self.dead_letter_source = dead_letter_source  # of a dead letter that was forwarded to the topic
        self.fields: list[object] | None = None
        self.values: dict[str, object] | None = None  # application properties by folded name

    def system(self, name: str) -> object:
        field = _FIELDS.get(name, -1)
        if field >= 0:
            return self._field(field)
        if name == names.MESSAGE_ID:
            return self.message.message_id
        if name == names.SESSION_ID:
            return self.message.session_id
        return self._rare(name)

    def user(self, name: str) -> object:
        values = self.values
        if values is None:
            values = self._read_values()
        return values.get(name)

    def has_user(self, name: str) -> bool:
        values = self.values
        if values is None:
            values = self._read_values()
        return name in values

    def _field(self, index: int) -> object:
        fields = self.fields
        if fields is None:
            message = self.message
            fields = read_fields(message.raw, message.bare_at, message.properties_end, _MASK)
            self.fields = fields
        value = fields[index]
        if value is None:
            return None
        return str(value) if isinstance(value, str) else id_text(value)

    def _rare(self, name: str) -> object:
        message = self.message
        if name == names.PARTITION_KEY:
            return message.partition_key
        if name == names.TIME_TO_LIVE:
            return None if message.ttl_ms == NO_TTL else Duration(message.ttl_ms)
        if name == names.EXPIRES_AT:
            return None if message.ttl_ms == NO_TTL else Moment(self.now_ms + message.ttl_ms)
        if name == names.SCHEDULED_ENQUEUE_TIME:
            return None if message.scheduled_ms == NEVER else Moment(message.scheduled_ms)
        if name == names.ENQUEUED_TIME:
            return Moment(self.now_ms)
        if name == names.SEQUENCE_NUMBER or name == names.ENQUEUED_SEQUENCE_NUMBER:
            return self.sequence_number
        if name == names.SIZE:
            return len(message.raw)
        if name == names.DELIVERY_COUNT:
            return 0  # nobody has received it yet
        if name == names.VIA_PARTITION_KEY:
            return self._annotation(VIA_PARTITION_KEY)
        assert name == names.DEAD_LETTER_SOURCE, name
        return self.dead_letter_source

    def _annotation(self, name: str) -> object:
        message = self.message
        raw = message.raw
        if raw.find(PREFIX, message.annotations_at, message.annotations_end) < 0:
            return None
        for pair in pairs_of(raw, message.annotations_at, message.annotations_end):
            if key_text(raw, pair) == name:
                value, _ = decode_value(raw, pair.value_at, pair.end, DecodeBudget(MESSAGE_ELEMENTS_MAX))
                return known_value(value)
        return None

    def _read_values(self) -> dict[str, object]:
        """Of names that differ in case only, the first one counts."""
        message = self.message
        raw = message.raw
        values: dict[str, object] = {}
        end = message.application_end
        if message.properties_end < end:
            at = pairs_at(raw, message.properties_end)
            budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
            while at < end:
                name, at = decode_value(raw, at, end, budget)
                value, at = decode_value(raw, at, end, budget)
                assert isinstance(name, str), "names of application properties are strings"
                values.setdefault(fold(name), known_value(value))
        self.values = values
        return values


class EncodedAccess(PropertyAccess):
    """How the core's topics see and change the messages of this room."""

    def read(
        self, message: Message, sequence_number: int, now_ms: int, dead_letter_source: str | None = None
    ) -> MessageProperties:
        return EncodedProperties(message, sequence_number, now_ms, dead_letter_source)

    def rewrite(self, message: Message, changes: ChangedProperties) -> Message:
        return rewritten(message, changes)

    def merge(self, message: Message, overlay: Overlay) -> Message:
        return merged(message, overlay)
