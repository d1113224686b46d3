"""What the records do to a row, for every journal: a changed twin, never the object that was handed in."""

from spillway.model.message import ACTIVE, HIDDEN, NEVER, SCHEDULED, StoredMessage
from spillway.model.records import MessageChanged, MessageMoved
from spillway.store.rows import copy_of


def changed(stored: StoredMessage, record: MessageChanged) -> StoredMessage:
    twin = copy_of(stored)
    twin.state = record.state
    twin.delivery_count = record.delivery_count
    twin.overlay = None if record.overlay is None else record.overlay.copy()
    if record.state not in (SCHEDULED, HIDDEN):
        twin.due_ms = NEVER
    return twin


def moved(stored: StoredMessage, record: MessageMoved) -> StoredMessage:
    twin = StoredMessage(stored.message, record.to_sequence_number, record.enqueued_ms)
    twin.enqueue_sequence_number = stored.enqueue_sequence_number
    twin.state = ACTIVE
    twin.expires_ms = record.expires_ms
    twin.delivery_count = record.delivery_count
    twin.overlay = None if record.overlay is None else record.overlay.copy()
    twin.session_id = record.session_id
    return twin
