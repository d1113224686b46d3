"""How a refusal is said in AMQP: condition, text with tracking id (docs/wire.md, "Three fields in every error")."""

from typing import ClassVar, Protocol

from spillway.amqp.errors import AmqpError
from spillway.dialect.addresses import shown
from spillway.model.errors import BrokerError


class Tracker(Protocol):
    """Where ids come from: this room has no randomness of its own."""

    def tracking_text(self, entity: str, now_ms: int) -> str:
        """` TrackingId:<guid>_<node>, SystemTracker:<entity>, Timestamp:<UTC>`, the tail of an error description."""

    def new_message_id(self) -> str:
        """For a message whose sender gave none."""


class MessageMalformed(BrokerError):
    """A payload that is no AMQP message. Refused like any other (docs/wire.md, "Never detach for a refused send")."""

    condition: ClassVar[str] = "amqp:decode-error"
    status_code: ClassVar[int] = 400


def amqp_error(error: BrokerError, tracker: Tracker, entity: str, now_ms: int) -> AmqpError:
    return AmqpError(error.said_condition(), tracked_text(error.description, tracker, entity, now_ms))


def tracked_text(text: str, tracker: Tracker, entity: str, now_ms: int) -> str:
    return text + tracker.tracking_text(shown(entity), now_ms)
