"""The guides mention every command, option, property and target, and nothing that is not there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from spillway.cli.app import make_app
from spillway.emulator_config.properties import (
    CORRELATION_KEYS,
    LOGGING_KEYS,
    NAMESPACE_KEYS,
    PROPERTIES_OF,
    QUEUE_KEYS,
    RULE_KEYS,
    RULE_PROPERTIES,
    SQL_KEYS,
    SUBSCRIPTION_KEYS,
    TOPIC_KEYS,
    USER_CONFIG_KEYS,
)
from spillway.emulator_config.reader import read_config

ROOT = Path(__file__).resolve().parent.parent
GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *GUIDES, *sorted((ROOT / "docs" / "adr").glob("*.md"))]


def sections() -> dict[str, str]:
    """The text under each `## spillway …` heading of the guides."""
    found: dict[str, str] = {}
    for guide in GUIDES:
        for part in re.split(r"^## ", guide.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            heading, _, text = part.partition("\n")
            if heading.startswith("spillway "):
                found[heading.removeprefix("spillway ").strip()] = text
    return found


def commands() -> dict[str, Any]:
    """By the words that call them: `serve`, `fault add` for one of a group, and so on for groups in groups."""
    return {" ".join(words): command for words, command in commands_of(typer.main.get_command(make_app()))}


def commands_of(group: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from (((name, *words), each) for words, each in commands_of(command))
        else:
            yield (name,), command


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")} - {"--help"}


COMMANDS = commands()
SECTIONS = sections()


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_documented_and_every_documented_option_exists(name: str) -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)", SECTIONS[name], flags=re.MULTILINE)
    assert sorted(rows) == sorted(options(COMMANDS[name]))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_has_a_help_text(name: str) -> None:
    for parameter in COMMANDS[name].params:
        assert parameter.help, f"{name} {parameter.opts}"


def test_every_property_of_the_config_file_is_documented() -> None:
    text = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Za-z]+)`", text, flags=re.MULTILINE)
    properties = {key for keys in PROPERTIES_OF.values() for key in keys} | {*RULE_PROPERTIES}
    assert sorted(rows) == sorted(properties)
    for kind, keys in PROPERTIES_OF.items():
        said = re.findall(rf"^\| `([A-Za-z]+)` \| [^|]*\b{kind}\b", text, flags=re.MULTILINE)
        assert sorted(said) == sorted(keys), kind
    for key in (
        *USER_CONFIG_KEYS,
        *NAMESPACE_KEYS,
        *QUEUE_KEYS,
        *TOPIC_KEYS,
        *SUBSCRIPTION_KEYS,
        *RULE_KEYS,
        *LOGGING_KEYS,
    ):
        assert f'"{key}"' in text
    for key in (*CORRELATION_KEYS, *SQL_KEYS):
        assert f"`{key}`" in text


def test_the_config_file_in_the_guide_can_be_used(tmp_path: Path) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "config.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "Config.json").write_text(example)
    assert read_config(tmp_path / "Config.json").warnings == []


def test_every_make_target_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony is not None
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`make ([a-z-]+)`", text)) == set(phony[1].split())


def test_every_environment_variable_is_documented() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), ROOT / "setup.py"]
    used = {name for path in sources for name in re.findall(r"SPILLWAY_[A-Z_]+", path.read_text(encoding="utf-8"))}
    text = "".join(guide.read_text(encoding="utf-8") for guide in GUIDES)
    assert {name for name in used if f"`{name}" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_decisions_are_numbered_and_say_context_choice_and_cost() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == ["Context", "Choice", "Cost"], page.name
        assert text.startswith(f"# {int(page.name[:4])}. "), page.name


def test_the_changelog_has_the_version() -> None:
    import spillway

    assert f"## {spillway.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
