"""Every kind of bad Config.json, as whoever starts a broker with it sees it (bad input B23).

One line on stderr that names the file, status 2, and nothing was started: no data directory, no port.
"""

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spillway.cli.app import main
from spillway.emulator_config.values import OBJECTS_MAX
from tests.emulator_config.sample_config import SAMPLE
from tests.emulator_config.test_reader import correlation, namespaces, queue_file, sql
from tests.tools.broker_process import PACKAGE_PARENT, BrokerProcess

FILE = "Config.json"
MEMORY_BYTES_MAX = 1 << 30
TWICE = {"Name": "n", "Queues": [{"Name": "q"}, {"Name": "Q"}]}
SECRET = "Endpoint=sb://h;SharedAccessKeyName=k;SharedAccessKey=hunter2hunter2"

Refused = Callable[..., list[str]]


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """What `spillway serve --config` says about the file."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["spillway", "serve", "--memory", "--config", FILE, *options])
        with pytest.raises(SystemExit) as caught:
            main()
        said = capsys.readouterr()
        assert (caught.value.code, said.out) == (2, "")
        assert not {path.name for path in tmp_path.iterdir()} - {FILE}
        lines = said.err.splitlines()
        assert all(line.startswith("spillway: ") for line in lines), lines
        assert "memory" not in said.err
        assert "hunter2" not in said.err
        return [line.removeprefix("spillway: ") for line in lines]

    return run


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{\n  // ours\n}", 'Config.json: line 2, column 3: "// ours": JSON has no comments'),
        ("{} # ours", 'Config.json: line 1, column 4: "# ours": JSON has no comments'),
        ('{"UserConfig": {},}', r"Config.json: line 1, column \d+: .*: JSON has no comma before a closing bracket"),
        ("", "Config.json: line 1, column 1: the end of the line or file: not JSON: Expecting value"),
        (
            queue_file(LockDurationn="PT1M"),
            r"Config.json: .*Properties.LockDurationn: .PT1M.: allowed: no such key; .*",
        ),
        (queue_file(LockDuration="PT5X"), r"Config.json: .*LockDuration: .PT5X.: allowed: a duration from PT5S .*"),
        (
            queue_file(LockDuration="60"),
            r"Config.json: .*LockDuration: .60.: allowed: a duration from PT5S to PT5M, .*",
        ),
        (
            queue_file(MaxDeliveryCount=2**31),
            r"Config.json: .*: 2147483648: allowed: a whole number from 1 to 2147483647",
        ),
        (
            namespaces({"Name": "x" * 51}),
            r"Config.json: .*: allowed: letters, digits and '-', .* at most 50 characters",
        ),
        (
            namespaces({"Name": "n", "Queues": [{"Name": "q" * 261}]}),
            r"Config.json: .* at most 260 characters, .* has 261",
        ),
        (namespaces(TWICE), r"Config.json: .*Queues\[1\].Name: .Q.: allowed: a name of its own, whatever its case: .*"),
        (queue_file(ForwardTo=SECRET), r"Config.json: .*ForwardTo: \(a value that is not shown\): allowed: .*"),
        (queue_file(SharedAccessKey="hunter2"), r"Config.json: .*SharedAccessKey: \(a value that is not shown\): .*"),
        ('{"Key": hunter2hunter2}', r"Config.json: line 1, column 9: \(a line that is not shown\): not JSON: .*"),
        (f'{{"x": "a" {SECRET}}}', r"Config.json: line 1, column \d+: \(a line that is not shown\): not JSON: .*"),
        (
            sql("a = '\ud83d'"),
            r"Config.json: .*SqlExpression: .*: allowed: a condition in SQL: .* half of a surrogate pair\.",
        ),
        (
            correlation(Label="\udc00"),
            r"Config.json: .*: an object: allowed: Label of a correlation filter is no text: .*",
        ),
        (queue_file(ForwardTo="\ud83d"), r'Config.json: .*ForwardTo: "\\ud83d": allowed: .*'),
        (
            namespaces({"Name": "n", "Queues": [{"Name": f"q{number}"} for number in range(3)]}),
            "namespace n is to have 3 queues and topics; it may have 2, unless you say --limit entities=3",
        ),
    ],
    ids=lambda value: None if not isinstance(value, str) else re.sub(r"\W+", "-", value)[:40],
)
def test_a_bad_file_is_one_line_and_nothing_is_started(
    tmp_path: Path, refused: Refused, content: Any, line: str
) -> None:
    (tmp_path / FILE).write_text(content if isinstance(content, str) else json.dumps(content))
    (said,) = refused("--limit", "entities=2")
    assert re.fullmatch(line, said), said


def test_a_file_that_is_not_there_or_not_readable_is_one_line(tmp_path: Path, refused: Refused) -> None:
    assert refused() == ["Config.json: cannot be read: No such file or directory"]
    (tmp_path / FILE).mkdir()
    assert refused() == ["Config.json: cannot be read: Is a directory"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" + b"{}," * (50 * 1024 * 1024 // 3), "Config.json: larger than 16 MB, the most that is read"),
        (b"[" + b"{}," * (OBJECTS_MAX + 1), f"Config.json: more than {OBJECTS_MAX} objects, the most that are read"),
        (b"[" * (15 * 1024 * 1024), "Config.json: nested too deeply to be a configuration"),
        (b'{"UserConfig": "' + b"x" * (15 * 1024 * 1024) + b'"}', r"Config.json: \$.UserConfig: .xxx.*: allowed: .*"),
    ],
    ids=["fifty megabytes", "many objects", "deep", "one long text"],
)
def test_a_huge_file_is_one_line_within_little_memory(tmp_path: Path, content: bytes, said: str) -> None:
    """The emulator says that it is out of memory, whatever is wrong with the file."""
    (tmp_path / FILE).write_bytes(content)

    def confine() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))

    done = subprocess.run(
        [sys.executable, "-m", "spillway", "serve", "--memory", "--config", FILE],
        cwd=tmp_path,
        env={"PYTHONPATH": str(PACKAGE_PARENT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=confine,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(f"spillway: {said}", line), line


def test_a_file_with_a_byte_order_mark_is_served_and_a_change_while_running_is_not_noticed(tmp_path: Path) -> None:
    """It is read once, at the start. What is wrong with it then is said at the next start, and costs no message."""
    file = tmp_path / FILE
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(SAMPLE).encode())
    with BrokerProcess(tmp_path / "data", config=file) as broker:
        file.write_text('{"UserConfig": oops')
        shown = subprocess.run(
            [sys.executable, "-m", "spillway", "export", "--data", str(broker.data)],
            env={"PYTHONPATH": str(PACKAGE_PARENT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert json.loads(shown.stdout)["UserConfig"]["Namespaces"][0]["Queues"][0]["Name"] == "queue.1"
        broker.stop()
        refused = subprocess.run(
            broker.command(), env={"PYTHONPATH": str(PACKAGE_PARENT)}, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2
        assert refused.stderr == f'spillway: {file}: line 1, column 16: "oops": not JSON: Expecting value\n'
        file.write_text(json.dumps(SAMPLE))
        broker.start()
