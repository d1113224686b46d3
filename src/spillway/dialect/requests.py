"""Requests over a pair of links, as `$cbs` and `$management` use them: a message in, a message out.

The answer carries the request's message-id as its correlation-id, in the very same AMQP type (docs/wire.md,
"Correlation in the same type"), and goes out settled: Python never settles what it receives on these links.
"""

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget
from spillway.amqp.errors import DecodeError
from spillway.amqp.message import (
    Properties,
    decode_body_value,
    decode_map,
    decode_properties,
    encode_amqp_value,
    encode_message,
    split_sections,
)
from spillway.dialect.errors import MessageMalformed
from spillway.model.errors import ArgumentError


class RequestMessage:
    def __init__(
        self, message_id: object, reply_to: str | None, properties: dict[object, object], body: object
    ) -> None:
        self.message_id = message_id
        self.reply_to = reply_to
        self.properties = properties
        self.body = body

    def text(self, name: str) -> str:
        """A property that must be there and be a string."""
        value = self.properties.get(name)
        if not isinstance(value, str):
            raise ArgumentError(f"The application property '{name}' must be a string.")
        return str(value)


def decode_request(payload: bytes) -> RequestMessage:
    """`BrokerError` if it is no message, or one that could not be answered."""
    try:
        sections = split_sections(payload, DecodeBudget(MESSAGE_ELEMENTS_MAX))
        properties = decode_properties(payload, sections)
        named = decode_map(payload, sections.application_properties)
        body = decode_body_value(payload, sections)
    except DecodeError as error:
        raise MessageMalformed(f"The request is no AMQP message: {error.description}.") from None
    if properties.message_id is None:
        raise ArgumentError("A request needs a message-id: its answer carries it as correlation-id.")
    return RequestMessage(properties.message_id, properties.reply_to, named, body)


def encode_response(correlation_id: object, properties: dict[object, object], body: object) -> bytes:
    return encode_message(
        properties=Properties(correlation_id=correlation_id),
        application_properties=properties,
        body=encode_amqp_value(body),
    )
