"""Ids of accepted messages in SQLite, which tell duplicates.

They lie in the order they were accepted, one row a commit and entity: writing them costs next to nothing. Only when
memory has no room for all of them do the oldest come into an index by digest, which costs a page or two each.
"""

import struct
from collections.abc import Iterator
from typing import Final
from zlib import crc32

import apsw

from spillway.model import limits
from spillway.model.message_ids import DIGEST_BYTES, ID_BYTES, accepted_ms_of, number_of, pack_id, place_at, place_of
from spillway.model.records import IdRows, LoadIds, LoadIndexedIds, LoadOldIds, MessageIdsIndexed, Query, Rows
from spillway.store.batch import Batch
from spillway.store.rows import SEQUENCE_MASK, row_key, sequence_number_of
from spillway.store.set_apart import SetApart
from spillway.store.statements import STATEMENTS, each, fetch, fetch_many

_TWO: Final = struct.Struct("<qq")
_THREE: Final = struct.Struct("<qqq")


class IdRow:
    """One row: ids accepted one after the other. `ids` is None if it does not match its checksum."""

    def __init__(self, columns: tuple[object, ...]) -> None:
        key, last_ms, ids, checksum = columns
        assert isinstance(key, int), "a rowid is an integer"
        self.columns = columns
        self.upto = sequence_number_of(key)  # the number of the last one
        is_sound = isinstance(last_ms, int) and isinstance(ids, bytes) and row_checksum(key, last_ms, ids) == checksum
        self.last_ms = last_ms if isinstance(last_ms, int) else 0
        self.ids = ids if is_sound and isinstance(ids, bytes) else None

    @property
    def count(self) -> int:
        return 0 if self.ids is None else len(self.ids) // ID_BYTES


def row_checksum(key: int, last_ms: int, ids: bytes) -> int:
    return crc32(ids, crc32(_TWO.pack(key, last_ms)))


def index_checksum(entity_id: int, digest: bytes, number: int, accepted_ms: int) -> int:
    return crc32(digest, crc32(_THREE.pack(entity_id, number, accepted_ms)))


def read_indexed(cursor: apsw.Cursor, entity_id: int) -> tuple[int, int]:
    """Up to which number ids are in the index, and when the last of them was accepted."""
    for upto, accepted_ms, checksum in fetch(cursor, "select_indexed", (entity_id,)):
        if is_indexed_sound(entity_id, upto, accepted_ms, checksum):
            assert isinstance(upto, int) and isinstance(accepted_ms, int), "what is sound is a number"
            return upto, accepted_ms
        return _last_of_index(cursor, entity_id)
    return 0, 0


def is_indexed_sound(entity_id: object, upto: object, accepted_ms: object, checksum: object) -> bool:
    return (
        isinstance(entity_id, int)
        and isinstance(upto, int)
        and isinstance(accepted_ms, int)
        and checksum == crc32(_THREE.pack(entity_id, upto, accepted_ms))
    )


def _last_of_index(cursor: apsw.Cursor, entity_id: int) -> tuple[int, int]:
    """The same from the index itself: its last id has the number up to which it goes."""
    ((upto, accepted_ms),) = fetch(cursor, "last_of_index", (entity_id,))
    if isinstance(upto, int) and isinstance(accepted_ms, int) and 0 < upto <= SEQUENCE_MASK:
        return upto, accepted_ms
    return 0, 0


def mend_indexed(connection: apsw.Connection, apart: SetApart, paths: dict[int, str]) -> bool:
    """Inside a transaction, at start. Whether anything was made anew."""
    is_mended = False
    for entity_id, *rest in fetch(connection.cursor(), "select_all_indexed"):
        if not isinstance(entity_id, int) or is_indexed_sound(entity_id, *rest):
            continue
        is_mended = True
        reason = "what it says of its index of ids does not hold; it is made anew"
        apart.note("id_indexed", entity_id, rest, reason, paths.get(entity_id, ""))
        upto, accepted_ms = _last_of_index(connection.cursor(), entity_id)
        if upto:
            _put_indexed(connection.cursor(), entity_id, upto, accepted_ms)
        else:
            connection.execute(STATEMENTS["delete_indexed"], (entity_id,))
    return is_mended


def _put_indexed(cursor: apsw.Cursor, entity_id: int, upto: int, accepted_ms: int) -> None:
    checksum = crc32(_THREE.pack(entity_id, upto, accepted_ms))
    cursor.execute(STATEMENTS["put_indexed"], (entity_id, upto, accepted_ms, checksum))


def read_rows(cursor: apsw.Cursor, entity_id: int, after: int, upto: int) -> Iterator[IdRow]:
    """Rows whose last id has a number above `after`, and up to `upto`."""
    bounds = (row_key(entity_id, after), row_key(entity_id, upto))
    for columns in each(cursor, "select_ids", bounds):
        yield IdRow(columns)


# -- writing, inside the batch's transaction ------------------------------------------------------------------------


def write_ids(cursor: apsw.Cursor, batch: Batch) -> None:
    rows: list[tuple[object, ...]] = []
    for entity_id, packed in batch.ids.items():
        for at in range(0, len(packed), limits.ID_ROW_MAX):
            ids = b"".join(packed[at : at + limits.ID_ROW_MAX])
            last = place_at(ids, len(ids) - ID_BYTES)
            key = row_key(entity_id, number_of(last))
            last_ms = accepted_ms_of(last)
            rows.append((key, last_ms, ids, row_checksum(key, last_ms, ids)))
    if rows:
        cursor.executemany(STATEMENTS["insert_ids"], rows)
    for record in batch.ids_indexed:
        if record.entity_id not in batch.removed:
            _index(cursor, record)
    for entity_id, upto in batch.ids_forgotten.items():
        if entity_id not in batch.removed:
            _evict(cursor, entity_id, upto)


def _index(cursor: apsw.Cursor, record: MessageIdsIndexed) -> None:
    """Ids by digest in order: neighbours share a page."""
    entity_id = record.entity_id
    indexed_upto, _ = read_indexed(cursor, entity_id)
    rows: dict[bytes, tuple[object, ...]] = {}
    for row in list(read_rows(cursor, entity_id, indexed_upto, record.upto)):
        for digest, place in split_ids(row.ids):
            number, accepted_ms = number_of(place), accepted_ms_of(place)
            checksum = index_checksum(entity_id, digest, number, accepted_ms)
            rows[digest] = (entity_id, digest, number, accepted_ms, checksum)
    cursor.executemany(STATEMENTS["put_index"], [rows[digest] for digest in sorted(rows)])
    _put_indexed(cursor, entity_id, record.upto, record.accepted_ms)


def _evict(cursor: apsw.Cursor, entity_id: int, upto: int) -> None:
    indexed_upto, _ = read_indexed(cursor, entity_id)
    if indexed_upto > 0:
        for row in list(read_rows(cursor, entity_id, 0, min(upto, indexed_upto))):
            gone = [(entity_id, digest, upto) for digest, _ in split_ids(row.ids)]
            cursor.executemany(STATEMENTS["delete_from_index"], gone)
        if upto >= indexed_upto:
            cursor.execute(STATEMENTS["delete_indexed"], (entity_id,))
    cursor.execute(STATEMENTS["delete_ids"], (row_key(entity_id, 0), row_key(entity_id, upto)))


def split_ids(ids: bytes | None) -> list[tuple[bytes, int]]:
    if ids is None:
        return []  # damaged, and reported when it was read
    return [(ids[at : at + DIGEST_BYTES], place_at(ids, at)) for at in range(0, len(ids), ID_BYTES)]


# -- reading --------------------------------------------------------------------------------------------------------


def answer_ids(connection: apsw.Connection, query: Query, apart: SetApart, paths: dict[int, str]) -> Rows:
    cursor = connection.cursor()
    entity = paths.get(query.entity_id, f"entity {query.entity_id}")
    try:
        if isinstance(query, LoadIndexedIds):
            return _indexed(cursor, query, apart, entity)
        rows = Rows([])
        rows.ids = IdRows()
        rows.ids.indexed_upto, rows.ids.indexed_ms = read_indexed(cursor, query.entity_id)
        if isinstance(query, LoadIds):
            _in_order(cursor, query, rows, rows.ids, apart, entity)
        else:
            assert isinstance(query, LoadOldIds), f"a query the store does not know: {type(query).__name__}"
            _old(cursor, query, rows, rows.ids)
        return rows
    finally:
        cursor.close()


def _in_order(cursor: apsw.Cursor, query: LoadIds, rows: Rows, ids: IdRows, apart: SetApart, entity: str) -> None:
    records: list[bytes] = []
    for row in read_rows(cursor, query.entity_id, max(query.after, ids.indexed_upto), SEQUENCE_MASK):
        if ids.count >= query.count:
            rows.is_cut = True
            break
        ids.upto = row.upto
        if row.ids is None:
            rows.corrupt.append(row.upto)
            reason = f"the checksum of ids up to {row.upto} does not hold: duplicates of those messages are not known"
            apart.note("accepted_id", row.columns[0], row.columns, reason, entity, row.upto)
            continue
        ids.count += row.count
        ids.accepted_ms = row.last_ms
        if query.wants_records:
            records.append(row.ids)
    ids.records = b"".join(records)


def _old(cursor: apsw.Cursor, query: LoadOldIds, rows: Rows, ids: IdRows) -> None:
    """A damaged row goes with the next sound one: its own time cannot be believed."""
    total = 0
    for row in read_rows(cursor, query.entity_id, 0, SEQUENCE_MASK):
        if row.ids is None:
            continue
        if row.last_ms > query.before_ms or total >= query.count:
            rows.next_ms = row.last_ms
            rows.is_cut = row.last_ms <= query.before_ms
            return
        ids.upto = row.upto
        ids.accepted_ms = row.last_ms
        if row.upto > ids.indexed_upto:
            ids.count += row.count
            total += max(row.count // 16, 1)
        else:
            total += row.count


def _indexed(cursor: apsw.Cursor, query: LoadIndexedIds, apart: SetApart, entity: str) -> Rows:
    rows = Rows([])
    rows.ids = IdRows()
    records: list[bytes] = []
    wanted = [(query.entity_id, digest) for digest in sorted(set(query.digests))]
    for digest, number, accepted_ms, checksum in fetch_many(cursor, "select_index", wanted):
        if is_index_sound(query.entity_id, digest, number, accepted_ms, checksum):
            records.append(pack_id(digest, place_of(number, accepted_ms)))
        else:
            rows.corrupt.append(number if isinstance(number, int) else 0)
            place = f"{query.entity_id} {digest.hex() if isinstance(digest, bytes) else digest!r}"
            columns = (digest, number, accepted_ms, checksum)
            apart.note("id_index", place, columns, "the checksum of an indexed id does not hold", entity)
    rows.ids.records = b"".join(records)
    return rows


def is_index_sound(entity_id: object, digest: object, number: object, accepted_ms: object, checksum: object) -> bool:
    return (
        isinstance(entity_id, int)
        and isinstance(digest, bytes)
        and isinstance(number, int)
        and isinstance(accepted_ms, int)
        and index_checksum(entity_id, digest, number, accepted_ms) == checksum
    )
