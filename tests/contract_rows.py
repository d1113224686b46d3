"""The rows of the contract, and what a test may claim of them. Shared by the tests' plugin and the scorecard."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROWS_FILE = Path(__file__).with_name("contract_rows.toml")
IDS_PER_TEST_MAX = 3  # a test that claims more shows none of them well


@dataclass(frozen=True)
class Row:
    """One promise. `not_a_program` is why no program can show it, or empty."""

    id: str
    statement: str
    stage: int
    is_claimed: bool
    not_a_program: str


def load_rows() -> dict[str, Row]:
    """All rows by id, in the order of the file."""
    content = tomllib.loads(ROWS_FILE.read_text(encoding="utf-8"))
    rows: dict[str, Row] = {}
    for entry in content["row"]:
        row = Row(
            id=entry["id"],
            statement=entry["statement"],
            stage=entry["stage"],
            is_claimed=entry["stage"] <= content["claimed_stage"],
            not_a_program=entry.get("not_a_program", ""),
        )
        assert row.id not in rows, f"{row.id} stands twice in {ROWS_FILE.name}"
        rows[row.id] = row
    return rows


def claim_problem(ids: list[object], rows: dict[str, Row]) -> str | None:
    """What is wrong with the ids on a test, or None."""
    if not ids:
        return "a contract mark without an id"
    if len(ids) > IDS_PER_TEST_MAX:
        return f"{len(ids)} contract ids on one test; at most {IDS_PER_TEST_MAX}"
    unknown = [str(row_id) for row_id in ids if row_id not in rows]
    if unknown:
        return f"unknown contract id {', '.join(unknown)}; the rows are in {ROWS_FILE.name}"
    return None
