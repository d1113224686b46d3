"""Message sessions in SQLite: how many active messages each has, and the state that was set.

A row that does not match its checksum is set apart. How many messages the session has is counted; a state that is not
what was set is no state: whoever asks for it is refused, until somebody sets or clears it.
"""

import struct
from typing import Final
from zlib import crc32

import apsw

from spillway.model.message import NEVER
from spillway.model.records import LoadSession, LoadSessionNames, LoadSessions, Query, Rows, SessionRow
from spillway.store.batch import Batch
from spillway.store.rows import sequence_number_of, text_of
from spillway.store.set_apart import SetApart
from spillway.store.statements import STATEMENTS, fetch

_HEAD: Final = struct.Struct("<qqqqq")
MENDED_MAX: Final = 3  # looks at a page of sessions: after each the damaged ones are in their place


class StoredSession:
    """One row of the table. `is_sound`: it matches its checksum."""

    def __init__(self, columns: tuple[object, ...]) -> None:
        entity_id, name, active, ready_since, state, state_ms, checksum = columns
        session_id = text_of(name)
        self.columns = columns
        self.is_sound = (
            isinstance(entity_id, int)
            and session_id is not None
            and isinstance(active, int)
            and isinstance(ready_since, int)
            and (state is None or isinstance(state, bytes))
            and isinstance(state_ms, int)
            and checksum == _checksum(entity_id, session_id, active, ready_since, state, state_ms)
        )
        self.entity_id = entity_id if isinstance(entity_id, int) else -1
        self.session_id = session_id
        self.active = active if isinstance(active, int) else 0
        self.ready_since = ready_since if isinstance(ready_since, int) else 0
        self.state = state if isinstance(state, bytes) else None
        self.state_ms: int = state_ms if isinstance(state_ms, int) else NEVER
        # Of a session that never had a state, two columns say so.
        self.is_state_known = self.is_sound or (state is None and state_ms == NEVER)


def _checksum(
    entity_id: int, session_id: str, active: int, ready_since: int, state: bytes | None, state_ms: int
) -> int:
    size = -1 if state is None else len(state)
    head = _HEAD.pack(entity_id, active, ready_since, size, state_ms)
    return crc32(session_id.encode("utf-8", "surrogatepass"), crc32(head + (state or b"")))


def write_sessions(cursor: apsw.Cursor, batch: Batch, apart: SetApart, paths: dict[int, str]) -> None:
    """Inside the batch's transaction, when its messages are written. A session without messages and state is none."""
    for (entity_id, session_id), (gone, come, first) in batch.session_changes().items():
        if entity_id in batch.removed:
            continue
        found = fetch(cursor, "select_session", (entity_id, session_id))
        session = StoredSession(found[0]) if found else None
        left = (0 if session is None else session.active) - gone
        active = left + come
        ready_since = first if session is None or (left == 0 and come > 0) else session.ready_since
        if (session is not None and not session.is_sound) or left < 0:
            if session is not None:
                note_session(session, apart, paths)
            active, ready_since = count_session(cursor, entity_id, session_id)
        state, state_ms = (None, NEVER) if session is None else (session.state, session.state_ms)
        is_state_known = session is None or session.is_state_known
        put = batch.states.get((entity_id, session_id))
        if put is not None:
            state, state_ms = put.state, put.now_ms
            is_state_known = True
        if active == 0 and state is None and is_state_known:
            cursor.execute(STATEMENTS["delete_session"], (entity_id, session_id))
            continue
        _put(cursor, entity_id, session_id, active, ready_since, state, state_ms, is_state_known)


def _put(
    cursor: apsw.Cursor,
    entity_id: int,
    session_id: str,
    active: int,
    ready_since: int,
    state: bytes | None,
    state_ms: int,
    is_state_known: bool,
) -> None:
    """No checksum matches None: a row whose state is not known stays damaged."""
    checksum = _checksum(entity_id, session_id, active, ready_since, state, state_ms) if is_state_known else None
    row = (entity_id, session_id, active, ready_since, state, state_ms, checksum)
    cursor.execute(STATEMENTS["put_session"], row)


def count_session(cursor: apsw.Cursor, entity_id: int, session_id: str) -> tuple[int, int]:
    """How many active messages a session has, and the number of the first."""
    ((count, key),) = cursor.execute(STATEMENTS["count_session"], (entity_id, session_id)).fetchall()
    assert isinstance(count, int) and isinstance(key, int), "SQLite counts in numbers"
    return count, sequence_number_of(key)


def note_session(session: StoredSession, apart: SetApart, paths: dict[int, str]) -> None:
    reason = f"the message session {session.session_id!r} does not match its checksum; its messages are counted"
    if not session.is_state_known:
        reason += ", its state is not known"
    place = f"{session.entity_id} {session.columns[1] if session.session_id is None else session.session_id!r}"
    apart.note("session", place, session.columns, reason, paths.get(session.entity_id, ""))


def _mend(cursor: apsw.Cursor, session: StoredSession, apart: SetApart, paths: dict[int, str]) -> None:
    """Called by the writer, in the transaction under way or in one of its own."""
    note_session(session, apart, paths)
    name = session.columns[1]
    if session.session_id is None or session.entity_id < 0:
        cursor.execute(STATEMENTS["delete_session_of_bytes"], (session.columns[0], name))
        return
    active, ready_since = count_session(cursor, session.entity_id, session.session_id)
    if active == 0 and session.is_state_known:
        cursor.execute(STATEMENTS["delete_session"], (session.entity_id, session.session_id))
        return
    _put(
        cursor,
        session.entity_id,
        session.session_id,
        active,
        ready_since,
        session.state,
        session.state_ms,
        session.is_state_known,
    )


def answer_sessions(cursor: apsw.Cursor, query: Query, apart: SetApart, paths: dict[int, str]) -> Rows:
    for _ in range(MENDED_MAX):
        sessions = [StoredSession(columns) for columns in _select(cursor, query)]
        unsound = [session for session in sessions if not session.is_sound]
        if all(session.columns[6] is None for session in unsound):
            break
        for session in unsound:  # what is counted anew may be elsewhere in the order
            _mend(cursor, session, apart, paths)
    rows = Rows([])
    for session in sessions:
        if session.session_id is not None:
            row = SessionRow(session.session_id, session.active, session.ready_since, session.state)
            row.is_state_known = session.is_state_known
            rows.sessions.append(row)
    return rows


def _select(cursor: apsw.Cursor, query: Query) -> list[tuple[object, ...]]:
    if isinstance(query, LoadSession):
        return fetch(cursor, "select_session", (query.entity_id, query.session_id))
    if isinstance(query, LoadSessions):
        return fetch(cursor, "select_ready_sessions", (query.entity_id, query.after, query.count))
    assert isinstance(query, LoadSessionNames), f"a query the store does not know: {type(query).__name__}"
    page = (query.count, query.skip)
    if query.since_ms == NEVER:
        return fetch(cursor, "select_sessions", (query.entity_id, *page))
    bounds = (query.entity_id, query.since_ms, *page)
    return fetch(cursor, "select_sessions_changed_since", bounds)
