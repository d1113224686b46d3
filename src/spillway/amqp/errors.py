"""Errors of AMQP: what a peer can do wrong, and how it is said.

`ProtocolError` is the peer's fault and names what it ends: the link, the session or the connection. `AmqpError` is the
value that travels: the described type `error` [2.8.14].
"""

from typing import ClassVar, Final

LINK: Final = "link"
SESSION: Final = "session"
CONNECTION: Final = "connection"

DECODE_ERROR: Final = "amqp:decode-error"
INVALID_FIELD: Final = "amqp:invalid-field"
FRAMING_ERROR: Final = "amqp:connection:framing-error"


class ProtocolError(Exception):
    """The peer broke a rule. `scope` is what has to be ended with `condition` and `description`."""

    def __init__(self, scope: str, condition: str, description: str) -> None:
        super().__init__(description)
        self.scope = scope
        self.condition = condition
        self.description = description


class DecodeError(ProtocolError):
    """Bytes that are no AMQP value, or more of one than the budget of its frame allows."""

    def __init__(self, description: str) -> None:
        super().__init__(CONNECTION, DECODE_ERROR, description)


class AmqpError:
    """The `error` type. Always encoded with its three fields: a Python sender that finds fewer waits for ever."""

    code: ClassVar[int] = 0x1D

    def __init__(
        self, condition: str, description: str | None = None, info: dict[object, object] | None = None
    ) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AmqpError)
            and self.condition == other.condition
            and self.description == other.description
            and self.info == other.info
        )

    def __hash__(self) -> int:
        return hash(self.condition)

    def __repr__(self) -> str:
        return f"AmqpError({self.condition!r}, {self.description!r}, {self.info!r})"


def error_from(error: ProtocolError) -> AmqpError:
    """What to tell the peer about its own fault."""
    return AmqpError(error.condition, error.description)
