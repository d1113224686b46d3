"""The SQL of the store, from the named `.sql` files beside this module, and how its answers are read.

A flipped byte can make text of any column, and text of what is none: apsw then raises in the middle of an answer. That
is one damaged row, not a failed query, so the rest is read with all text as bytes, and who decodes a row finds it.
"""

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, Final

import apsw
import apsw.ext

_MARK: Final = "-- name: "


def read_sql(name: str) -> str:
    return resources.files("spillway.store.sql").joinpath(name).read_text(encoding="utf-8")


def _named(text: str) -> dict[str, str]:
    statements: dict[str, str] = {}
    for part in text.split(_MARK)[1:]:
        name, _, statement = part.partition("\n")
        statements[name.strip()] = statement.strip()
    return statements


SCHEMA: Final = read_sql("schema.sql")
STATEMENTS: Final = _named(read_sql("statements.sql"))


def each(cursor: apsw.Cursor, name: str, bindings: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
    """The rows one by one. Text comes as bytes from the first row on in which some is none."""
    count = 0
    try:
        for row in cursor.execute(STATEMENTS[name], bindings):
            yield row
            count += 1
        return
    except UnicodeDecodeError:
        pass
    for row in cursor.execute(_with_bytes(cursor, STATEMENTS[name]), bindings):
        count -= 1
        if count < 0:
            yield row


def fetch(cursor: apsw.Cursor, name: str, bindings: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows at once."""
    try:
        return cursor.execute(STATEMENTS[name], bindings).fetchall()
    except UnicodeDecodeError:
        return cursor.execute(_with_bytes(cursor, STATEMENTS[name]), bindings).fetchall()


def fetch_many(cursor: apsw.Cursor, name: str, bindings: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The rows of all of these, one after the other."""
    many = cursor.connection.cursor()
    try:
        return many.executemany(STATEMENTS[name], bindings).fetchall()
    except UnicodeDecodeError:
        many.close(True)  # with rows that nobody will take
        return [row for each_of in bindings for row in fetch(cursor, name, each_of)]


def _with_bytes(cursor: apsw.Cursor, statement: str) -> str:
    """The same rows in the same order, with text as bytes."""
    count = len(apsw.ext.query_info(cursor.connection, statement).description)
    names = [f"c{number}" for number in range(count)]
    shown = ", ".join(f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names)
    return f"WITH found ({', '.join(names)}) AS NOT MATERIALIZED ({statement}) SELECT {shown} FROM found"
