"""docs/pairing.md: its programs run, its tables say what the library says."""

import ast
import datetime
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spillway
from spillway import paired
from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions, events
from tests.tools.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = (ROOT / "docs" / "pairing.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
TABLES = (SendAvailabilityPairedNamespaceOptions, MessagingFactory, NamespaceManager)


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    (text,) = re.findall(rf"^#+ {title}\n(.*?)(?=^#|\Z)", GUIDE, flags=re.MULTILINE | re.DOTALL)
    return str(text)


def shown(default: object) -> str:
    """A default as the guide writes it."""
    if default is inspect.Parameter.empty:
        return ""
    if default is None:
        return "none"
    if isinstance(default, datetime.timedelta):
        minutes = default // datetime.timedelta(minutes=1)
        return f"{minutes} minute" + ("s" if minutes != 1 else "")
    if isinstance(default, int) and not isinstance(default, bool):
        return f"{default:,}"
    return str(default)


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
def test_the_tables_of_parameters_are_those_of_the_signatures(kind: type) -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \|([^|]*)\|", section(kind.__name__), flags=re.MULTILINE)
    taken = inspect.signature(kind).parameters.values()
    expected = [
        (each.name, shown(each.default))
        for each in taken
        if each.name not in ("host", "credential") and each.kind is not each.VAR_KEYWORD
    ]
    assert [(name, default.strip()) for name, default in rows] == expected


@pytest.mark.parametrize("kind", [MessagingFactory, NamespaceManager], ids=lambda kind: kind.__name__)
def test_a_connection_string_takes_the_same_parameters(kind: type) -> None:
    make = kind.from_connection_string  # type: ignore[attr-defined]
    assert list(inspect.signature(make).parameters)[1:] == list(inspect.signature(kind).parameters)[2:]


def test_every_event_and_every_error_is_in_the_guide() -> None:
    told = {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)}
    rows = re.findall(r"^\| (`[^|]*`) \|", section("Watching it"), flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == told
    for name in paired.__all__:
        if isinstance(getattr(paired, name), type) and issubclass(getattr(paired, name), Exception):
            assert f"| `{name}` |" in GUIDE, name


def test_programs_that_need_the_cloud_use_what_is_there() -> None:
    (program,) = [each for each in PROGRAMS if "azure.identity" in each]
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.module == "spillway.paired":
            assert {each.name for each in node.names} <= set(paired.__all__)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """As the guide starts them, on other ports."""
    assert "spillway serve --dev --namespace primary=5672 --data primary-data --queue orders\n" in GUIDE
    assert "spillway serve --dev --namespace secondary=5673 --data secondary-data\n" in GUIDE
    directory = tmp_path_factory.mktemp("pair")
    primary = BrokerProcess(directory / "primary-data", namespaces=["primary"], queues=["orders"])
    secondary = BrokerProcess(directory / "secondary-data", namespaces=["secondary"])
    with primary, secondary:
        yield primary, secondary


def run(program: str, pair: tuple[BrokerProcess, BrokerProcess]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(pair), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment(pair: tuple[BrokerProcess, BrokerProcess]) -> dict[str, str]:
    primary, secondary = pair
    return {
        **os.environ,
        "PYTHONPATH": str(Path(spillway.__file__).parent.parent),
        "PRIMARY": primary.connection_string,
        "SECONDARY": secondary.connection_string,
    }


def test_the_first_pair_of_the_guide_survives_the_end_of_its_primary(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    sending, receiving = PROGRAMS[:2]
    primary = pair[0]
    assert run(sending, pair) == "sent, 0 diverted\n"
    primary.kill()
    assert run(sending, pair) == "sent, 2 diverted\n"
    primary.start()
    assert sorted(run(receiving, pair).split()) == ["first", "first", "second", "second"]


def test_the_program_of_the_guide_that_starts_before_its_secondary_sends_and_is_paired_when_it_comes(
    pair: tuple[BrokerProcess, BrokerProcess],
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", section("A program that starts before its secondary"), re.DOTALL)
    _, secondary = pair
    secondary.kill()
    early = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(pair), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert early.stdout is not None
    try:
        assert early.stdout.readline() == "sent while pairing\n"
        secondary.start()
        said, errors = early.communicate(timeout=60)
    finally:
        early.kill()
    assert (said, early.returncode) == ("paired with 10 backlog queues\n", 0), errors
