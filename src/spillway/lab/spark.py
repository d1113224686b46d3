"""The lab's end of the process in which Spark is (`spark_host`): it is told what to do, and answers."""

import contextlib
import importlib.util
import json
import os
import select
import shutil
import time
from pathlib import Path
from typing import Any, Final

from spillway import install_hint
from spillway.lab.guard import Guard
from spillway.lab.processes import LabError, Process

STOP_S: Final = 180.0  # it may not even have started, on a machine on which everybody is busy
REPORT_S: Final = 300.0


def what_is_missing() -> str:
    """What is missing for Spark, or nothing; looked for without starting it."""
    if importlib.util.find_spec("pyspark") is None:
        return f"Spark is not installed: {install_hint('spark')}"
    from spillway.spark.platform.java import SparkMissing, find_java

    try:
        find_java()
    except SparkMissing as error:
        return str(error)
    return ""


class SparkHost(Process):
    """A Spark session for all scenarios of a lab: one that is warm is quick."""

    def __init__(self, directory: Path, guard: Guard) -> None:
        super().__init__("spark", ["spillway.lab.spark_host", str(directory)], directory / "spark.log", guard)
        self.local = directory / "spark"  # what Spark needs while it works
        self.is_started = False
        self._unread = b""
        self._answers: list[dict[str, Any]] = []

    def syphon(self, primary: str, secondary: str, directory: Path, events: Path) -> None:
        """Syphon from when Spark has started until `stop`."""
        spec = {"directory": str(directory), "events": str(events), "primary": primary, "secondary": secondary}
        self.tell({"do": "syphon", "timeout_s": 5.0, "patience_s": 5.0, **spec})

    def stop(self) -> None:
        self.tell({"do": "stop"})
        self._wait_for("stopped", STOP_S)

    def report(self, spec: dict[str, Any]) -> dict[str, Any]:
        """What the jobs found, in words and numbers."""
        self.tell({"do": "report", **spec})
        return self._wait_for("reported", REPORT_S)

    def check(self) -> None:
        """Raises `LabError` if it has failed."""
        self._read(0.0)
        if not self.is_running:
            raise LabError(f"Spark ended before its time: {self.last_words()}")

    def end(self) -> None:
        """Java too; nothing that Spark worked with is left."""
        super().end()
        shutil.rmtree(self.local, ignore_errors=True)

    def tell(self, asked: dict[str, Any]) -> None:
        child = self._child
        if child is not None and child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(asked).encode() + b"\n")
                child.stdin.flush()

    def _wait_for(self, what: str, timeout_s: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for at, answer in enumerate(self._answers):
                if answer["is"] == what:
                    return self._answers.pop(at)
            self.check()
            self._read(0.2)
        raise LabError(f"Spark has not answered for {timeout_s:g} s: {self.last_words()}")

    def _read(self, wait_s: float) -> None:
        child = self._child
        if child is None or child.stdout is None:
            return
        while select.select([child.stdout], [], [], wait_s)[0]:
            part = os.read(child.stdout.fileno(), 65_536)
            if not part:
                return
            self._unread += part
            *lines, self._unread = self._unread.split(b"\n")
            self._accept([json.loads(line) for line in lines])
            wait_s = 0.0

    def _accept(self, answers: list[dict[str, Any]]) -> None:
        for answer in answers:
            if answer["is"] == "failed":
                raise LabError(answer["why"])
            if answer["is"] == "started":
                self.is_started = True
            else:
                self._answers.append(answer)
