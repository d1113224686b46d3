"""How an answer is filled from rows in order: when it is full, when it was cut, what comes next."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from spillway.model import limits
from spillway.model.message import NEVER, StoredMessage
from spillway.model.records import LoadActive, LoadActiveOfSessions, LoadDue, LoadExpired, Query, Rows


class PassedOver:
    """A row that a query is not after, and had to look at."""

    def __init__(self, sequence_number: int) -> None:
        self.sequence_number = sequence_number


Found: TypeAlias = StoredMessage | int | PassedOver  # an int is the sequence number of a damaged row


def fill(query: Query, found: Iterable[Found], rows_max: int = limits.QUERY_ROWS_MAX) -> Rows:
    """Rows in the query's order.

    Damaged rows are reported and never counted: whoever pages on by the last message answered makes progress. Rows
    are taken one by one, so that stopping early costs nothing; those that are no answer only up to `rows_max`.
    """
    rows = Rows([])
    size_bytes = 0
    passed_count = 0
    before_ms = query.before_ms if isinstance(query, LoadActive) else 0
    for row in found:
        if not isinstance(row, StoredMessage):
            passed_count += 1
            if passed_count > rows_max:
                rows.is_cut = True
                break
            if isinstance(row, int):
                rows.corrupt.append(row)
                rows.read_upto = row
            else:
                rows.read_upto = row.sequence_number
            continue
        if before_ms and row.enqueued_ms >= before_ms:
            break
        time_ms = _time_ms(query, row)
        is_due = time_ms == NEVER or time_ms <= _until_ms(query)
        if not is_due or len(rows.messages) >= query.count or (rows.messages and size_bytes > query.bytes_max):
            rows.is_cut = is_due
            rows.next_ms = time_ms
            break
        rows.messages.append(row)
        rows.read_upto = row.sequence_number
        size_bytes += len(row.message.raw)
    return rows


def fill_each(query: LoadActiveOfSessions, answer: Callable[[LoadActive], Rows]) -> Rows:
    """The sessions in the order asked, until there are bytes enough; the first is always answered."""
    rows = Rows([])
    bytes_left = query.bytes_max
    for session_id, after in query.afters.items():
        if bytes_left <= 0:
            break
        part = answer(LoadActive(query.entity_id, after, query.count, bytes_left, session_id))
        rows.by_session[session_id] = part
        for stored in part.messages:
            bytes_left -= len(stored.message.raw)
    return rows


def _until_ms(query: Query) -> int:
    if isinstance(query, LoadDue | LoadExpired):
        return query.now_ms
    return NEVER


def _time_ms(query: Query, row: StoredMessage) -> int:
    """The time that a query by time goes by; NEVER for the others."""
    if isinstance(query, LoadDue):
        return row.due_ms
    if isinstance(query, LoadExpired):
        return row.expires_ms
    return NEVER
