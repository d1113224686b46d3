"""A process to be killed: turn n adds message n and removes n - 100; durable tickets are written to stdout.

With a number behind the path it kills itself when that turn is durable, its log as the last commit left it.
"""

import os
import queue
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from spillway.model.message import Message, StoredMessage
from spillway.model.records import EntityPut, MessageAdded, MessageRemoved, Rows, Turn
from spillway.store.sqlite import SqliteJournal

AHEAD = 20  # turns under way at a time, so that a kill falls into a group commit


class Writer:
    def __init__(self, path: Path, last: int | None) -> None:
        # Where no last turn is given, checkpoints are killed too.
        self.journal = SqliteJournal(path, wal_bytes_max=300_000) if last is None else SqliteJournal(path)
        self.last = last
        self.news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.durable = 0
        self.journal.recover()
        self.journal.start(self, self.news.put if last is None else self.hear_at_once)

    def run(self) -> None:
        number = 0
        while True:
            number += 1
            turn = Turn(number)
            message = Message(b"x" * 1_000)
            turn.add([MessageAdded(1, StoredMessage(message, number, number))])
            if number == 1:
                turn.groups.insert(0, [EntityPut(1, "queue", "queue-1", "{}", 0)])
            if number > 100:
                turn.add([MessageRemoved(1, number - 100)])
            self.journal.submit(turn, number)
            while self.durable < number - AHEAD:
                self.news.get()()

    def hear_at_once(self, news: Callable[[], None]) -> None:
        """On the journal's own thread, before it begins anything else."""
        news()
        self.news.put(lambda: None)

    def on_durable(self, ticket: int) -> None:
        if self.last is not None and ticket >= self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.durable = ticket
        sys.stdout.write(f"{ticket}\n")
        sys.stdout.flush()

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        raise AssertionError("nothing was asked")

    def on_copied(self) -> None:
        pass

    def on_failed(self, error: BaseException) -> None:
        raise error


Writer(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None).run()
