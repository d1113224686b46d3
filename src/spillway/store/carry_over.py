"""A file of an earlier format becomes one of this, and one of this an earlier one again.

From format 4 to 5 rules leave the settings of their subscriptions for rows of their own; 6 says up to which frame the
log is folded. One transaction: a crash in it leaves the file as it was, and the next start carries it over.
"""

import json
from typing import Final

import apsw

from spillway.model.entity import DEAD_LETTER_QUEUE, SUBSCRIPTION, SUBSCRIPTIONS
from spillway.model.records import EntityPut
from spillway.store.catalogue import EntityRead, meta_checksum, put_checksum
from spillway.store.rules import columns_of
from spillway.store.statements import SCHEMA, STATEMENTS, fetch

CARRIED_OVER: Final = 4  # the oldest format that can be
BEFORE_RULES: Final = 4
BEFORE_LOG: Final = 5
_NEW_TABLES: Final = {BEFORE_RULES: ("rule", "folded"), BEFORE_LOG: ("folded",)}  # those that a format did not have


def former_schema(version: int) -> list[tuple[object, ...]]:
    connection = _empty()
    for name in _NEW_TABLES[version]:
        connection.execute(f"DROP TABLE {name}")
    return list(connection.execute(STATEMENTS["select_schema"]))


def _empty() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(SCHEMA)
    return connection


def carry_over(connection: apsw.Connection, version: int, new_format: int) -> None:
    """The file is sound as far as can be told, and of that version."""
    with connection:
        for name, text in _empty().execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"):
            if name in _NEW_TABLES[version]:
                connection.execute(text)
        if version == BEFORE_RULES:
            _give_rules_rows(connection)
        _put_format(connection, new_format)


def carry_back(connection: apsw.Connection) -> None:
    """The file has everything, and no log is used with it: it becomes one of the format before the log."""
    with connection:
        connection.execute("DROP TABLE folded")
        _put_format(connection, BEFORE_LOG)


def _put_format(connection: apsw.Connection, new_format: int) -> None:
    for row in fetch(connection.cursor(), "select_meta"):
        if meta_checksum(*row[:5]) == row[5]:
            meta = (new_format, *row[1:5])
            connection.execute(STATEMENTS["put_meta"], (*meta, meta_checksum(*meta)))
    connection.pragma("user_version", new_format)


def _give_rules_rows(connection: apsw.Connection) -> None:
    reads = [EntityRead(columns) for columns in fetch(connection.cursor(), "select_entities")]
    letters = {
        read.put.parent_id: read.put.path for read in reads if read.is_put_sound and read.put.kind == DEAD_LETTER_QUEUE
    }
    for read in reads:
        if read.is_put_sound:
            _move_rules(connection, read.put)
        elif SUBSCRIPTIONS in letters.get(read.put.entity_id, ""):
            # Its settings are made anew from those of its dead-letter queue. Nobody knows what its rules were.
            columns = (read.put.entity_id, 1, "$Default", None, None)
            connection.execute(STATEMENTS["put_rule"], columns)


def _move_rules(connection: apsw.Connection, put: EntityPut) -> None:
    """Settings that are not understood stay as they are: the entity is out of service, as it was."""
    try:
        settings = json.loads(put.settings)
        rules = settings.pop("rules", None)
        named = [(number, rule["name"], json.dumps(rule)) for number, rule in enumerate(rules or [], 1)]
    except (ValueError, TypeError, KeyError, AttributeError):
        return
    if rules is None or not all(isinstance(name, str) for _, name, _ in named):
        return
    if put.kind == SUBSCRIPTION:
        columns = [columns_of(put.entity_id, number, name, text) for number, name, text in named]
        connection.executemany(STATEMENTS["put_rule"], columns)
    bare = EntityPut(put.entity_id, put.kind, put.path, json.dumps(settings), put.parent_id)
    connection.execute(STATEMENTS["put_settings"], (bare.settings, put_checksum(bare), bare.entity_id))
