"""The full check of a journal that nobody has open, file and log together. Its time grows with the depth."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apsw

from spillway.model.entity import settings_from_json
from spillway.model.message_ids import number_of
from spillway.model.records import EntityRow
from spillway.model.rules import rule_from_json
from spillway.store.bodies import read_body
from spillway.store.catalogue import read_catalogue
from spillway.store.database import Database
from spillway.store.errors import LogDamaged, StoreDamaged, explain
from spillway.store.ids import IdRow, is_index_sound, is_indexed_sound, read_indexed, split_ids
from spillway.store.ledger import row_of_columns
from spillway.store.replay import LogReplay, log_directory
from spillway.store.rows import DamagedRow, entity_id_of, sequence_number_of, stored_of
from spillway.store.rows import text_of as text_of_bytes
from spillway.store.segments import SegmentLog
from spillway.store.sessions import StoredSession, note_session
from spillway.store.set_apart import SetApart, text_of
from spillway.store.statements import each


def check(path: Path, apart: SetApart | None = None) -> list[str]:
    """Every tree, every row's checksum, every counter: what is wrong, nothing if all is well.

    Rows that cannot be read are also noted in `apart`, as they are.
    """
    apart = SetApart(None) if apart is None else apart
    try:
        database = Database(path, apart=apart)
    except StoreDamaged as error:
        return [str(error)]
    segments = SegmentLog(log_directory(path))
    try:
        segments.open()
        database.catalogue(mends=False)
        database.connection.execute("BEGIN IMMEDIATE")  # what the log has more is looked at, and not kept
        LogReplay(database, segments, is_kept=False).run()
        return list(_findings(database.connection, apart))
    except (apsw.Error, UnicodeDecodeError, StoreDamaged, LogDamaged) as error:
        return [str(explain(error, path))]
    finally:
        segments.close()
        database.abandon()


def _findings(connection: apsw.Connection, apart: SetApart) -> Iterator[str]:
    for (finding,) in connection.execute("PRAGMA integrity_check"):
        if finding != "ok":
            yield " ".join(str(finding).split())
    found = read_catalogue(connection, apart)
    catalogue, tombstones = found.catalogue, found.tombstones
    for row in catalogue.entities:
        try:
            settings_from_json(row.put.settings)
        except Exception as error:
            if not row.problem:
                reason = f"its settings are not understood: {type(error).__name__}: {error}"
                apart.note("entity", row.put.entity_id, (row.put.entity_id, row.put.kind), reason, row.put.path)
        yield from _rule_findings(row)
    yield from (text_of(row) for row in apart.found)
    paths = {row.put.entity_id: row.put.path for row in catalogue.entities}
    read = partial(read_body, connection.cursor())
    for columns in each(connection.cursor(), "select_all"):
        key = columns[0]
        if isinstance(key, int) and isinstance(stored_of(columns, read), DamagedRow):
            entity = paths.get(entity_id_of(key), "a removed entity")
            apart.note("message", key, columns, "its checksum does not hold", entity, sequence_number_of(key))
            yield f"message {sequence_number_of(key)} of {entity}: its checksum does not hold"
    counted = {columns[0]: columns[1:] for columns in each(connection.cursor(), "count_rows")}
    for row in catalogue.entities:
        held = counted.pop(row.put.entity_id, (0, 0, 0, 0))
        counters = row.counters
        said = (counters.active, counters.deferred, counters.scheduled, counters.hidden)
        if held != said:
            what = "active, deferred, scheduled and hidden messages"
            yield f"{row.put.path}: it holds {held} {what}, its counters say {said}"
    yield from _session_findings(connection, apart, paths)
    for entity_id in counted:
        if entity_id not in tombstones:
            yield f"there are messages of an entity {entity_id} that does not exist"
    yield from _body_findings(connection)
    for columns in each(connection.cursor(), "select_whole_ledger"):
        if row_of_columns(columns) is None:
            name = text_of_bytes(columns[1])
            reason = f"the ledger's row of {name if name is not None else columns[1]!r} in minute {columns[0]!r}"
            apart.note("ledger", f"{columns[0]!r} {name} {columns[2]!r}", columns, reason)
            yield f"{reason}: its checksum does not hold"
    yield from _id_findings(connection, apart, paths, tombstones)


def _rule_findings(entity: EntityRow) -> Iterator[str]:
    """Rules that were set apart at a start are said until they are removed; those found now are said with the rows."""
    for rule in entity.rules:
        problem = rule.problem
        try:
            if not problem:
                rule_from_json(rule.text)
        except Exception as error:
            problem = f"it is not understood: {type(error).__name__}: {error}"
        if problem:
            yield f"rule '{rule.name}' of {entity.put.path}: {problem}"


def _body_findings(connection: apsw.Connection) -> Iterator[str]:
    """A body that is missing or damaged is found with each message that refers to it."""
    held = dict(each(connection.cursor(), "count_body_references"))
    for body_id, count, mirror in each(connection.cursor(), "select_body_counts"):
        found = held.pop(body_id, 0)
        if not isinstance(count, int) or not isinstance(mirror, int) or count + mirror:
            yield f"body {body_id}: its count is damaged"
        elif found != count:
            yield f"body {body_id}: {found} messages refer to it, its count says {count}"
    for body_id in held:
        yield f"body {body_id}: messages refer to it, and nothing counts them"
    for (body_id,) in each(connection.cursor(), "select_uncounted_bodies"):
        yield f"body {body_id}: it has no count"


def _id_findings(
    connection: apsw.Connection, apart: SetApart, paths: dict[int, str], tombstones: list[int]
) -> Iterator[str]:
    """Every row of ids, and whether the index has exactly those that it should have."""
    indexed: dict[tuple[object, object], object] = {}
    for entity_id, digest, *rest in each(connection.cursor(), "select_all_index"):
        if entity_id in tombstones:
            continue
        if not is_index_sound(entity_id, digest, *rest):
            reason = "the checksum of an indexed id does not hold"
            apart.note("id_index", f"{entity_id} {digest!r}", (digest, *rest), reason, paths.get(entity_id, ""))
            yield f"an indexed id of {paths.get(entity_id, 'a removed entity')}: its checksum does not hold"
        indexed[(entity_id, digest)] = rest[0]
    for entity_id, *rest in each(connection.cursor(), "select_all_indexed"):
        if not is_indexed_sound(entity_id, *rest):
            entity = paths.get(entity_id, "a removed entity")
            apart.note("id_indexed", entity_id, rest, "what it says of its index of ids does not hold", entity)
            yield f"{entity}: what it says of its index of ids does not hold"
    upto = {entity_id: read_indexed(connection.cursor(), entity_id)[0] for entity_id in paths}
    expected: dict[tuple[object, object], object] = {}
    for columns in each(connection.cursor(), "select_all_ids"):
        row = IdRow(columns)
        entity_id = entity_id_of(columns[0])
        if row.ids is None:
            entity = paths.get(entity_id, "a removed entity")
            apart.note("accepted_id", columns[0], columns, "the checksum of ids does not hold", entity, row.upto)
            yield f"ids of messages of {entity} up to {row.upto}: their checksum does not hold"
        elif entity_id not in paths and entity_id not in tombstones:
            yield f"there are ids of messages of an entity {entity_id} that does not exist"
        elif row.upto <= upto.get(entity_id, 0):
            expected.update(((entity_id, digest), number_of(place)) for digest, place in split_ids(row.ids))
    if indexed != expected:
        yield f"the index of ids has {len(indexed)} of them, the rows say {len(expected)}, and they do not agree"


def _session_findings(connection: apsw.Connection, apart: SetApart, paths: dict[int, str]) -> Iterator[str]:
    counted = {(columns[0], columns[1]): columns[2] for columns in each(connection.cursor(), "count_sessions")}
    for columns in each(connection.cursor(), "select_all_sessions"):
        session = StoredSession(columns)
        held = counted.pop((columns[0], columns[1]), 0)
        if not session.is_sound:
            note_session(session, apart, paths)
            entity = paths.get(columns[0], "a removed entity")
            yield f"session {session.session_id!r} of {entity}: its checksum does not hold"
        elif held != session.active:
            entity = paths.get(columns[0], "a removed entity")
            yield f"session {session.session_id!r} of {entity}: it holds {held} messages, its row says {session.active}"
    for entity_id, session_id in counted:
        if entity_id in paths:
            name = text_of_bytes(session_id)
            yield f"session {name!r} of {paths[entity_id]}: it has messages and no row"
