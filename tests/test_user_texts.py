"""Texts for users are plain technical English: words of our own and turns that read as translated do not come back.

Looked at: every string of the sources that is a text (with a space in it, and neither a docstring nor the message of an
assertion), all help of the command line and of the jobs, the guides and the README. Pages for those who work on the
project may use its words, and so may the CHANGELOG, which is a history.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from spillway.cli.app import make_app
from spillway.spark.jobs.job import every_job

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "spillway"
FOR_DEVELOPERS = frozenset({"amqp-states", "bad-input", "contract", "design", "development", "map", "wire"})
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GUIDES = [page for page in PAGES if page.stem not in FOR_DEVELOPERS]

_VERB = r"(?:is|has|does|waits|comes|wants|puts|shows|asks|holds|sends|lacks|needs|only|then)"
# What must not come back, and what to say instead.
WORDS = {
    r"\bhot rooms?\b": "compiled parts",
    r"\bcontract [A-Z]\d+\b": "say what is promised; ids are for tests and docs/contract.md",
    r"\bno words for\b": "cannot express",
    r"\b(?:is|are|was|were) told\b": "gets, is answered, is asked",
    r"\baway\b": "unavailable; removed; elsewhere",
    r"\bshut\b(?! down)": "closed",
    rf"\b(?:to|for|by|of|from|only) who {_VERB}\b": "name the noun: the client that, the receiver that",
    rf"(?m)(?:^ ?|[.;:] )Who {_VERB}\b": "name the noun: a client that, a request that",
    r"\bhouse\b|\brooms\b": "project, package; parts",
}
# Values of a column that programs compare with.
VALUES = frozenset({"still away"})


def problems(text: str) -> list[str]:
    found = [(each[0].strip(), better) for word, better in WORDS.items() for each in re.finditer(word, text)]
    return [f"'{text}': say {better}" for text, better in found]


# -- the sources ------------------------------------------------------------------------------------------------------


def texts_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings with a space in them, by line; docstrings and messages of assertions are for developers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.Assert):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
        yield from texts_of(node)


@pytest.mark.parametrize("room", sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()))
def test_texts_in_the_sources_are_plain(room: str) -> None:
    found = []
    for file in sorted((SOURCE / room).rglob("*.py")):
        for line, text in texts_of(ast.parse(file.read_text("utf-8"))):
            if text not in VALUES:
                found += [f"{file.relative_to(ROOT)}:{line}: {problem}" for problem in problems(text)]
    assert not found, "\n".join(found)


# -- help -------------------------------------------------------------------------------------------------------------


def helps_of(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """What `--help` prints of a command and of all below it."""
    yield name, " ".join(filter(None, (command.help, command.short_help, command.epilog)))
    for parameter in command.params:
        yield f"{name} {'/'.join(parameter.opts)}", getattr(parameter, "help", None) or ""
    for word, each in sorted(getattr(command, "commands", {}).items()):
        yield from helps_of(f"{name} {word}", each)


def test_help_of_the_command_line_is_plain() -> None:
    found = []
    for name, text in helps_of("spillway", typer.main.get_command(make_app())):
        found += [f"{name}: {problem}" for problem in problems(text)]
    assert not found, "\n".join(found)


def test_help_of_the_jobs_is_plain() -> None:
    found = []
    for job in every_job():
        found += [f"{job.name}: {problem}" for problem in problems(job.parser().format_help())]
    assert not found, "\n".join(found)


# -- pages ------------------------------------------------------------------------------------------------------------


def prose_of(page: str) -> str:
    """Without code, and one line for each paragraph."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\n(?=\S)", " ", re.sub(r"`[^`\n]*`", "`", page))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_guides_are_plain(page: Path) -> None:
    found = problems(prose_of(page.read_text("utf-8")))
    assert not found, "\n".join(found)


# -- the guard itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("'orders' is unavailable, and nothing was sent.", True),
        ("'orders' is away, and nothing was sent.", False),
        ("The broker was shut down; a rule that says who may send.", True),
        ("What its keys opened is shut.", False),
        ("A client that has no token is refused.", True),
        ("It is refused. Who has no token waits.", False),
        ("Received by who holds the session.", False),
        ("No space for it: there is no room.", True),
        ("The hot rooms are compiled.", False),
        ("It stays (contract I3).", False),
        ("A queue that Config.json has no words for.", False),
    ],
)
def test_the_guard_tells_good_from_bad(text: str, is_plain: bool) -> None:
    assert (problems(text) == []) is is_plain


def test_only_texts_are_looked_at() -> None:
    source = '''"""A docstring that is away."""
assert True, "who is away"
KIND = "away"
print(f"{KIND} is away")
'''
    assert list(texts_of(ast.parse(source))) == [(4, " is away")]
