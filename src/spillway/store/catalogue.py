"""Entities, counters and the clock: all that is read at start. Its time goes with the entities, never with messages."""

from pathlib import Path
from typing import Final
from zlib import crc32

import apsw

from spillway.model.ledger import unpack_tally
from spillway.model.message import NEVER
from spillway.model.records import Catalogue, Counters, EntityPut, EntityRow
from spillway.store.errors import StoreDamaged
from spillway.store.statements import STATEMENTS

NO_COUNTERS: Final = Counters()


def meta_checksum(
    format_number: object, clock_ms: object, last_entity_id: object, last_body_number: object, created_ms: object
) -> int:
    return crc32(repr((format_number, clock_ms, last_entity_id, last_body_number, created_ms)).encode())


def put_checksum(put: EntityPut) -> int:
    return crc32(repr((put.entity_id, put.kind, put.path, put.settings, put.parent_id)).encode())


def counters_checksum(entity_id: int, counters: Counters) -> int:
    numbers = (
        entity_id,
        counters.last_sequence_number,
        counters.active,
        counters.deferred,
        counters.scheduled,
        counters.hidden,
        counters.size_bytes,
        counters.used_ms,
    )
    return crc32(repr(numbers).encode())


def read_catalogue(connection: apsw.Connection, path: Path) -> tuple[Catalogue, list[int], int]:
    """The catalogue, the removed entities whose messages are still to be deleted, and the last number of a body."""
    clock_ms, last_entity_id, last_body_number, created_ms = _read_meta(connection, path)
    due = _earliest(connection, "next_due_after_entity")
    expiry = _earliest(connection, "next_expiry_after_entity")
    oldest_ids = _earliest(connection, "next_id_after_entity")
    entities: list[EntityRow] = []
    for columns in connection.execute(STATEMENTS["select_entities"]):
        put, counters = _entity(columns[:-1], path)
        next_due_ms = due.get(put.entity_id, NEVER)
        next_expiry_ms = expiry.get(put.entity_id, NEVER)
        oldest_id_ms = oldest_ids.get(put.entity_id, NEVER)
        entities.append(EntityRow(put, counters, next_due_ms, next_expiry_ms, oldest_id_ms))
        entities[-1].tally = _tally(put, columns[-1], path)
    graveyard = [_int(entity_id) for (entity_id,) in connection.execute(STATEMENTS["select_removed"])]
    return Catalogue(entities, last_entity_id, clock_ms, created_ms), graveyard, last_body_number


def _int(value: object) -> int:
    """A number that SQLite gave: a column of another type is what a flipped byte leaves."""
    return value if isinstance(value, int) else -1


def _read_meta(connection: apsw.Connection, path: Path) -> tuple[int, int, int, int]:
    found = connection.execute(STATEMENTS["select_meta"]).fetchall()
    if len(found) != 1 or meta_checksum(*found[0][:5]) != found[0][5]:
        raise StoreDamaged(path, "the checksum of its clock and entity numbers does not hold")
    return _int(found[0][1]), _int(found[0][2]), _int(found[0][3]), _int(found[0][4])


def _entity(columns: tuple[object, ...], path: Path) -> tuple[EntityPut, Counters]:
    (
        entity_id,
        kind,
        entity_path,
        settings,
        parent_id,
        put_sum,
        last,
        active,
        deferred,
        scheduled,
        hidden,
        size,
        used_ms,
        sum_,
    ) = columns
    put = EntityPut(_int(entity_id), str(kind), str(entity_path), str(settings), _int(parent_id))
    if put_checksum(put) != put_sum:
        raise StoreDamaged(path, f"the checksum of entity {entity_id} ({entity_path!r}) does not hold")
    counters = Counters()
    counters.last_sequence_number = _int(last)
    counters.active = _int(active)
    counters.deferred = _int(deferred)
    counters.scheduled = _int(scheduled)
    counters.hidden = _int(hidden)
    counters.size_bytes = _int(size)
    counters.used_ms = _int(used_ms)
    if counters_checksum(put.entity_id, counters) != sum_:
        raise StoreDamaged(path, f"the checksum of the counters of entity {entity_id} ({entity_path!r}) does not hold")
    return put, counters


def _tally(put: EntityPut, packed: object, path: Path) -> bytes:
    try:
        if packed is not None and not isinstance(packed, bytes):
            raise ValueError("it is none")
        unpack_tally(put.path, put.entity_id, packed or b"")
    except ValueError as error:
        raise StoreDamaged(path, f"the tally of entity {put.entity_id} ({put.path!r}): {error}") from error
    return packed or b""


def _earliest(connection: apsw.Connection, statement: str) -> dict[int, int]:
    """The first time of each entity that has one: a seek an entity, however many messages it has."""
    earliest: dict[int, int] = {}
    entity_id = -1
    while True:
        found = connection.execute(STATEMENTS[statement], (entity_id,)).fetchall()
        if not found:
            return earliest
        entity_id = _int(found[0][0])
        earliest[entity_id] = _int(found[0][1])
