"""Message sessions in SQLite: how many active messages each has, and the state that was set."""

import struct
from pathlib import Path
from typing import Final
from zlib import crc32

import apsw

from spillway.model.message import NEVER
from spillway.model.records import LoadSession, LoadSessionNames, LoadSessions, Query, Rows, SessionRow
from spillway.store.batch import Batch
from spillway.store.errors import StoreDamaged
from spillway.store.statements import STATEMENTS

_HEAD: Final = struct.Struct("<qqqqq")


class Session:
    """One row of the table. Raises if it does not match its checksum: a state that is not what was set is no state."""

    def __init__(self, path: Path, columns: tuple[object, ...]) -> None:
        entity_id, session_id, active, ready_since, state, state_ms, checksum = columns
        is_sound = (
            isinstance(entity_id, int)
            and isinstance(session_id, str)
            and isinstance(active, int)
            and isinstance(ready_since, int)
            and (state is None or isinstance(state, bytes))
            and isinstance(state_ms, int)
            and checksum == _checksum(entity_id, session_id, active, ready_since, state, state_ms)
        )
        if not is_sound:
            raise StoreDamaged(path, f"the message session {session_id!r} does not match its checksum")
        assert isinstance(session_id, str) and isinstance(active, int) and isinstance(ready_since, int)
        assert isinstance(state_ms, int) and (state is None or isinstance(state, bytes))
        self.session_id = session_id
        self.active = active
        self.ready_since = ready_since
        self.state = state
        self.state_ms = state_ms


def _checksum(
    entity_id: int, session_id: str, active: int, ready_since: int, state: bytes | None, state_ms: int
) -> int:
    size = -1 if state is None else len(state)
    head = _HEAD.pack(entity_id, active, ready_since, size, state_ms)
    return crc32(session_id.encode("utf-8", "surrogatepass"), crc32(head + (state or b"")))


def write_sessions(path: Path, cursor: apsw.Cursor, batch: Batch) -> None:
    """Inside the batch's transaction. A session without messages and state is no session."""
    for (entity_id, session_id), (gone, come, first) in batch.session_changes().items():
        if entity_id in batch.removed:
            continue
        found = cursor.execute(STATEMENTS["select_session"], (entity_id, session_id)).fetchall()
        session = Session(path, found[0]) if found else None
        left = (0 if session is None else session.active) - gone
        active = left + come
        ready_since = first if session is None or (left == 0 and come > 0) else session.ready_since
        state, state_ms = (None, NEVER) if session is None else (session.state, session.state_ms)
        put = batch.states.get((entity_id, session_id))
        if put is not None:
            state, state_ms = put.state, put.now_ms
        assert active >= 0, f"a session has {active} messages"
        if active == 0 and state is None:
            cursor.execute(STATEMENTS["delete_session"], (entity_id, session_id))
            continue
        checksum = _checksum(entity_id, session_id, active, ready_since, state, state_ms)
        row = (entity_id, session_id, active, ready_since, state, state_ms, checksum)
        cursor.execute(STATEMENTS["put_session"], row)


def answer_sessions(path: Path, cursor: apsw.Cursor, query: Query) -> Rows:
    if isinstance(query, LoadSession):
        found = cursor.execute(STATEMENTS["select_session"], (query.entity_id, query.session_id))
    elif isinstance(query, LoadSessions):
        found = cursor.execute(STATEMENTS["select_ready_sessions"], (query.entity_id, query.after, query.count))
    else:
        assert isinstance(query, LoadSessionNames), f"a query the store does not know: {type(query).__name__}"
        page = (query.count, query.skip)
        if query.since_ms == NEVER:
            found = cursor.execute(STATEMENTS["select_sessions_with_messages"], (query.entity_id, *page))
        else:
            bounds = (query.entity_id, query.since_ms, *page)
            found = cursor.execute(STATEMENTS["select_sessions_changed_since"], bounds)
    rows = Rows([])
    for columns in found.fetchall():
        session = Session(path, columns)
        rows.sessions.append(SessionRow(session.session_id, session.active, session.ready_since, session.state))
    return rows
