"""Entities, their rules, counters and the clock: all that is read at start. Its time never goes with the messages.

No damaged row stops it. A queue and its dead-letter queue say the same of each other, so that either is made anew from
the other; counters are counted, numbers go on behind all that are in use. What was there is set apart. Only of a topic,
or of both halves of a queue, nothing is left to make it from: they are handed on with their `problem`, out of service.
"""

import time
from typing import Final
from zlib import crc32

import apsw

from spillway.model.entity import (
    DEAD_LETTER_QUEUE,
    DEAD_LETTER_SUFFIX,
    QUEUE,
    SUBSCRIPTION,
    SUBSCRIPTIONS,
    dead_letter_path,
    entity_key,
)
from spillway.model.ledger import unpack_tally
from spillway.model.message import NEVER
from spillway.model.records import Catalogue, Counters, EntityPut, EntityRow
from spillway.store.bodies import CHECK_BITS
from spillway.store.rows import SEQUENCE_MASK, row_key, text_of
from spillway.store.rules import RuleReading, read_rules, rules_of
from spillway.store.set_apart import SetApart
from spillway.store.statements import fetch

NO_COUNTERS: Final = Counters()
# Behind the last that is known, where that cannot be trusted: more than an entity has given out in its life, and little
# of the 2^40 that it has.
NUMBERS_SKIPPED: Final = 1 << 32
BODIES_SKIPPED: Final = 1_000_000
ENTITIES_SKIPPED: Final = 1_000


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


class Meta:
    """The one row of the table `meta`."""

    def __init__(self, clock_ms: int, last_entity_id: int, last_body_number: int, created_ms: int) -> None:
        self.clock_ms = clock_ms
        self.last_entity_id = last_entity_id
        self.last_body_number = last_body_number
        self.created_ms = created_ms


class CatalogueReading:
    """What was read, and what was made anew and must be written: by `Database.mend`."""

    def __init__(self, catalogue: Catalogue, tombstones: list[int], last_body_number: int) -> None:
        self.catalogue = catalogue
        self.tombstones = tombstones  # removed entities whose messages are still to be deleted
        self.last_body_number = last_body_number
        self.is_meta_new = False
        self.puts: list[EntityPut] = []
        self.counters: dict[int, Counters] = {}
        self.no_tallies: list[int] = []  # entity ids
        self.not_removed: list[int] = []
        self.rules = RuleReading()

    @property
    def is_sound(self) -> bool:
        are_rules_sound = not (self.rules.puts or self.rules.gone)
        is_meta_sound = not (self.is_meta_new or self.not_removed)
        return is_meta_sound and are_rules_sound and not (self.puts or self.counters or self.no_tallies)


class EntityRead:
    """One row of the table `entity`, as far as it can be read."""

    def __init__(self, columns: tuple[object, ...]) -> None:
        self.columns = columns
        kind, path, settings = text_of(columns[1]), text_of(columns[2]), text_of(columns[3])
        self.is_text = kind is not None and path is not None and settings is not None
        shown = path if path is not None else repr(columns[2])
        self.put = EntityPut(_int(columns[0]), kind or "", shown, settings or "", _int(columns[4]))
        self.is_put_sound = self.is_text and put_checksum(self.put) == columns[5]
        counters = Counters()
        counters.last_sequence_number = _int(columns[6])
        counters.active = _int(columns[7])
        counters.deferred = _int(columns[8])
        counters.scheduled = _int(columns[9])
        counters.hidden = _int(columns[10])
        counters.size_bytes = _int(columns[11])
        counters.used_ms = _int(columns[12])
        self.counters = counters
        self.are_counters_sound = counters_checksum(self.put.entity_id, counters) == columns[13]
        self.tally = columns[14] if isinstance(columns[14], bytes) else b""
        self.is_tally_sound = (columns[14] is None or isinstance(columns[14], bytes)) and self._unpacks()

    def _unpacks(self) -> bool:
        try:
            unpack_tally(self.put.path, self.put.entity_id, self.tally)
        except Exception:
            return False
        return True


def read_catalogue(connection: apsw.Connection, apart: SetApart) -> CatalogueReading:
    reads = [EntityRead(columns) for columns in fetch(connection.cursor(), "select_entities")]
    meta, is_meta_new = _read_meta(connection, apart)
    found = CatalogueReading(
        Catalogue([], meta.last_entity_id, meta.clock_ms, meta.created_ms), [], meta.last_body_number
    )
    found.is_meta_new = is_meta_new
    due = _earliest(connection, "next_due_after_entity")
    expiry = _earliest(connection, "next_expiry_after_entity")
    oldest_ids = _earliest(connection, "next_id_after_entity")
    mended = _mended(reads)
    _read_removed(connection, {read.put.entity_id for read in reads}, found, apart)
    paths = {read.put.entity_id: read.put.path for read in reads}
    found.rules = read_rules(connection, apart, paths, found.tombstones)
    for read in reads:
        entity_id = read.put.entity_id
        problem = ""
        if not read.is_put_sound:
            problem = "the checksum of its settings does not hold"
            if entity_id in mended:
                read.put = mended[entity_id]
                found.puts.append(read.put)
                apart.note("entity", entity_id, read.columns, f"{problem}; they are made anew", read.put.path)
                problem = ""
            else:
                apart.note("entity", entity_id, read.columns, f"{problem}: it is out of service", read.put.path)
        _mend_numbers(connection, read, found, apart)
        row = EntityRow(
            read.put,
            read.counters,
            due.get(entity_id, NEVER),
            expiry.get(entity_id, NEVER),
            oldest_ids.get(entity_id, NEVER),
        )
        row.tally = read.tally
        row.problem = problem
        row.rules = found.rules.of(entity_id)
        found.catalogue.entities.append(row)
    return found


def read_entity(connection: apsw.Connection, entity_id: int) -> EntityRow | None:
    """One entity as the catalogue has it, while the store is open; None if it is not there."""
    found = fetch(connection.cursor(), "select_entity", (entity_id,))
    if not found:
        return None
    read = EntityRead(found[0])
    if not read.are_counters_sound:
        read.counters = count_anew(connection, entity_id, read.counters)
    firsts = [
        fetch(connection.cursor(), statement, (entity_id - 1,))
        for statement in ("next_due_after_entity", "next_expiry_after_entity", "next_id_after_entity")
    ]
    due, expiry, oldest_id = (_time(rows[0][1]) if rows and rows[0][0] == entity_id else NEVER for rows in firsts)
    row = EntityRow(read.put, read.counters, due, expiry, oldest_id)
    row.tally = read.tally if read.is_tally_sound else b""
    row.problem = "" if read.is_put_sound else "the checksum of its settings does not hold"
    row.rules = rules_of(connection, entity_id)
    return row


def _int(value: object) -> int:
    """A number that SQLite gave: a column of another type is what a flipped byte leaves."""
    return value if isinstance(value, int) else -1


def _time(value: object) -> int:
    """A damaged one is now: who looks then finds the damaged row, and the others in their order."""
    return value if isinstance(value, int) and value > 0 else 1


def _read_meta(connection: apsw.Connection, apart: SetApart) -> tuple[Meta, bool]:
    """And whether it is made anew: behind all that is in use, at the time that it is."""
    found = fetch(connection.cursor(), "select_meta")
    sound = [row for row in found if meta_checksum(*row[:5]) == row[5]]
    if sound:  # one, or two after the number of one was damaged: what is later stands
        return Meta(*(max(_int(row[at]) for row in sound) for at in range(1, 5))), False
    apart.note("meta", 1, found[0] if found else (), "the checksum of its clock and entity numbers does not hold")
    now_ms = int(time.time() * 1000)
    last_entity_id = _number(connection, "last_entity_of_all") + ENTITIES_SKIPPED
    last_body_number = (_number(connection, "last_body_of_all") >> CHECK_BITS) + BODIES_SKIPPED
    return Meta(now_ms, last_entity_id, last_body_number, now_ms), True


def _number(connection: apsw.Connection, statement: str, bounds: tuple[int, ...] = ()) -> int:
    ((number,),) = fetch(connection.cursor(), statement, bounds)
    return max(0, _int(number))


def _mended(reads: list[EntityRead]) -> dict[int, EntityPut]:
    """What damaged rows must have said, by entity id: a queue and its dead-letter queue have the same settings."""
    sound = {read.put.entity_id: read.put for read in reads if read.is_put_sound}
    ids = {entity_key(put.path): put.entity_id for put in sound.values()}
    letters = {put.parent_id: put for put in sound.values() if put.kind == DEAD_LETTER_QUEUE}
    damaged = {read.put.entity_id for read in reads if not read.is_put_sound}
    mended: dict[int, EntityPut] = {}
    for entity_id in damaged:
        twin = letters.get(entity_id)
        if twin is not None:
            path = twin.path.removesuffix(DEAD_LETTER_SUFFIX)
            topic, _, name = path.partition(SUBSCRIPTIONS)
            kind = SUBSCRIPTION if name else QUEUE
            parent_id = ids.get(entity_key(topic), 0) if name else 0
            if kind == QUEUE or parent_id:
                mended[entity_id] = EntityPut(entity_id, kind, path, twin.settings, parent_id)
    for put in [*sound.values(), *mended.values()]:
        if put.kind in (QUEUE, SUBSCRIPTION) and put.entity_id not in letters and put.entity_id + 1 in damaged:
            path = dead_letter_path(put.path)
            mended[put.entity_id + 1] = EntityPut(
                put.entity_id + 1, DEAD_LETTER_QUEUE, path, put.settings, put.entity_id
            )
    return mended


def _mend_numbers(connection: apsw.Connection, read: EntityRead, found: CatalogueReading, apart: SetApart) -> None:
    entity_id, path = read.put.entity_id, read.put.path
    if not read.are_counters_sound:
        apart.note("entity", entity_id, read.columns, "the checksum of its counters does not hold; it is counted", path)
        read.counters = count_anew(connection, entity_id, read.counters)
        found.counters[entity_id] = read.counters
    if not read.is_tally_sound:
        apart.note("entity", entity_id, read.columns, "what was counted last for the ledger does not hold", path)
        read.tally = b""
        found.no_tallies.append(entity_id)


def count_anew(connection: apsw.Connection, entity_id: int, said: Counters) -> Counters:
    """Counters made of an entity's rows: the time it takes goes with their number. No number is given out twice."""
    bounds = (row_key(entity_id, 0), row_key(entity_id, SEQUENCE_MASK))
    ((active, active_bytes),) = fetch(connection.cursor(), "weigh_messages", bounds)
    ((*inactive, inactive_bytes),) = fetch(connection.cursor(), "weigh_parked", bounds)
    counters = Counters()
    last = _number(connection, "last_number_of", bounds) & SEQUENCE_MASK
    if last < said.last_sequence_number <= SEQUENCE_MASK // 2:
        last = said.last_sequence_number
    counters.last_sequence_number = last + NUMBERS_SKIPPED
    counters.active = max(0, _int(active))
    counters.deferred, counters.scheduled, counters.hidden = (max(0, _int(count)) for count in inactive)
    counters.size_bytes = max(0, _int(active_bytes)) + max(0, _int(inactive_bytes))
    counters.used_ms = int(time.time() * 1000)
    return counters


def _read_removed(connection: apsw.Connection, present: set[int], found: CatalogueReading, apart: SetApart) -> None:
    """An entity that is there was not removed, whatever a flipped byte says: its messages are not deleted."""
    for (value,) in fetch(connection.cursor(), "select_removed"):
        entity_id = _int(value)
        if entity_id in present:
            apart.note("removed", entity_id, (entity_id,), f"entity {entity_id} is said to be removed, and is there")
            found.not_removed.append(entity_id)
        else:
            found.tombstones.append(entity_id)


def _earliest(connection: apsw.Connection, statement: str) -> dict[int, int]:
    """The first time of each entity that has one: a seek an entity, however many messages it has."""
    earliest: dict[int, int] = {}
    entity_id = -1
    while True:
        found = fetch(connection.cursor(), statement, (entity_id,))
        if not found:
            return earliest
        entity_id = _int(found[0][0])
        earliest[entity_id] = _time(found[0][1])
