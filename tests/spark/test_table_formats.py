"""What `tools/table_formats.py` writes down of an error: the line that names it."""

import pytest

from tools.table_formats import OK, error_line, outcome


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "An error occurred while calling o1.save.\n: java.lang.NoSuchMethodError: 'x'\n\tat a.B",
            "java.lang.NoSuchMethodError: 'x'",
        ),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find it.\nSQLSTATE", "[DATA_SOURCE_NOT_FOUND] Failed to find it."),
        ("", "an error without words"),
    ],
)
def test_an_error_is_one_line(text: str, line: str) -> None:
    assert error_line(text) == line

    def fail() -> None:
        raise RuntimeError(text)

    assert (outcome(fail), outcome(lambda: 1)) == (line, OK)
