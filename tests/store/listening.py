"""A listener that writes down what it is told, on a thread of its own making: the test's."""

import queue
from collections.abc import Callable
from pathlib import Path

from spillway.model.message import ACTIVE, Message, StoredMessage
from spillway.model.records import (
    Counters,
    EntityPut,
    LoadFrom,
    MessageAdded,
    MessageRemoved,
    Query,
    Record,
    Rows,
    Turn,
)
from spillway.store.bodies import SHARED_BYTES_MIN
from spillway.store.journal import Journal
from spillway.store.sqlite import WAL_BYTES_MAX, SqliteJournal

WAIT_S = 30  # for a writer thread that has died without a word
ALL = 1 << 40


class Desk:
    """Gives out tickets, keeps what comes back. `post` leads to a queue that the test's thread works off."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.told: list[tuple[str, int]] = []  # ("durable" | "loaded", ticket), in order
        self.durable = 0
        self.rows: dict[int, Rows] = {}
        self.failures: list[BaseException] = []
        self.ticket = 0
        self.asked = 0
        self.copied_count = 0
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def start(self) -> "Desk":
        self.journal.start(self, self._news.put)
        return self

    def submit(self, turn: Turn) -> int:
        self.ticket += 1
        self.journal.submit(turn, self.ticket)
        return self.ticket

    def submit_records(self, *records: Record, now_ms: int = 1) -> int:
        turn = Turn(now_ms)
        turn.add(list(records))
        return self.submit(turn)

    def load(self, query: Query) -> int:
        self.ticket += 1
        self.journal.load(query, self.ticket)
        self.asked += 1
        return self.ticket

    def ask(self, query: Query) -> Rows:
        ticket = self.load(query)
        self.wait(lambda: ticket in self.rows)
        return self.rows[ticket]

    def settle(self) -> None:
        """Until all that was submitted is durable, and all that was asked is answered."""
        ticket = self.submit(Turn(0))
        self.wait(lambda: self.durable >= ticket and len(self.rows) == self.asked)

    def wait(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if self.failures:
                raise AssertionError("the journal has failed") from self.failures[0]
            self._news.get(timeout=WAIT_S)()

    def wait_for_failure(self) -> BaseException:
        while not self.failures:
            self._news.get(timeout=WAIT_S)()
        return self.failures[0]

    def is_durable_or_failed(self, ticket: int) -> bool:
        """Waits until one of both is known. True: durable."""
        while self.durable < ticket and not self.failures:
            self._news.get(timeout=WAIT_S)()
        return self.durable >= ticket

    def hear_one(self) -> None:
        self._news.get(timeout=WAIT_S)()

    def hear_all(self) -> None:
        """What has been posted so far."""
        while not self._news.empty():
            self._news.get_nowait()()

    def on_durable(self, ticket: int) -> None:
        assert ticket > self.durable, "in order, each at most once"
        self.durable = ticket
        self.told.append(("durable", ticket))

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        self.rows[ticket] = rows
        self.told.append(("loaded", ticket))

    def on_copied(self) -> None:
        self.copied_count += 1

    def on_failed(self, error: BaseException) -> None:
        self.failures.append(error)


def opened(path: Path, synchronous: str = "FULL", vfs: str | None = None, wal_bytes_max: int = WAL_BYTES_MAX) -> Desk:
    journal = SqliteJournal(path, synchronous=synchronous, vfs=vfs, wal_bytes_max=wal_bytes_max)
    journal.recover()
    return Desk(journal).start()


def stored(number: int, body: bytes = b"body", state: int = ACTIVE, time_ms: int = 0) -> StoredMessage:
    message = Message(body)
    message.message_id = f"id-{number}"
    made = StoredMessage(message, number, 1_000 + number)
    made.state = state
    if state == ACTIVE:
        made.expires_ms = time_ms
    else:
        made.due_ms = time_ms
    return made


def added(entity_id: int, number: int, body: bytes = b"body", state: int = ACTIVE, time_ms: int = 0) -> MessageAdded:
    return MessageAdded(entity_id, stored(number, body, state, time_ms))


def copies(message: Message, *places: tuple[int, int]) -> list[MessageAdded]:
    """One message in several places (entity and number), as a topic hands it to its subscriptions."""
    return [MessageAdded(entity_id, StoredMessage(message, number, 1_000 + number)) for entity_id, number in places]


def long_message(name: str) -> Message:
    """Long enough for its copies to share a body."""
    message = Message(name.encode() * (SHARED_BYTES_MIN // len(name) + 1))
    message.message_id = name
    return message


def removed(entity_id: int, number: int) -> MessageRemoved:
    return MessageRemoved(entity_id, number)


def queue_put(entity_id: int) -> EntityPut:
    return EntityPut(entity_id, "queue", f"queue-{entity_id}", '{"lock_duration_ms": 60000}', 0)


def counters(active: int, last_sequence_number: int) -> Counters:
    made = Counters()
    made.active = active
    made.last_sequence_number = last_sequence_number
    return made


def everything(entity_id: int) -> LoadFrom:
    return LoadFrom(entity_id, 0, ALL, ALL)


def numbers(rows: Rows) -> list[int]:
    return [row.sequence_number for row in rows.messages]


def fields(row: StoredMessage) -> tuple[object, ...]:
    """All that is remembered of a message, comparable."""
    return (
        row.sequence_number,
        row.state,
        row.due_ms,
        row.enqueued_ms,
        row.expires_ms,
        row.delivery_count,
        row.enqueue_sequence_number,
        None if row.overlay is None else row.overlay.pack(),
        row.message.pack_meta(),
        row.message.raw,
    )
