"""A file of format 4 becomes one of format 5: rules leave the settings of their subscriptions for rows of their own.

One transaction: a crash in it leaves a file of format 4, which the next start carries over.
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
_RULE: Final = "rule"


def former_schema() -> list[tuple[object, ...]]:
    connection = _empty()
    connection.execute("DROP TABLE rule")
    return list(connection.execute(STATEMENTS["select_schema"]))


def _empty() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(SCHEMA)
    return connection


def carry_over(connection: apsw.Connection, new_format: int) -> None:
    """The file is sound as far as can be told, and of format 4."""
    with connection:
        for name, text in _empty().execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"):
            if name == _RULE:
                connection.execute(text)
        reads = [EntityRead(columns) for columns in fetch(connection.cursor(), "select_entities")]
        letters = {
            read.put.parent_id: read.put.path
            for read in reads
            if read.is_put_sound and read.put.kind == DEAD_LETTER_QUEUE
        }
        for read in reads:
            if read.is_put_sound:
                _move_rules(connection, read.put)
            elif SUBSCRIPTIONS in letters.get(read.put.entity_id, ""):
                # Its settings are made anew from those of its dead-letter queue. Nobody knows what its rules were.
                columns = (read.put.entity_id, 1, "$Default", None, None)
                connection.execute(STATEMENTS["put_rule"], columns)
        for row in fetch(connection.cursor(), "select_meta"):
            if meta_checksum(*row[:5]) == row[5]:
                meta = (new_format, *row[1:5])
                connection.execute(STATEMENTS["put_meta"], (*meta, meta_checksum(*meta)))
        connection.pragma("user_version", new_format)


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
