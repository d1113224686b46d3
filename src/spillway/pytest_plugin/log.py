"""The log of each namespace apart from the log of the program under test.

A broker in the same process logs through the same `logging`. Its lines would be among the program's own, in `caplog`
too. They are told apart by the thread they come from, and kept with their namespace, down to every connection.
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
        """Those that came when there were `count` of them."""
        fresh = self.count - count
        return list(self.lines)[-fresh:] if fresh else []


class Switchboard(logging.Handler):
    """Stands at the broker's loggers while namespaces are open, and hands each record to where it belongs."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(RedactingFormatter())
        self.mutex = threading.Lock()
        self.logs: dict[int, NamespaceLog] = {}  # by thread
        self.before: list[tuple[logging.Logger, int, int, bool]] = []  # logger, its level, its effective one, propagate

    def open(self, thread_id: int, log: NamespaceLog) -> None:
        with self.mutex:
            self.logs[thread_id] = log
            if self.before:
                return
            for logger in (logging.getLogger(name) for name in LOGGERS):
                self.before.append((logger, logger.level, logger.getEffectiveLevel(), logger.propagate))
                logger.addHandler(self)
                logger.setLevel(logging.DEBUG)
                logger.propagate = False

    def close_log(self, thread_id: int) -> None:
        with self.mutex:
            self.logs.pop(thread_id, None)
            if self.logs:
                return
            for logger, level, _, propagate in self.before:
                logger.removeHandler(self)
                logger.setLevel(level)
                logger.propagate = propagate
            self.before.clear()

    def emit(self, record: logging.LogRecord) -> None:
        log = self.logs.get(record.thread or 0)
        if log is not None:
            log.add(self.format(record))
            return
        for logger, _, effective, propagate in self.before:  # another broker in this process: as if we were not here
            if record.name.startswith(logger.name) and propagate and record.levelno >= effective:
                logging.getLogger().callHandlers(record)


SWITCHBOARD: Final = Switchboard()
