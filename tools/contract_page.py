"""Writes docs/contract.md out of tests/contract_rows.toml: `python tools/contract_page.py`.

Every promise has a heading of its own, so that code, tests and guides can name it.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
ROWS: Final = ROOT / "tests" / "contract_rows.toml"
PAGE: Final = ROOT / "docs" / "contract.md"
HEAD: Final = """\
# The contract

What Spillway promises, promise by promise. Code and guides name one by its id ("contract H6"), tests claim it
(`@pytest.mark.contract("H6")`), and `make scorecard` prints each with the tests that show it and their result. Made by
`python tools/contract_page.py` out of `tests/contract_rows.toml`: change it there.
"""
PART: Final = re.compile(r"^# -- (([A-I])\. .*)$", re.MULTILINE)


def page() -> str:
    text = ROWS.read_text(encoding="utf-8")
    titles = {letter: title for title, letter in PART.findall(text)}
    parts = [HEAD]
    part = ""
    for row in tomllib.loads(text)["row"]:
        if row["id"][0] != part:
            part = row["id"][0]
            parts.append(f"\n## {titles[part]}\n")
        parts.append(f"\n### {row['id']}\n\n{sentence(row)}\n")
    return "".join(parts)


def sentence(row: dict[str, Any]) -> str:
    said = f"{row['statement']}."
    why = row.get("not_a_program", "")
    return f"{said} *No program can show this: {why}.*" if why else said


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
