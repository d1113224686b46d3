"""A job of the pipeline as a process: what it says goes to a log, what it sums up comes back, and it can be stopped."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

COMMAND: Final = (sys.executable, "-m", "spillway")
TO_MEND: Final = 2  # the exit status for what only a user can mend
STOP_S: Final = 180.0  # a job that is asked to end finishes its batch, for which it takes two minutes at most
LINES_KEPT: Final = 20
SUMMARY_CHARS_MAX: Final = 1_000_000

Log = Callable[[str], None]


class JobFailed(Exception):
    """The process ended with another status than 0. `is_to_mend`: trying again cannot help."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status
        self.is_to_mend = status == TO_MEND


class JobProcess:
    """`spillway pipeline JOB … --json`, in a process group of its own."""

    def __init__(
        self, job: str, arguments: Sequence[str], environment: Mapping[str, str], command: Sequence[str] = COMMAND
    ) -> None:
        self._job = job
        self._line = [*command, "pipeline", job, *arguments, "--json"]
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[str] | None = None

    def run(self, log: Log) -> dict[str, Any]:
        """Wait for its end; the summary that it printed. `JobFailed` with what it said last."""
        try:
            self._process = subprocess.Popen(
                self._line,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # whoever ends us does not end it in the middle of a batch
            )
        except OSError as error:
            raise JobFailed(f"{self._line[0]} cannot be started: {error.strerror}", TO_MEND) from None
        said: deque[str] = deque(maxlen=LINES_KEPT)
        reader = threading.Thread(target=_read, args=(self._process.stderr, said, log), daemon=True)
        reader.start()
        last = ""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            last = line.strip() or last
        status = self._process.wait()
        reader.join()
        if status != 0:
            why = said[-1] if said else f"exit status {status}"
            raise JobFailed(f"spillway pipeline {self._job}: {why}", status)
        return _summary(last)

    def stop(self, stop_s: float = STOP_S) -> None:
        """From another thread, or a signal: it ends after the batch under way, or is killed with all it started."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(stop_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _read(lines: Any, said: "deque[str]", log: Log) -> None:
    for line in lines:
        text = line.rstrip()
        if text:
            said.append(text)
            log(text)


def _summary(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line) if len(line) <= SUMMARY_CHARS_MAX else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}
