"""The SQL of the store: what it costs to run it again."""

import re
from pathlib import Path

import apsw
import pytest

from spillway.store.file import open_file
from spillway.store.statements import STATEMENTS

QUERIES = sorted(name for name, statement in STATEMENTS.items() if statement.startswith("SELECT"))


def parameters_count(statement: str) -> int:
    numbered = re.findall(r"\?(\d+)", statement)
    return max(map(int, numbered)) if numbered else statement.count("?")


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_is_compiled_once_whatever_it_asks_for(tmp_path: Path, name: str) -> None:
    connection = open_file(tmp_path / "journal.db", "FULL", None)
    compiled: list[int] = []

    def authorise(code: int, *about: str | None) -> int:
        compiled.append(code)
        return apsw.SQLITE_OK

    connection.authorizer = authorise  # SQLite asks it whenever it compiles something
    statement = STATEMENTS[name]
    count = parameters_count(statement)
    list(connection.execute(statement, [1] * count))
    assert compiled
    compiled.clear()
    for number in range(2, 5):
        list(connection.execute(statement, [number] * count))
    connection.close()
    assert compiled == []
