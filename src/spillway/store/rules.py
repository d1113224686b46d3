"""Rules of subscriptions in SQLite, a row each: one that is added or removed costs what that one costs.

A row that does not match its checksum is set apart, and a row that says so takes its place, under its name: the broker
must know that there was a rule, or the subscription would get other messages than it asked for and nobody would know.
A row that matches under another entity has a damaged key, and is put back to it.
"""

from typing import Final, TypeAlias
from zlib import crc32

import apsw

from spillway.model.records import RuleRow
from spillway.store.batch import Batch
from spillway.store.rows import text_of
from spillway.store.set_apart import SetApart
from spillway.store.statements import STATEMENTS, each, fetch

NUMBER_MAX: Final = 1 << 40  # a higher one was never given
LOST: Final = "it could not be read from the store, which has set it apart"
DAMAGED: Final = "the checksum of a rule does not hold; messages are dead-lettered in its place"
WANDERED: Final = "the key of a rule did not hold; it is put back"
HOMELESS: Final = "the checksum of a rule does not hold, and the entity it says it belongs to is not there"

Columns: TypeAlias = tuple[int, int, str, str | None, int]


def rule_checksum(entity_id: int, number: int, name: str, text: str | None) -> int:
    return crc32(repr((entity_id, number, name, text)).encode())


def columns_of(entity_id: int, number: int, name: str, text: str | None) -> Columns:
    """`text` is None in the place of one that cannot be read."""
    return entity_id, number, name, text, rule_checksum(entity_id, number, name, text)


class RuleRead:
    """One row of the table, as far as it can be read. `place` names it, whatever its key has become."""

    def __init__(self, columns: tuple[object, ...]) -> None:
        self.columns = columns[:5]
        entity_id, number, name, text, self.checksum = self.columns
        self.place = text_of(columns[5]) or ""
        self.entity_id = entity_id if isinstance(entity_id, int) else -1
        self.number = number if isinstance(number, int) else -1
        self.name = text_of(name)
        self.text = text_of(text)
        self.is_text = self.name is not None and (text is None or self.text is not None)
        self.is_sound = isinstance(entity_id, int) and isinstance(number, int) and self.belongs_to(self.entity_id)

    def belongs_to(self, entity_id: int) -> bool:
        """Whether the checksum was made for this entity."""
        return self.is_text and self.checksum == rule_checksum(entity_id, self.number, self.name or "", self.text)

    def row(self) -> RuleRow:
        row = RuleRow(self.number, self.name or "", self.text or "")
        if self.text is None or not self.is_sound:
            row.problem = LOST
        return row


class RuleReading:
    """All rules by entity, and what of the table must be written anew."""

    def __init__(self) -> None:
        self.rows: dict[int, list[RuleRow]] = {}
        self.gone: list[str] = []  # places
        self.puts: list[Columns] = []

    def add(self, entity_id: int, row: RuleRow) -> None:
        self.rows.setdefault(entity_id, []).append(row)

    def has_number(self, entity_id: int, number: int) -> bool:
        return any(row.number == number for row in self.rows.get(entity_id, []))

    def of(self, entity_id: int) -> list[RuleRow]:
        return sorted(self.rows.get(entity_id, []), key=lambda row: row.number)


def read_rules(connection: apsw.Connection, apart: SetApart, paths: dict[int, str], removed: list[int]) -> RuleReading:
    """`paths` has every entity that is there; rules of those in `removed` are being deleted."""
    found = RuleReading()
    damaged: list[RuleRead] = []
    for columns in each(connection.cursor(), "select_rules"):
        read = RuleRead(columns)
        if read.is_sound and read.entity_id in paths:
            found.add(read.entity_id, read.row())
        elif read.entity_id not in removed:
            damaged.append(read)
    for read in damaged:
        _mend(read, found, apart, paths)
    return found


def _mend(read: RuleRead, found: RuleReading, apart: SetApart, paths: dict[int, str]) -> None:
    home = next((entity_id for entity_id in paths if read.belongs_to(entity_id)), -1)
    if home >= 0 and not found.has_number(home, read.number):
        apart.note("rule", read.place, read.columns, WANDERED, paths[home])
        row = RuleRow(read.number, read.name or "", read.text or "")
        row.problem = LOST if read.text is None else ""
        found.add(home, row)
        found.puts.append(columns_of(home, read.number, row.name, read.text))
        found.gone.append(read.place)
    elif read.entity_id in paths:
        apart.note("rule", read.place, read.columns, DAMAGED, paths[read.entity_id])
        row = stand_in(read, found.rows.get(read.entity_id, []))
        found.add(read.entity_id, row)
        found.puts.append(columns_of(read.entity_id, row.number, row.name, None))
        found.gone.append(read.place)
    else:
        apart.note("rule", read.place, read.columns, HOMELESS)


def stand_in(read: RuleRead, others: list[RuleRow]) -> RuleRow:
    """What takes the place of a row that cannot be read, beside the others of its entity."""
    number = read.number
    if not 0 < number < NUMBER_MAX or any(row.number == number for row in others):
        number = 1 + max([row.number for row in others], default=0)
    name = read.name
    if not name or any(row.name.lower() == name.lower() for row in others):
        name = f"unreadable-{number}"
    row = RuleRow(number, name, "")
    row.problem = LOST
    return row


def rules_of(connection: apsw.Connection, entity_id: int) -> list[RuleRow]:
    """The rules of one entity, while the store is open."""
    rows: list[RuleRow] = []
    damaged: list[RuleRead] = []
    for columns in fetch(connection.cursor(), "select_rules_of", (entity_id,)):
        read = RuleRead(columns)
        if read.is_sound:
            rows.append(read.row())
        else:
            damaged.append(read)
    for read in damaged:
        rows.append(stand_in(read, rows))
    return sorted(rows, key=lambda row: row.number)


def mend_rules(cursor: apsw.Cursor, found: RuleReading) -> None:
    """Inside a transaction."""
    cursor.executemany(STATEMENTS["delete_rule_at"], [(place,) for place in found.gone])
    cursor.executemany(STATEMENTS["put_rule"], found.puts)


def write_rules(cursor: apsw.Cursor, batch: Batch) -> None:
    """Inside the batch's transaction."""
    gone = [key for key, put in batch.rules.items() if put is None]
    if gone:
        cursor.executemany(STATEMENTS["delete_rule"], gone)
    puts = [
        columns_of(put.entity_id, put.number, put.name, put.text) for put in batch.rules.values() if put is not None
    ]
    if puts:
        cursor.executemany(STATEMENTS["put_rule"], puts)
