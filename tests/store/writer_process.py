"""A process to be killed: turn n adds message n and removes n - 100; durable tickets are written to stdout."""

import queue
import sys
from collections.abc import Callable
from pathlib import Path

from spillway.model.message import Message, StoredMessage
from spillway.model.records import EntityPut, MessageAdded, MessageRemoved, Rows, Turn
from spillway.store.sqlite import SqliteJournal

AHEAD = 20  # turns under way at a time, so that a kill falls into a group commit


class Writer:
    def __init__(self, path: Path) -> None:
        self.journal = SqliteJournal(path, wal_bytes_max=300_000)  # checkpoints are killed too
        self.news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.durable = 0
        self.journal.recover()
        self.journal.start(self, self.news.put)

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

    def on_durable(self, ticket: int) -> None:
        self.durable = ticket
        sys.stdout.write(f"{ticket}\n")
        sys.stdout.flush()

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        raise AssertionError("nothing was asked")

    def on_copied(self) -> None:
        pass

    def on_failed(self, error: BaseException) -> None:
        raise error


Writer(Path(sys.argv[1])).run()
