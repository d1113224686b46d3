"""How an answer is filled from rows in order: when it is full, when it was cut, what comes next."""

from collections.abc import Callable, Iterable

from spillway.model.message import NEVER, StoredMessage
from spillway.model.records import LoadActive, LoadActiveOfSessions, LoadDue, LoadExpired, Query, Rows


def fill(query: Query, found: Iterable[StoredMessage | int]) -> Rows:
    """Rows in the query's order; an int is the sequence number of a damaged one.

    Damaged rows are reported and never counted: whoever pages on by the last message answered makes progress. Rows
    are taken one by one, so that stopping early costs nothing.
    """
    rows = Rows([])
    size_bytes = 0
    for row in found:
        if isinstance(row, int):
            rows.corrupt.append(row)
            continue
        time_ms = _time_ms(query, row)
        is_due = time_ms == NEVER or time_ms <= _until_ms(query)
        if not is_due or len(rows.messages) >= query.count or (rows.messages and size_bytes > query.bytes_max):
            rows.is_cut = is_due
            rows.next_ms = time_ms
            break
        rows.messages.append(row)
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
