"""The guard of a run, who cleans up if the lab cannot: `python -m spillway.lab.guard`.

It is told on its stdin what the lab starts and changes, one line of JSON each. When that ends, because the lab is done
or because it was killed, it ends the processes that are still there, takes back the firewall rules and removes the
directories. A process is known by its number and the time it was started: a number that was used again is let alone.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

WAIT_S: Final = 20.0


class Guard:
    """The lab's end of it. Use as a context manager."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "spillway.lab.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def watch_process(self, pid: int) -> None:
        self._tell({"pid": pid, "since": started_at(pid)})

    def watch_rule(self, command: list[str]) -> None:
        """`command` takes it back."""
        self._tell({"rule": command})

    def unregister_rule(self, command: list[str]) -> None:
        self._tell({"lifted": command})

    def watch_directory(self, path: Path) -> None:
        self._tell({"directory": str(path)})

    def close(self) -> None:
        """Remove everything that is guarded: it is gone when this returns."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        try:
            self._child.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _tell(self, line: dict[str, Any]) -> None:
        assert self._child.stdin is not None, "it has a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(line).encode() + b"\n")
            self._child.stdin.flush()


def started_at(pid: int) -> str:
    """Ticks since the machine was started [proc(5), stat, field 22]; nothing where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def kill(pid: int) -> None:
    """What it has started goes with it, if it leads a group: Spark's Java, for example."""
    with contextlib.suppress(OSError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def clean_up(lines: list[dict[str, Any]]) -> None:
    """Rules first: a process that is cut off may wait for packets."""
    rules: list[list[str]] = []
    for line in lines:
        if "rule" in line:
            rules.append(line["rule"])
        elif "lifted" in line and line["lifted"] in rules:
            rules.remove(line["lifted"])
    for rule in rules:
        subprocess.run(rule, check=False, capture_output=True)
    for line in lines:
        if "pid" in line and started_at(line["pid"]) == line["since"]:
            kill(line["pid"])
    for line in lines:
        if "directory" in line:
            shutil.rmtree(line["directory"], ignore_errors=True)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = []
    for raw in sys.stdin.buffer:
        with contextlib.suppress(ValueError):  # the lab was killed in the middle of it
            lines.append(json.loads(raw))
    clean_up(lines)


if __name__ == "__main__":
    main()
