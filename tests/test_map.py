"""docs/map.md: what the modules say of themselves, recipes whose files are there, and a glossary."""

import re
from pathlib import Path

import pytest

from tools.map import BEGIN, END, PAGE, SHOWN_BY, SOURCE, TESTS, first_sentence, make_house, module_of, with_listing

ROOT = Path(__file__).resolve().parent.parent
TEXT = PAGE.read_text(encoding="utf-8")
BY_HAND = TEXT.partition(BEGIN)[0] + TEXT.partition(END)[2]
PLACES = (ROOT, SOURCE, SOURCE / "spark", ROOT / "docs")
SENTENCE_CHARS_MAX = 160
WORDS_MAX = 30  # in the glossary: who must learn more words than that learns none


def test_the_list_of_modules_is_what_their_docstrings_say() -> None:
    assert with_listing(TEXT) == TEXT, "run `python tools/map.py`"


def test_every_module_says_in_a_sentence_what_it_is() -> None:
    wrong = []
    for file in sorted(SOURCE.rglob("*.py")):
        said = first_sentence(file)
        if not 0 < len(said) <= SENTENCE_CHARS_MAX:
            wrong.append(f"{file.relative_to(ROOT)}: {len(said)} characters: '{said}'")
    rule = f"the first sentence of a docstring says what the module is, in {SENTENCE_CHARS_MAX} characters"
    assert not wrong, "\n".join([rule, *wrong])


def test_tests_that_are_named_by_hand_are_there() -> None:
    house = make_house()
    for module, tests in SHOWN_BY.items():
        assert f"spillway.{module}" in house.files, f"{module} in SHOWN_BY of tools/map.py is no module any more"
        for name in tests.split():
            assert (TESTS / f"{name}.py").exists(), f"{module} in SHOWN_BY of tools/map.py: there is no {name}.py"


def test_every_module_has_tests_beside_it() -> None:
    house = make_house()
    modules = [module for module in house.files if module.count(".") > 1 and house.files[module].name != "__init__.py"]
    alone = [module for module in modules if not house.shown_by(module)]
    assert alone == [], "name their tests in SHOWN_BY of tools/map.py"


@pytest.mark.parametrize("page", ["map.md", "design.md", "wire.md", "development.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_0-9.]+\.(?:py|toml|sql|md|c))`", text))
    missing = [name for name in sorted(named) if not any((place / name).exists() for place in PLACES)]
    assert missing == [], f"docs/{page} names what is not there"


def test_names_that_a_recipe_gives_are_in_the_files_it_gives() -> None:
    """`Name` in `file`: a name in a step stands in one of the files of that step."""
    recipes = BY_HAND.partition("\n## Recipes\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. (.*(?:\n   .*)*)", recipes, re.MULTILINE)
    assert len(steps) > 20
    for step in steps:
        words = re.findall(r"`([^`]+)`", step)
        files = [found for word in words if (found := find(word)) is not None]
        names = [word for word in words if re.fullmatch(r"[A-Za-z_]+(\.[a-z_]+)?", word) and find(word) is None]
        text = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
        for name in names:
            assert name.rpartition(".")[2] in text, f"docs/map.md: '{name}' is in none of the files of its step: {step}"


def find(word: str) -> Path | None:
    return next((place / word for place in PLACES if "/" in word and (place / word).is_file()), None)


def test_the_glossary_is_short_and_in_order() -> None:
    rows = re.findall(r"^\| \*\*([^*]+)\*\* \|", BY_HAND.partition("## Glossary")[2], re.MULTILINE)
    assert 10 < len(rows) <= WORDS_MAX
    assert rows == sorted(rows, key=str.lower)


def test_a_module_is_called_as_it_is_imported() -> None:
    assert module_of(SOURCE / "broker" / "queue.py") == "spillway.broker.queue"
    assert module_of(SOURCE / "broker" / "__init__.py") == "spillway.broker"
