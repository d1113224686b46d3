"""The full check of a journal that nobody has open. Its time grows with the depth."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apsw

from spillway.model.message_ids import number_of
from spillway.store.bodies import read_body
from spillway.store.catalogue import read_catalogue
from spillway.store.errors import StoreDamaged, explain
from spillway.store.file import close_untouched, open_file
from spillway.store.ids import IdRow, is_index_sound, read_indexed, split_ids
from spillway.store.ledger import row_of_columns
from spillway.store.rows import DamagedRow, entity_id_of, sequence_number_of, stored_of
from spillway.store.sessions import Session
from spillway.store.statements import STATEMENTS


def check(path: Path) -> list[str]:
    """Every tree, every row's checksum, every counter: what is wrong, nothing if all is well."""
    try:
        connection = open_file(path, "FULL", None)
    except StoreDamaged as error:
        return [str(error)]
    try:
        return list(_findings(connection, path))
    except (apsw.Error, UnicodeDecodeError, StoreDamaged) as error:
        return [str(explain(error, path))]
    finally:
        close_untouched(connection)


def _findings(connection: apsw.Connection, path: Path) -> Iterator[str]:
    for (finding,) in connection.execute("PRAGMA integrity_check"):
        if finding != "ok":
            yield " ".join(str(finding).split())
    catalogue, graveyard, _ = read_catalogue(connection, path)
    paths = {row.put.entity_id: row.put.path for row in catalogue.entities}
    read = partial(read_body, connection.cursor())
    for columns in connection.execute(STATEMENTS["select_all"]):
        key = columns[0]
        if isinstance(key, int) and isinstance(stored_of(columns, read), DamagedRow):
            entity = paths.get(entity_id_of(key), "a removed entity")
            yield f"message {sequence_number_of(key)} of {entity}: its checksum does not hold"
    counted = {columns[0]: columns[1:] for columns in connection.execute(STATEMENTS["count_rows"])}
    for row in catalogue.entities:
        held = counted.pop(row.put.entity_id, (0, 0, 0, 0))
        counters = row.counters
        said = (counters.active, counters.deferred, counters.scheduled, counters.hidden)
        if held != said:
            what = "active, deferred, scheduled and hidden messages"
            yield f"{row.put.path}: it holds {held} {what}, its counters say {said}"
    yield from _session_findings(connection, path, paths)
    for entity_id in counted:
        if entity_id not in graveyard:
            yield f"there are messages of an entity {entity_id} that does not exist"
    yield from _body_findings(connection)
    for columns in connection.execute(STATEMENTS["select_whole_ledger"]):
        if row_of_columns(columns) is None:
            yield f"the ledger's row of {columns[1]!r} in minute {columns[0]!r}: its checksum does not hold"
    yield from _id_findings(connection, path, paths, graveyard)


def _body_findings(connection: apsw.Connection) -> Iterator[str]:
    """A body that is missing or damaged is found with each message that refers to it."""
    held = dict(connection.execute(STATEMENTS["count_body_references"]))
    for body_id, count, mirror in connection.execute(STATEMENTS["select_body_counts"]):
        found = held.pop(body_id, 0)
        if not isinstance(count, int) or not isinstance(mirror, int) or count + mirror:
            yield f"body {body_id}: its count is damaged"
        elif found != count:
            yield f"body {body_id}: {found} messages refer to it, its count says {count}"
    for body_id in held:
        yield f"body {body_id}: messages refer to it, and nothing counts them"
    for (body_id,) in connection.execute(STATEMENTS["select_uncounted_bodies"]):
        yield f"body {body_id}: it has no count"


def _id_findings(connection: apsw.Connection, path: Path, paths: dict[int, str], graveyard: list[int]) -> Iterator[str]:
    """Every row of ids, and whether the index has exactly those that it should have."""
    indexed: dict[tuple[object, object], object] = {}
    for entity_id, digest, *rest in connection.execute(STATEMENTS["select_all_index"]):
        if entity_id in graveyard:
            continue
        if not is_index_sound(entity_id, digest, *rest):
            yield f"an indexed id of {paths.get(entity_id, 'a removed entity')}: its checksum does not hold"
        indexed[(entity_id, digest)] = rest[0]
    upto = {entity_id: read_indexed(path, connection.cursor(), entity_id)[0] for entity_id in paths}
    expected: dict[tuple[object, object], object] = {}
    for columns in connection.execute(STATEMENTS["select_all_ids"]):
        row = IdRow(columns)
        entity_id = entity_id_of(columns[0])
        if row.ids is None:
            entity = paths.get(entity_id, "a removed entity")
            yield f"ids of messages of {entity} up to {row.upto}: their checksum does not hold"
        elif entity_id not in paths and entity_id not in graveyard:
            yield f"there are ids of messages of an entity {entity_id} that does not exist"
        elif row.upto <= upto.get(entity_id, 0):
            expected.update(((entity_id, digest), number_of(place)) for digest, place in split_ids(row.ids))
    if indexed != expected:
        yield f"the index of ids has {len(indexed)} of them, the rows say {len(expected)}, and they do not agree"


def _session_findings(connection: apsw.Connection, path: Path, paths: dict[int, str]) -> Iterator[str]:
    counted = {(columns[0], columns[1]): columns[2] for columns in connection.execute(STATEMENTS["count_sessions"])}
    for columns in connection.execute(STATEMENTS["select_all_sessions"]):
        session = Session(path, columns)
        held = counted.pop((columns[0], session.session_id), 0)
        if held != session.active:
            entity = paths.get(columns[0], "a removed entity")
            yield f"session {session.session_id!r} of {entity}: it holds {held} messages, its row says {session.active}"
    for entity_id, session_id in counted:
        if entity_id in paths:
            yield f"session {session_id!r} of {paths[entity_id]}: it has messages and no row"
