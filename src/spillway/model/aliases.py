"""What a message in a backlog says of itself: the names, and how they are read (contract E1 to E7).

Senders clear session, time to live and due time before a message goes to a backlog queue and write them, with the
destination, as application properties of these names. Every syphon reads them here, so that all of them take the same
messages and dead-letter the same ones for the same reasons.
"""

from typing import Final

from spillway.model.limits import SCHEDULED_MS_MAX

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"  # long, ms
SCHEDULED: Final = "x-ms-scheduledenqueuetimeutc"  # timestamp
ALIASES: Final = (PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED)

TTL_UINT_MAX: Final = 4_294_967_295  # what fits the header; a longer life is written as two times in the properties
EXPIRY_MS_MAX: Final = 253_402_243_199_000  # the last day of the year 9999, as the SDK caps it
LONG_MAX: Final = 2**63 - 1  # of AMQP

# Why a message is dead-lettered.
PATH_MISSING: Final = "PathMissing"
ALIAS_OF_WRONG_TYPE: Final = "AliasOfWrongType"


class Malformed(Exception):
    """No message of a paired sender: it can go nowhere, and is dead-lettered with this reason and text."""

    def __init__(self, reason: str, description: str) -> None:
        super().__init__(description)
        self.reason = reason
        self.description = description


class Aliases:
    """What a message in the backlog says of itself, checked."""

    def __init__(self, path: str, session_id: str | None, ttl_ms: int | None, due_ms: int | None) -> None:
        self.path = path
        self.session_id = session_id
        self.ttl_ms = ttl_ms
        self.due_ms = due_ms


def read_aliases(properties: dict[str, object]) -> Aliases:
    """Aliases out of application properties by name. `Malformed` if the message can go nowhere."""
    path = _text_of(properties, PATH)
    if path is None or not path.strip("/"):
        raise Malformed(PATH_MISSING, f"The message has no property '{PATH}' that says where it belongs.")
    return Aliases(
        path,
        _text_of(properties, SESSION_ID),
        _number_of(properties, TIME_TO_LIVE, LONG_MAX),
        _number_of(properties, SCHEDULED, SCHEDULED_MS_MAX),
    )


def _text_of(properties: dict[str, object], name: str) -> str | None:
    value = properties.get(name)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):  # as the SDK reads a text
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    raise Malformed(ALIAS_OF_WRONG_TYPE, f"The property '{name}' must be a string.")


def _number_of(properties: dict[str, object], name: str, most: int) -> int | None:
    value = properties.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise Malformed(ALIAS_OF_WRONG_TYPE, f"The property '{name}' must be a number of milliseconds up to {most}.")
    return value
