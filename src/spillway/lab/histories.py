"""What every process of the lab writes down for itself: one line of JSON per thing that happened, in a file of its own.

The lines are the only thing that the verdict is made from. They carry times of one clock (one machine, monotonic), are
never edited, and never pass through a broker.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

SUFFIX: Final = ".history.jsonl"

# Operations, and what else a line has besides `t` (ns) and `p` (the process that wrote it).
SEND: Final = "send"  # t0, t1, id, n, res: ok, fail (surely not applied) or info (nobody knows), error
DELIVERED: Final = "recv"  # id, seq, dc
COMPLETED: Final = "complete"  # id, seq, res
EVENT: Final = "event"  # name, path, count: what the paired library told
LEFT: Final = "left"  # id, q: still there at the end
NEMESIS: Final = "nemesis"  # what: begins, ends
LEDGER: Final = "ledger"  # namespace, operations by kind

OK: Final = "ok"
FAIL: Final = "fail"
INFO: Final = "info"


def now_ns() -> int:
    return time.monotonic_ns()


class History:
    """Appends; a line is in the file when `write` returns, whatever becomes of the process then."""

    def __init__(self, directory: Path, process: str) -> None:
        self.process = process
        self._file = os.open(directory / (process + SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, op: str, **fields: Any) -> None:
        line = {"t": now_ns(), "p": self.process, "op": op, **fields}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_all(directory: Path) -> list[dict[str, Any]]:
    """Every line of every process, by time."""
    lines = [line for path in sorted(directory.glob("*" + SUFFIX)) for line in read_one(path)]
    lines.sort(key=lambda line: int(line["t"]))
    return lines


def read_one(path: Path) -> Iterator[dict[str, Any]]:
    """A line that a killed process did not finish is left out."""
    with path.open("rb") as file:
        for raw in file:
            if raw.endswith(b"\n"):
                yield json.loads(raw)


class Tail:
    """Follows the histories while they grow: how often each thing has happened so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.counts = {"sent": 0, "acknowledged": 0, "failed": 0, "diverted": 0, "syphoned": 0, "delivered": 0}
        self._read: dict[Path, int] = {}

    def update(self) -> dict[str, int]:
        for path in self.directory.glob("*" + SUFFIX):
            at = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            end = data.rfind(b"\n") + 1
            self._read[path] = at + end
            for raw in data[:end].splitlines():
                self._count(json.loads(raw))
        return self.counts

    def _count(self, line: dict[str, Any]) -> None:
        op = line["op"]
        if op == SEND:
            self.counts["sent"] += 1
            self.counts["acknowledged" if line["res"] == OK else "failed"] += 1
        elif op == DELIVERED:
            self.counts["delivered"] += 1
        elif op == EVENT and line["name"] in ("diverted", "syphoned"):
            self.counts[line["name"]] += line["count"]
