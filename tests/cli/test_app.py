"""The command line as a process: exit statuses, one line for an error, no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from spillway import __version__
from spillway.cli.app import make_app, run
from spillway.cli.errors import CommandError, UsageError
from spillway.cli.version import hot_rooms_state


def spillway(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "spillway", *arguments]
    return subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "NO_COLOR": "1", **env}
    )


def test_version_says_what_is_running() -> None:
    done = spillway("version")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["spillway", "build:", "python:", "event", "sqlite:"]
    assert done.stderr == ""


def test_version_as_json_is_one_object() -> None:
    facts = json.loads(spillway("version", "--json").stdout)
    assert set(facts) == {"version", "hot_rooms", "not_compiled_because", "python", "event_loop", "sqlite", "apsw"}
    assert facts["hot_rooms"] == hot_rooms_state()
    assert facts["hot_rooms"] in ("compiled", "interpreted")
    assert (facts["not_compiled_because"] == "") == (facts["hot_rooms"] == "compiled")


def test_help_lists_every_command_and_loads_no_room() -> None:
    done = spillway("--help")
    assert done.returncode == 0
    for name in ("demo", "serve", "version"):
        assert f" {name} " in done.stdout
    code = "import sys; from spillway.cli.app import make_app; make_app(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rooms = {name.split(".")[1] for name in loaded if name.startswith("spillway.")}
    assert rooms == {"cli"}
    assert not {"azure", "apsw"} & set(loaded)


@pytest.mark.parametrize(
    "arguments", [("no-such-command",), ("version", "--no-such-option"), ("demo", "--messages", "x")]
)
def test_a_wrong_command_line_exits_2_without_a_traceback(arguments: tuple[str, ...]) -> None:
    done = spillway(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("spillway: ")
    assert line.endswith("--help)")


def test_the_version_is_an_option_too() -> None:
    done = spillway("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"spillway {__version__}\n", "")


def test_without_a_command_the_help_is_shown() -> None:
    done = spillway()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == spillway("--help").stdout


@pytest.mark.parametrize("name", ["key", "fault", "clock", "store", "pipeline", "pipeline dead-letters"])
def test_a_group_without_a_command_shows_its_help_as_help_and_says_what_is_missing(name: str) -> None:
    done = spillway(*name.split())
    assert done.returncode == 2
    assert done.stdout == spillway(*name.split(), "--help").stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"spillway: which one: python -m spillway {name} ")
    assert " | " in line


NO_SPARK = {
    "capture": ("--entity", "q", "--out", "made"),
    "replay": ("--captured", "made", "--to", "q"),
    "metering": ("--ledger", "made", "--out", "made"),
}


@pytest.mark.parametrize(("job", "options"), NO_SPARK.items(), ids=NO_SPARK.keys())
def test_every_job_says_the_same_without_spark(tmp_path: Path, job: str, options: tuple[str, ...]) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\")\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    connection = "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b"
    done = spillway("pipeline", job, *options, PYTHONPATH=path, SPILLWAY_CONNECTION_STRING=connection)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "Spark is not installed (No module named 'pyspark'): pip install 'spillway-servicebus[spark]'" in line


SECRETS = {
    "capture": ("--entity", "q", "--out", "made", "--secret", "env:NOT_THERE"),
    "replay": ("--captured", "made", "--to", "q", "--secret", "env:NOT_THERE"),
    "syphon": ("--primary", "env:NOT_THERE", "--secondary", "env:NOT_THERE"),
}


@pytest.mark.parametrize(("job", "options"), SECRETS.items(), ids=SECRETS.keys())
def test_a_secret_that_is_not_there_is_named_as_it_was_typed(job: str, options: tuple[str, ...]) -> None:
    done = spillway("pipeline", job, *options)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"spillway: pipeline {job}: env:NOT_THERE: there is no environment variable NOT_THERE")


def test_a_directory_that_cannot_be_compacted_is_said_with_status_2(tmp_path: Path) -> None:
    done = spillway("pipeline", "compact", "--captured", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"spillway: pipeline compact: captured {tmp_path}: no capture has written there\n"


def test_help_says_what_a_value_is_and_that_a_flag_has_none() -> None:
    for name in ("connection-string", "demo", "serve", "version"):
        assert "<" not in spillway(name, "--help").stdout.replace("<=", "")


def test_a_mistake_in_a_config_file_is_one_line_and_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_text('{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q"}], "Extra": 1}]}}')
    done = spillway("serve", "--config", str(path), "--memory")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"spillway: {path}: $.UserConfig.Namespaces[0].Extra: 1: "
        "allowed: no such key; the keys here are Name, Queues, Topics\n"
    )


def failing(error: BaseException) -> typer.Typer:
    """A command line with one command, which fails."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fail() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CommandError("the disk is full"), 1, "spillway: the disk is full\n"),
        (UsageError("a: wrong", "b: wrong"), 2, "spillway: a: wrong\nspillway: b: wrong\n"),
        (KeyError("x"), 1, "spillway: KeyError: 'x' (SPILLWAY_DEBUG=1 shows where)\n"),
        (OSError("two\nlines"), 1, "spillway: OSError: two lines (SPILLWAY_DEBUG=1 shows where)\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_every_failure_is_lines_and_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    monkeypatch.delenv("SPILLWAY_DEBUG", raising=False)
    monkeypatch.setattr(sys, "argv", ["spillway"])
    with pytest.raises(SystemExit) as ended:
        run(failing(error))
    assert ended.value.code == code
    assert capsys.readouterr().err == said


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["spillway"])
    with pytest.raises(KeyError):
        run(failing(KeyError("x")))


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "spillway", "version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    stderr = process.stderr.read()
    process.stderr.close()
    process.wait(30)
    assert "Traceback" not in stderr


def test_every_command_has_a_help_text_of_its_own() -> None:
    for info in make_app().registered_commands:
        assert info.callback is not None
        assert (info.callback.__doc__ or "").strip(), info.name
