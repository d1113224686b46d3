"""The names that Service Bus adds to messages, links and requests, and which of them only the broker may write."""

from typing import Final

# -- message annotations (docs/wire.md, "Message sections") -----------------------------------------------------
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
ENQUEUE_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
LOCKED_UNTIL: Final = "x-opt-locked-until"
MESSAGE_STATE: Final = "x-opt-message-state"
DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
SCHEDULED_ENQUEUE_TIME: Final = "x-opt-scheduled-enqueue-time"
PARTITION_KEY: Final = "x-opt-partition-key"
VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"
# -- delivery annotations
LOCK_TOKEN: Final = "x-opt-lock-token"

# What says where a message is and who holds it. A client that sends a received message on brings the old values
# along; stored, they would stand beside ours as duplicate keys.
PREFIX: Final = b"x-opt-"  # every one of these names begins so
BROKER_OWNED: Final = frozenset(
    [
        SEQUENCE_NUMBER,
        ENQUEUED_TIME,
        ENQUEUE_SEQUENCE_NUMBER,
        LOCKED_UNTIL,
        MESSAGE_STATE,
        DEAD_LETTER_SOURCE,
        LOCK_TOKEN,
    ]
)

# -- application properties that the broker writes
DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"

# -- links
SESSION_FILTER: Final = "com.microsoft:session-filter"
LOCKED_UNTIL_UTC: Final = "com.microsoft:locked-until-utc"  # of a session: a long of .NET ticks
TIMEOUT: Final = "com.microsoft:timeout"  # how long to wait for the next session: a uint of ms
ENTITY_TYPE: Final = "com.microsoft:entity-type"
ENTITY_TYPE_QUEUE: Final = 0
ENTITY_TYPE_TOPIC: Final = 1
ENTITY_TYPE_SUBSCRIPTION: Final = 2

DEAD_LETTER_CONDITION: Final = "com.microsoft:dead-letter"
BATCH_FORMAT: Final = 0x80013700
PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"


def encoded_symbol(name: str) -> bytes:
    """A symbol of at most 255 characters as sym8: how annotation keys are written."""
    data = name.encode("ascii")
    assert len(data) < 256, "sym8 has one byte for its length"
    return b"\xa3" + bytes([len(data)]) + data
