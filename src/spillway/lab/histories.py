"""Histories: what every process of the lab writes down for itself, a line of JSON for each thing that happened.

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
NS: Final = 1_000_000_000

# Operations, and what else a line has besides `t` (ns), `p` (the process that wrote it) and `op`.
SEND: Final = "send"  # t0 (ns, when it began), id, a (which attempt), h (digest), res, error
DELIVERED: Final = "recv"  # id, a, h, seq, dc, g (ns, when the broker locked it for this receiver)
COMPLETED: Final = "complete"  # id, seq, res
EVENT: Final = "event"  # name, path, count, error: what the paired library told
LEFT: Final = "left"  # id, q: still there at the end, and where
FAULT: Final = "fault"  # what: begins, is being mended, is mended
LEDGER: Final = "ledger"  # namespace, operations by kind: what a broker counted
UNCLEAN: Final = "unclean"  # text: how a process of the lab did not end as it should
NOTE: Final = "note"  # text: for people

# How a send or a settlement ended.
OK: Final = "ok"
FAIL: Final = "fail"  # surely not applied: the caller was told so
INFO: Final = "info"  # nobody knows

BEGINS: Final = "begins"
MENDING: Final = "is being mended"
MENDED: Final = "is mended"


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


def read_lines(directory: Path) -> Iterator[dict[str, Any]]:
    """Every line, process by process. One that a killed process did not finish is left out."""
    for path in sorted(directory.glob("*" + SUFFIX)):
        with path.open("rb") as file:
            for raw in file:
                if raw.endswith(b"\n"):
                    yield json.loads(raw)


class Tail:
    """Follows the histories while they grow: how often each thing has happened so far. For the eye, and to know when
    to go on; the verdict reads for itself."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.counts = {"acknowledged": 0, "diverted": 0, "syphoned": 0, "delivered": 0, "failed": 0}
        self.away: set[str] = set()  # processes whose senders are failed over
        self._read: dict[Path, int] = {}

    def update(self) -> dict[str, int]:
        for path in self.directory.glob("*" + SUFFIX):
            at = self._read.get(path, 0)
            if path.stat().st_size == at:
                continue
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
            self.counts["acknowledged" if line["res"] == OK else "failed"] += 1
        elif op == DELIVERED:
            self.counts["delivered"] += 1
        elif op == EVENT:
            name = line["name"]
            if name in ("diverted", "syphoned"):
                self.counts[name] += line["count"]
            elif name == "failed-over":
                self.away.add(line["p"])
            elif name == "recovered":
                self.away.discard(line["p"])
