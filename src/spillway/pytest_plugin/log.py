"""The log of each namespace apart from the log of the program under test.

A broker in the same process logs through the same `logging`. Its lines would be among the program's own, in `caplog`
too. They are told apart by the thread they come from, and kept with their namespace, down to every connection.

The broker's loggers get another parent while namespaces are open, one that nobody else knows of. To switch off
`propagate` would not do: from version 9 on, pytest looks for such loggers before each test and listens to them too.
"""

import logging
import threading
from collections import deque
from typing import Final

from spillway.server.logs import RedactingFormatter

LOGGERS: Final = ("spillway.server", "spillway.admin", "spillway.store", "spillway.audit")
LINES_MAX: Final = 1_000  # of one namespace: the last ones


class NamespaceLog:
    """The last lines of one namespace, and how many there were in all."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self.count = 0

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.count += 1

    def since(self, count: int) -> list[str]:
        """The lines that came after the first `count`."""
        fresh = self.count - count
        return list(self.lines)[-fresh:] if fresh else []


class Before:
    """A logger as it was when nobody had touched it."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self.parent = logger.parent
        self.level = logger.level
        self.effective_level = logger.getEffectiveLevel()
        self.propagate = logger.propagate

    def is_heard(self, record: logging.LogRecord) -> bool:
        return self.propagate and record.levelno >= self.effective_level

    def restore(self) -> None:
        self.logger.parent = self.parent
        self.logger.setLevel(self.level)
        self.logger.propagate = self.propagate


class Switchboard(logging.Handler):
    """Stands above the broker's loggers while namespaces are open, and hands each record to where it belongs."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(RedactingFormatter())
        self.mutex = threading.Lock()
        self.logs: dict[int, NamespaceLog] = {}  # by thread
        self.before: list[Before] = []
        # Named so that `logging`, which sets parents by name, leaves it where it is put.
        self.parent = logging.Logger("spillway.pytest_plugin.switchboard")
        self.parent.propagate = False
        self.parent.addHandler(self)

    def open(self, thread_id: int, log: NamespaceLog) -> None:
        with self.mutex:
            self.logs[thread_id] = log
            if self.before:
                return
            for logger in (logging.getLogger(name) for name in LOGGERS):
                self.before.append(Before(logger))
                logger.setLevel(logging.DEBUG)
                logger.propagate = True
                logger.parent = self.parent

    def close_log(self, thread_id: int) -> None:
        with self.mutex:
            self.logs.pop(thread_id, None)
            if self.logs:
                return
            for before in self.before:
                before.restore()
            self.before.clear()

    def emit(self, record: logging.LogRecord) -> None:
        log = self.logs.get(record.thread or 0)
        if log is not None:
            log.add(self.format(record))
            return
        for before in self.before:  # another broker in this process: as if we were not here
            if record.name.startswith(before.logger.name) and before.is_heard(record):
                assert before.parent is not None, "it is not the root"
                before.parent.callHandlers(record)


SWITCHBOARD: Final = Switchboard()
