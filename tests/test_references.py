"""Whatever this repository refers to is in it: headings, promises, bad inputs, decisions, pages, links between them.

How to refer is in docs/development.md, "References". A failure says where, what, and how to mend it.
"""

import ast
import bisect
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.contract_rows import load_rows
from tools.contract_page import PAGE as CONTRACT_PAGE
from tools.contract_page import page as contract_page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SELF = Path(__file__).resolve()
FOLDERS = ("src", "tests", "tools", "bench", "docs", "examples")
KINDS = {".py", ".md", ".toml", ".txt", ".c", ".sql", ".js", ".mjs", ".yml", ".yaml", ".sh"}
LEFT_OUT = ("node_modules", "recordings", "evidence", "__pycache__", "build")
FILES = sorted(
    file
    for folder in FOLDERS
    for file in (ROOT / folder).rglob("*")
    if file.suffix in KINDS and not set(file.relative_to(ROOT).parts) & set(LEFT_OUT) and file != SELF
) + [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "setup.py")]
PAGES = [file for file in FILES if file.suffix == ".md"] + sorted((DOCS / "evidence").glob("*.md"))

PROMISES = set(load_rows())
BAD_INPUTS = set(re.findall(r"^\| (B\d+) ", (DOCS / "bad-input.md").read_text(encoding="utf-8"), re.MULTILINE)) | {
    # "B6 to B8" is a row.
    f"B{n}"
    for first, last in re.findall(r"^\| B(\d+) to B(\d+) ", (DOCS / "bad-input.md").read_text("utf-8"), re.MULTILINE)
    for n in range(int(first), int(last) + 1)
}
DECISIONS = {int(page.name[:4]) for page in (DOCS / "adr").glob("*.md")}

ID = r"[A-I][0-9]{1,2}"
HEADING = re.compile(r'docs/([a-z-]+\.md), ("[^"]+"(?:(?:, | and )"[^"]+")*)')
NAMED_IDS = re.compile(rf"\b([Cc]ontract|[Bb]ad input) ({ID}(?:(?:, | to | and ){ID})*)")
BARE_ID = re.compile(rf"(?<![\w.#/\"'`-]){ID}(?![\w.\"'`-]*[\w\"'`])")
PAGE_NAME = re.compile(r"(?<![\w./*{}-])((?:[\w.-]+/)*[\w-]+\.md)\b")
DECISION = re.compile(r"\bADR (\d+)|docs/adr/(\d{4})")
SECTION = re.compile(r"\b[Ss]ections? \d")
OF_A_STANDARD = re.compile(r"(AMQP 1\.0|RFC \d+|fileformat2\.html) $")
ELSEWHERE = re.compile(
    r"wire[- ]contract|\b[Tt]raps? \d|\btest_(trap|row)_\d|\breliability (rows?|[A-Z]\d)|[Dd]esign (section|§)"
)
LINKED_ID = re.compile(rf"\[{ID}\]\([a-z./]*contract\.md#[a-z0-9]+\)")
LINK = re.compile(r"\]\(([^)\s]*)\)")


class Flat:
    """A text on one line, without the marks of comments, so that what is broken over lines is found; and back."""

    def __init__(self, text: str) -> None:
        self.begins: list[int] = []
        parts = []
        length = 0
        for line in text.splitlines():
            plain = re.sub(r"^\s*(#|\*|//)?\s*", "", line) if not line.startswith("#") else line.lstrip("# ")
            self.begins.append(length)
            parts.append(plain + " ")
            length += len(plain) + 1
        self.text = "".join(parts)

    def line_of(self, at: int) -> int:
        return bisect.bisect_right(self.begins, at)


@cache
def headings(page: str) -> frozenset[str]:
    path = DOCS / page
    if not path.exists():
        return frozenset()
    found = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(heading.replace("`", "") for heading in found)


@cache
def anchors(page: Path) -> frozenset[str]:
    """As GitHub makes them: small letters, blanks to dashes, everything else out; a second one gets a number."""
    found: list[str] = []
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return frozenset(found) | frozenset(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def problems_in(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Every reference of a file that leads nowhere: its line, and what to do."""
    flat = Flat(text)
    for found in ELSEWHERE.finditer(flat.text):
        yield (
            flat.line_of(found.start()),
            f"'{found[0]}' is nothing in this repository: name a heading, as in docs/wire.md, \"Settlement\"",
        )
    for found in SECTION.finditer(flat.text):
        if not OF_A_STANDARD.search(flat.text[: found.start()]) and name.endswith(".py"):
            yield flat.line_of(found.start()), f"'{found[0]}' of what? Name a heading, or the standard before it"
    for found in HEADING.finditer(flat.text):
        for heading in re.findall(r'"([^"]+)"', found[2]):
            if heading not in headings(found[1]):
                yield (
                    flat.line_of(found.start()),
                    f'docs/{found[1]} has no heading "{heading}": name one that it has, or write it there',
                )
    for found in NAMED_IDS.finditer(flat.text):
        known = PROMISES if found[1].lower() == "contract" else BAD_INPUTS
        where = "docs/contract.md" if found[1].lower() == "contract" else "docs/bad-input.md"
        for each in re.findall(ID, found[2]):
            if each not in known:
                yield flat.line_of(found.start()), f"{found[1]} {each}: {where} has no {each}"
    for found in DECISION.finditer(flat.text):
        if int(found[1] or found[2]) not in DECISIONS:
            yield flat.line_of(found.start()), f"{found[0]}: there is no such page in docs/adr"


def pages_missing(text: str, file: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        for named in PAGE_NAME.findall(line):
            if not any((place / named).exists() for place in (file.parent, ROOT, DOCS)):
                yield number, f"{named} is not in this repository: name a page that is"


def prose_of(text: str) -> str:
    """Comments and docstrings of a Python file where they stand, all else blank."""
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                if isinstance(first.value.value, str):
                    for offset, line in enumerate(first.value.value.splitlines()):
                        lines[first.lineno - 1 + offset] = line
    return "\n".join(lines)


def bare_ids(prose: str) -> Iterator[tuple[int, str]]:
    flat = Flat(prose)
    named = [found.span() for found in NAMED_IDS.finditer(flat.text)]
    for found in BARE_ID.finditer(flat.text):
        if not any(begin <= found.start() < end for begin, end in named):
            mended = f"'contract {found[0]}' or 'bad input {found[0]}'"
            yield flat.line_of(found.start()), f"{found[0]} of what? Write {mended}"


def shown(file: Path, problems: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{file.relative_to(ROOT)}:{line}: {what}" for line, what in problems]


def test_every_reference_leads_to_something_that_is_here() -> None:
    wrong: list[str] = []
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        wrong += shown(file, problems_in(text, file.name))
        wrong += shown(file, pages_missing(text, file))
    assert not wrong, "\n" + "\n".join(wrong)


def test_an_id_says_what_it_is_an_id_of() -> None:
    """The contract and the table of bad input both have a B1."""
    wrong: list[str] = []
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        if not BARE_ID.search(text):
            continue
        if file.suffix == ".py":
            wrong += shown(file, bare_ids(prose_of(text)))
        elif file.suffix == ".md" and file.name not in ("contract.md", "bad-input.md"):
            wrong += shown(file, bare_ids(LINKED_ID.sub("", text)))
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_page_and_to_a_heading_on_it(page: Path) -> None:
    wrong = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        for target in LINK.findall(line):
            path, _, anchor = target.partition("#")
            if path.startswith(("http:", "https:", "mailto:")):
                continue
            there = (page.parent / path).resolve() if path else page
            where = f"{page.relative_to(ROOT)}:{number}"
            if not there.exists():
                wrong.append(f"{where}: there is no {path}")
            elif anchor and there.suffix == ".md" and anchor not in anchors(there):
                wrong.append(f"{where}: {there.name} has no heading with the anchor #{anchor}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_page_of_the_contract_is_what_the_rows_say() -> None:
    assert CONTRACT_PAGE.read_text(encoding="utf-8") == contract_page(), "run `python tools/contract_page.py`"


def test_every_trap_has_its_tests() -> None:
    page = (DOCS / "wire.md").read_text(encoding="utf-8")
    traps = re.findall(r"^### (.*)$", page.partition("\n## Traps\n")[2].partition("\n## ")[0], re.MULTILINE)
    tests = (ROOT / "tests" / "wire" / "test_traps.py").read_text(encoding="utf-8")
    assert len(traps) == 16
    assert re.findall(r"^# -- (.*)$", tests, re.MULTILINE) == traps


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('x = 1  # see docs/wire.md, "Nowhere"', 1, 'docs/wire.md has no heading "Nowhere"'),
        ('"""A thing (docs/wire.md, "Settlement" and\n"Nowhere")."""', 1, 'no heading "Nowhere"'),
        ('"""\n\nOver two lines (docs/wire.md,\n"Nowhere")."""', 3, 'no heading "Nowhere"'),
        ("# (contract H99)", 1, "docs/contract.md has no H99"),
        ("# (contract A1, A2 to\n#  A99)", 1, "has no A99"),
        ("# (bad input B99)", 1, "docs/bad-input.md has no B99"),
        ("# see ADR 999", 1, "no such page"),
        ("# (wire-contract 6.3)", 1, "is nothing in this repository"),
        ("# (trap 14)", 1, "is nothing in this repository"),
        ("# design section 6", 1, "is nothing in this repository"),
        ("# see section 9", 1, "of what?"),
        ("# as docs/missing.md says", 1, "docs/missing.md is not in this repository"),
    ],
)
def test_a_reference_that_leads_nowhere_would_be_found(text: str, line: int, said: str) -> None:
    found = [*problems_in(text, "example.py"), *pages_missing(text, ROOT / "src" / "example.py")]
    assert [number for number, what in found if said in what] == [line], found


@pytest.mark.parametrize(
    "text",
    [
        '# docs/wire.md, "Settlement"',
        "# (contract A1, A2 to A4; bad input B15)",
        "# [AMQP 1.0 section 2.2]",
        "# RFC 6455 section 4.2",
        "# docs/adr/0005 and ADR 5",
        "# bench/README.md",
    ],
)
def test_a_reference_that_leads_somewhere_is_let_be(text: str) -> None:
    assert list(problems_in(text, "example.py")) == []
    assert list(pages_missing(text, ROOT / "src" / "example.py")) == []


def test_an_id_without_its_list_would_be_found() -> None:
    assert [line for line, _ in bare_ids(prose_of('"""Fine (contract A1)."""\nx = "B4"  # of A2\n'))] == [2]
