"""The README: its programs run as they stand there, on other ports; it is short; it names the right package."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spillway
from spillway import DISTRIBUTION, install_hint
from tests.tools.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES_MAX = 120
PROGRAM_LINES_MAX = 8  # five, and what they import
SERVE = "spillway serve --dev --namespace primary=5672 --namespace secondary=5673 --queue orders\n"


def program(title: str) -> str:
    """The program under a heading."""
    (text,) = re.findall(rf"^## {title}\n(?:(?!^## ).)*?```python\n(.*?)```", README, flags=re.MULTILINE | re.DOTALL)
    return str(text)


def run(*arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(spillway.__file__).parent.parent)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_short_and_its_programs_are_five_lines() -> None:
    assert README.count("\n") < LINES_MAX
    for title in ("Survive", "Test", "Analyse"):
        lines = [line for line in program(title).splitlines() if line.strip()]
        assert len(lines) <= PROGRAM_LINES_MAX, title


def test_it_survives_as_it_says(tmp_path: Path) -> None:
    assert SERVE in README
    names = ("primary", "secondary")
    with BrokerProcess(tmp_path / "spillway-data", namespaces=names, queues=["orders"]) as broker:
        text = program("Survive")
        for name, port in zip(names, ("5672", "5673"), strict=True):
            assert port in text
            text = text.replace(port, str(broker.namespaces[name].port))
        run("-c", text, cwd=tmp_path)
        after = "\nfrom azure.servicebus import ServiceBusClient\n" + (
            "with ServiceBusClient.from_connection_string(CONNECTION % primary_port) as client:\n"
            "    (message,) = client.get_queue_receiver('orders').receive_messages(max_wait_time=10)\n"
            "    print(message)\n"
        ).replace("primary_port", str(broker.namespaces["primary"].port))
        connection = next(line for line in text.splitlines() if line.startswith("CONNECTION"))
        assert run("-c", connection + after, cwd=tmp_path) == "hello\n"


def test_it_tests_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(program("Test"))
    plugins = ["-p", "no:cacheprovider", "-p", "spillway.pytest_plugin.plugin"]
    assert "1 passed" in run("-m", "pytest", "-q", *plugins, "test_orders.py", cwd=tmp_path)


def texts() -> list[Path]:
    """What people read: guides, examples, and what the program says."""
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "pyproject.toml"]
    for top, pattern in (("docs", "*.md"), ("examples", "*"), ("src", "*.py")):
        found += [path for path in sorted((ROOT / top).rglob(pattern)) if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


@pytest.mark.parametrize("form", [r"\binstall\b[^\n]*[ ']spillway(?![\w./-])", r"spillway\["])
def test_nobody_is_told_to_install_another_project(form: str) -> None:
    """`spillway` on the package index is not this one."""
    for path in texts():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not re.search(form, line), f"{path.relative_to(ROOT)}:{number}: {line}"


def test_the_hint_names_the_distribution_and_a_part_of_it() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'name = "{DISTRIBUTION}"' in text
    for extra in ("spark", "entra", "pipelines"):
        assert re.search(rf"^{extra} = \[", text, flags=re.MULTILINE)
        assert install_hint(extra) == f"pip install 'spillway-servicebus[{extra}]'"
