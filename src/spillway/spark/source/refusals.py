"""Rows that no entity takes: what is known of a message before it is sent, and what a task says of those it refused.

A row is refused for what it is, not for how the service fares: trying again does not help, and its neighbours have
nothing to do with it. So it never fails a task, which Spark would try four times, with all its neighbours. A task
reports it, and the driver ends the write.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget, skip_value
from spillway.amqp.errors import DecodeError
from spillway.amqp.message import split_sections
from spillway.client import ClientError, OutgoingMessage
from spillway.model import limits
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.syphon.policy import failure_of, is_of_message

if TYPE_CHECKING:
    import pyarrow as pa

REASONS_MAX: Final = 5  # that a task reports; the others are counted
REASON_CHARS_MAX: Final = 500
ID_CHARS_SHOWN: Final = 128

Out = tuple[str, str, bytes]  # where it goes, its id, its bytes


class RowsRefused(NamespaceError):
    """A write ends because rows of it can never be sent. The text says which, and why."""


class OutgoingRow(NamedTuple):
    """A row and the message that was made of it; `problem` says why it is none that can be sent."""

    out: Out
    problem: str | None
    batch: "pa.RecordBatch | None" = None
    position: int = 0


class RefusedRow(NamedTuple):
    """A row that was not sent, or not accepted, for what it is."""

    row: OutgoingRow
    reason: str

    def words(self) -> str:
        entity, message_id, encoded = self.row.out
        size = f" of {len(encoded):,} bytes" if encoded else ""
        return f"'{message_id[:ID_CHARS_SHOWN]}'{size}, by '{entity}': {self.reason[:REASON_CHARS_MAX]}"


class RefusalReport:
    """What a task says of refused rows: how many, and why the first of them. It travels to the driver."""

    def __init__(self) -> None:
        self.count = 0
        self.reasons: list[str] = []

    def add(self, refused: Sequence[RefusedRow]) -> None:
        self.count += len(refused)
        self.reasons += [each.words() for each in refused[: REASONS_MAX - len(self.reasons)]]

    def join(self, other: "RefusalReport") -> None:
        self.count += other.count
        self.reasons += other.reasons[: REASONS_MAX - len(self.reasons)]


def message_problem(message: OutgoingMessage, encoded: bytes, body_bytes: int) -> str | None:
    """Why every entity would refuse this message; None if that depends on the entity."""
    for name, text, most in (
        ("message_id", message.message_id, limits.MESSAGE_ID_CHARS_MAX),
        ("session_id", message.session_id, limits.SESSION_ID_CHARS_MAX),
        ("partition_key", message.partition_key, limits.PARTITION_KEY_CHARS_MAX),
    ):
        if text is not None and len(text) > most:
            return f"{name} has {len(text):,} characters; at most {most} are allowed"
    due_ms = message.scheduled_enqueue_time_ms
    if due_ms is not None and due_ms > limits.SCHEDULED_MS_MAX:
        return "scheduled_enqueue_time is later than the year 9999"
    if message.application_properties and len(encoded) - body_bytes > limits.PROPERTY_BYTES_MAX:
        return properties_problem(encoded)
    return None


def properties_problem(encoded: bytes) -> str | None:
    """Why the application properties of an encoded message are too large; None if they are not."""
    try:
        section = split_sections(encoded, DecodeBudget(MESSAGE_ELEMENTS_MAX)).application_properties
        size = section.pairs_end - section.pairs_at
        if size > limits.PROPERTIES_BYTES_MAX:
            most = limits.PROPERTIES_BYTES_MAX
            return f"application_properties have {size:,} bytes encoded; at most {most:,} are allowed"
        at, budget = section.pairs_at, DecodeBudget(MESSAGE_ELEMENTS_MAX)
        while at < section.pairs_end:
            after = skip_value(
                encoded, skip_value(encoded, at, section.pairs_end, budget), section.pairs_end, budget
            )  # fmt: skip
            if after - at > limits.PROPERTY_BYTES_MAX:
                most = limits.PROPERTY_BYTES_MAX
                return f"an application property has {after - at:,} bytes encoded; at most {most:,} are allowed"
            at = after
    except DecodeError as error:
        return f"it is no message that can be read: {error.description}"
    return None


def size_problem(encoded: bytes, entity: str, bytes_max: int) -> str | None:
    """`bytes_max`: what the link to the entity said; 0 if it said nothing."""
    if bytes_max and len(encoded) > bytes_max:
        return f"the message has {len(encoded):,} bytes; '{entity}' takes at most {bytes_max:,}"
    return None


def is_of_row(error: ClientError, is_link_over: bool) -> bool:
    """Whether a refusal is about this message, and says nothing of its neighbours."""
    failure = failure_of(error, is_link_over)
    return not failure.is_busy and is_of_message(failure)


def refuse_write(report: RefusalReport, rows: int) -> None:
    """End the write on the driver, if a task has refused rows."""
    if not report.count:
        return
    others = f"; {report.count - 1:,} more" if report.count > 1 else ""
    raise RowsRefused(
        f"{report.count:,} of {rows:,} messages were not accepted. The first, {report.reasons[0]}{others}. Their "
        "neighbours were sent once at most. Mend the rows, or set onRefused=quarantine and quarantine=DIRECTORY"
    ) from None


def counts_of(messages: Sequence[Any]) -> tuple[int, RefusalReport, RefusalReport]:
    """Of all tasks: rows, refused ones, quarantined ones. A task that failed has no message."""
    rows, refused, quarantined = 0, RefusalReport(), RefusalReport()
    for each in messages:
        if each is not None:
            rows += each.rows
            refused.join(each.refused)
            quarantined.join(each.quarantined)
    return rows, refused, quarantined
