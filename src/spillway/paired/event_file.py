"""The events of a pairing in files, for jobs that look back: a line of JSON each, a file a day and process.

A send never waits for a disk: what happened is put into a bounded buffer, and a thread writes it. A disk that is full
or gone is a line in the log; what the buffer cannot hold meanwhile is counted, and the count is written when it can be.
docs/events.md has the fields.
"""

import atexit
import contextlib
import datetime
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from spillway.paired import events
from spillway.paired.events import Event

log = logging.getLogger("spillway.paired")

FORMAT: Final = 1  # of the lines; another number is another set of fields
SUFFIX: Final = ".jsonl"
OPENED: Final = "opened"  # the first line of a process
CLOSED: Final = "closed"  # the last, if it ended in peace
EVENTS_LOST: Final = "events-lost"  # so many found the buffer full

BUFFER_MAX: Final = 10_000  # lines that wait to be written
SUM_S: Final = 1.0  # what happens very often is summed up for so long
RETRY_S: Final = 5.0  # after a fault of the disk
CLOSE_S: Final = 5.0  # that a program waits for the disk when it ends
ERROR_CHARS_MAX: Final = 300
_US: Final = 1_000
# Too many to have a line each: one a second for each entity and backlog queue.
_SUMMED: Final = frozenset({events.DIVERTED, events.SYPHONED})
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


class _Sum:
    def __init__(self, at_us: int, clock_us: int) -> None:
        self.at_us = at_us
        self.clock_us = clock_us
        self.until_us = at_us
        self.count = 0


class EventFile:
    """Give it to `MessagingFactory.on_event`; `MessagingFactory.record_events` does so, and closes it in the end.

    `process` is a name for people, host and process id by default; a random end is added to it, since every run of a
    program has files of its own. Any thread may call it.
    """

    def __init__(
        self,
        directory: str | Path,
        namespace: str,
        *,
        process: str | None = None,
        buffer_max: int = BUFFER_MAX,
        now_ns: Callable[[], int] = time.time_ns,
        **about: Any,
    ) -> None:
        if buffer_max < 1:
            raise ValueError(f"buffer_max must be 1 at least, not {buffer_max}")
        self.directory = Path(directory)
        self.namespace = namespace
        self.process = f"{_safe(process or f'{socket.gethostname()}-{os.getpid()}')}-{secrets.token_hex(4)}"
        self.buffer_max = buffer_max
        self.lost_count = 0  # since the last line that told of it
        self._now_ns = now_ns
        self._number = 0
        self._lines: list[dict[str, Any]] = []
        self._sums: dict[tuple[str, str, str], _Sum] = {}
        self._unwritten: list[dict[str, Any]] = []  # the thread's: what the disk did not take
        self._ready = threading.Condition()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: tuple[str, int] | None = None  # day and descriptor
        self._is_torn = False
        self._is_faulty = False
        with self._ready:
            self._add(OPENED, "", 1, about)

    # -- what is told to it ---------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        with self._ready:
            if self._ending.is_set():
                return
            if event.name in _SUMMED:
                self._sum(event)
            else:
                details = dict(event.details)
                if event.error is not None:
                    text = " ".join(str(event.error).split())
                    details["error"] = f"{type(event.error).__name__}: {text}"[:ERROR_CHARS_MAX]
                self._add(event.name, event.path, event.count, details)

    def _sum(self, event: Event) -> None:
        key = (event.name, event.path, str(event.details.get("queue", "")))
        found = self._sums.get(key)
        now_us = self._now_ns() // _US
        if found is None:
            if len(self._sums) >= self.buffer_max:
                self.lost_count += event.count
                return
            found = self._sums[key] = _Sum(now_us, time.monotonic_ns() // _US)
            if len(self._sums) == 1:
                self._wake()
        found.count += event.count
        found.until_us = max(now_us, found.until_us)

    def _add(self, name: str, path: str, count: int, details: dict[str, Any]) -> None:
        if len(self._lines) + len(self._unwritten) >= self.buffer_max:
            self.lost_count += 1
            return
        at_us = self._now_ns() // _US
        self._lines.append(self._line(name, path, count, at_us, time.monotonic_ns() // _US, details))
        self._wake()

    def _line(
        self, name: str, path: str, count: int, at_us: int, clock_us: int, details: dict[str, Any]
    ) -> dict[str, Any]:
        self._number += 1
        line = {
            "format": FORMAT,
            "time": _text_of(at_us),
            "epoch_us": at_us,
            "clock_us": clock_us,
            "namespace": self.namespace,
            "process": self.process,
            "number": self._number,
            "event": name,
            "entity": path,
            "count": count,
        }
        return {**details, **line}

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spillway-events", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        self._ready.notify()

    # -- the end --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left; after five seconds the disk is not waited for."""
        with self._ready:
            if not self._ending.is_set():
                self._add(CLOSED, "", 1, {})
                self._ending.set()
                self._ready.notify()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                log.warning("event=events-not-written directory=%s: the disk does not answer", self.directory)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._ready:
                while not (self._is_behind() or self._sums or self._ending.is_set()):
                    self._ready.wait()
                if not self._is_behind() and not self._ending.is_set():
                    self._ready.wait(SUM_S)
                is_last = self._ending.is_set()
                self._unwritten += self._drain()
            is_written = self._write()
            if not is_written:
                self._ending.wait(RETRY_S)
            if is_last and not (is_written and self._has_more()):
                self._release()
                return

    def _is_behind(self) -> bool:
        """Whether something is to be written that nothing is gained by waiting with."""
        return bool(self._lines or self._unwritten or self.lost_count)

    def _has_more(self) -> bool:
        with self._ready:
            return self._is_behind() or bool(self._sums)

    def _drain(self) -> list[dict[str, Any]]:
        """What waits, in the order in which it happened, as far as there is room: sums go on summing up."""
        taken, self._lines = self._lines, []
        room = self.buffer_max - len(self._unwritten) - len(taken)
        for key in list(self._sums)[: max(0, room)]:
            found = self._sums.pop(key)
            name, path, queue = key
            details = {"queue": queue, "until_epoch_us": found.until_us}
            taken.append(self._line(name, path, found.count, found.at_us, found.clock_us, details))
            room -= 1
        if self.lost_count and room > 0:
            now_us = self._now_ns() // _US
            taken.append(self._line(EVENTS_LOST, "", self.lost_count, now_us, time.monotonic_ns() // _US, {}))
            self.lost_count = 0
        taken.sort(key=_clock_of)
        return taken

    def _write(self) -> bool:
        """Whether the disk has it all. What it may have in part is written again: a line has a number."""
        try:
            while self._unwritten:
                day = self._unwritten[0]["time"][:10]
                today = [line for line in self._unwritten if line["time"][:10] == day]
                self._append(day, "".join(json.dumps(line, default=str) + "\n" for line in today).encode())
                self._unwritten = [line for line in self._unwritten if line["time"][:10] != day]
        except Exception as error:
            if not self._is_faulty:
                log.warning("event=events-not-written directory=%s error=%s: %s", self.directory, _kind(error), error)
            self._is_faulty = True
            self._release()
            return False
        if self._is_faulty:
            log.info("event=events-written-again directory=%s", self.directory)
        self._is_faulty = False
        return True

    def _append(self, day: str, data: bytes) -> None:
        if self._file is None or self._file[0] != day:
            self._release()
            folder = self.directory / f"day={day}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{_safe(self.namespace)}.{self.process}{SUFFIX}"
            self._file = (day, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640))
        descriptor = self._file[1]
        if self._is_torn:
            data = b"\n" + data
        self._is_torn = True
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        self._is_torn = False
        os.fsync(descriptor)

    def _release(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file[1])
            self._file = None


def _clock_of(line: dict[str, Any]) -> int:
    return int(line["clock_us"])


def _text_of(at_us: int) -> str:
    at = datetime.datetime.fromtimestamp(at_us // 1_000_000, datetime.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_us % 1_000_000:06d}Z"


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)[:100] or "_"


def _kind(error: BaseException) -> str:
    return type(error).__name__
