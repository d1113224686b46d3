"""The SQL of the store, from the named `.sql` files beside this module."""

from importlib import resources
from typing import Final

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
