"""Message sessions, on both journals: counted as messages come and go, found, listed, and their state kept."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.model import limits
from spillway.model.message import ACTIVE, DEFERRED, NEVER
from spillway.model.records import (
    EntityPut,
    EntityRemoved,
    LoadActive,
    LoadActiveOfSessions,
    LoadFrom,
    LoadSession,
    LoadSessionNames,
    LoadSessions,
    MessageAdded,
    MessageChanged,
    MessageMoved,
    MessageRemoved,
    Record,
    Rows,
    SessionStatePut,
    Turn,
)
from spillway.store.check import check
from tests.contract.kinds import KINDS, open_kind
from tests.store.listening import Desk, stored


class Book:
    """One journal with two entities: 1 requires sessions, 2 is its dead-letter queue."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path
        self.journal = open_kind(kind, path)
        self.journal.recover()
        self.desk = Desk(self.journal).start()
        self.write(EntityPut(1, "queue", "q", "{}", 0), EntityPut(2, "dead-letter-queue", "q/d", "{}", 1))

    def write(self, *records: Record) -> None:
        turn = Turn(1_000)
        turn.add(list(records))
        self.desk.submit(turn)

    def reopen(self) -> None:
        self.desk.settle()
        if self.kind != "memory":
            self.journal.close()
            assert [finding for finding in check(self.path) if "session" in finding] == []
            self.journal = open_kind(self.kind, self.path)
        self.journal.recover()
        self.desk = Desk(self.journal).start()

    def add(self, number: int, session_id: str) -> MessageAdded:
        row = stored(number)
        row.session_id = row.message.session_id = session_id
        return MessageAdded(1, row)

    def ready(self, count: int = 100) -> list[tuple[str, int]]:
        rows: Rows = self.desk.ask(LoadSessions(1, count))
        return [(row.session_id, row.active) for row in rows.sessions]

    def state(self, session_id: str) -> bytes | None:
        rows = self.desk.ask(LoadSession(1, session_id))
        return rows.sessions[0].state if rows.sessions else None

    def names(self, since_ms: int, skip: int = 0, count: int = 100) -> list[str]:
        return [row.session_id for row in self.desk.ask(LoadSessionNames(1, since_ms, skip, count)).sessions]


@pytest.fixture(params=KINDS)
def book(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Book]:
    made = Book(request.param, tmp_path / "journal.db")
    yield made
    made.journal.close()


def test_sessions_with_messages_are_found_the_longest_waiting_first(book: Book) -> None:
    book.write(book.add(1, "b"), book.add(2, "a"), book.add(3, "b"))
    assert book.ready() == [("b", 2), ("a", 1)]
    assert book.ready(1) == [("b", 2)]
    book.write(MessageRemoved(1, 1, "b"), MessageRemoved(1, 3, "b"))
    book.write(book.add(4, "b"))
    assert book.ready() == [("a", 1), ("b", 1)]
    book.reopen()
    assert book.ready() == [("a", 1), ("b", 1)]


def test_sessions_are_found_page_by_page(book: Book) -> None:
    book.write(*[book.add(number, f"s{number:03}") for number in range(1, 251)], book.add(251, "s001"))
    found: list[str] = []
    after = 0
    while rows := book.desk.ask(LoadSessions(1, 100, after)).sessions:
        found += [row.session_id for row in rows]
        after = rows[-1].ready_since
    assert found == [f"s{number:03}" for number in range(1, 251)]
    book.write(MessageRemoved(1, 7, "s007"))
    book.write(book.add(252, "s007"))
    assert [row.session_id for row in book.desk.ask(LoadSessions(1, 100, after)).sessions] == ["s007"]


def test_the_messages_of_many_sessions_are_read_in_one_go(book: Book) -> None:
    book.write(*[book.add(number, "abc"[number % 3]) for number in range(1, 31)])
    rows = book.desk.ask(LoadActiveOfSessions(1, {"b": 0, "none": 0, "a": 20}, 4, 1 << 20))
    assert list(rows.by_session) == ["b", "none", "a"]
    read = {name: [row.sequence_number for row in part.messages] for name, part in rows.by_session.items()}
    assert read == {"b": [1, 4, 7, 10], "none": [], "a": [21, 24, 27, 30]}
    assert [part.is_cut for part in rows.by_session.values()] == [True, False, False]


def test_sessions_beyond_the_bytes_of_one_go_are_left_to_the_next(book: Book) -> None:
    book.write(*[book.add(number, "abc"[number % 3]) for number in range(1, 31)])
    size = len(stored(1).message.raw)
    rows = book.desk.ask(LoadActiveOfSessions(1, {"a": 0, "b": 0, "c": 0}, 100, size * 12))
    assert list(rows.by_session) == ["a", "b"]
    rows = book.desk.ask(LoadActiveOfSessions(1, {"a": 0, "b": 0, "c": 0}, 100, 1))
    assert list(rows.by_session) == ["a"]
    assert rows.by_session["a"].messages


def test_the_messages_of_one_session_are_read_in_order(book: Book) -> None:
    book.write(*[book.add(number, "ab"[number % 2]) for number in range(1, 20)])
    found = book.desk.ask(LoadActive(1, 4, 5, 1 << 20, "a"))
    assert [row.sequence_number for row in found.messages] == [6, 8, 10, 12, 14]
    assert found.is_cut
    assert all(row.session_id == "a" for row in found.messages)
    browsed = book.desk.ask(LoadFrom(1, 10, 3, 1 << 20, "b"))
    assert [row.sequence_number for row in browsed.messages] == [11, 13, 15]


def test_a_deferred_or_moved_message_leaves_its_session(book: Book) -> None:
    book.write(book.add(1, "a"), book.add(2, "a"), book.add(3, "a"))
    book.write(MessageChanged(1, 1, DEFERRED, 0, None))
    book.write(MessageMoved(1, 2, 2, 1, 1_000, NEVER, 1, None))
    assert book.ready() == [("a", 1)]
    book.write(MessageChanged(1, 3, ACTIVE, 1, None))
    assert book.ready() == [("a", 1)]
    book.reopen()
    assert book.ready() == [("a", 1)]
    dead = book.desk.ask(LoadFrom(2, 0, 10, 1 << 20))
    assert [row.session_id for row in dead.messages] == [None]


def test_state_is_kept_and_cleared(book: Book) -> None:
    book.write(SessionStatePut(1, "a", b"one", 5), SessionStatePut(1, "b", b"two", 6))
    book.write(SessionStatePut(1, "b", b"three", 7), book.add(1, "c"))
    book.reopen()
    assert (book.state("a"), book.state("b"), book.state("c")) == (b"one", b"three", None)
    assert book.names(6) == ["b"]
    assert book.names(5, skip=1) == ["b"]
    assert book.names(NEVER) == ["a", "b", "c"]
    assert book.names(NEVER, skip=1, count=1) == ["b"]
    book.write(SessionStatePut(1, "a", None, 8))
    assert book.state("a") is None
    assert book.names(1) == ["b"]
    assert book.names(NEVER) == ["b", "c"]


def test_an_entity_that_is_removed_takes_its_sessions_along(book: Book) -> None:
    book.write(book.add(1, "a"), SessionStatePut(1, "a", b"s", 5))
    book.write(EntityRemoved(1))
    book.write(EntityPut(3, "queue", "q", "{}", 0))
    assert book.ready() == []
    assert book.state("a") is None
    book.reopen()
    assert book.ready() == []


def test_random_comings_and_goings_are_counted_right(book: Book) -> None:
    chance = random.Random(11)
    held: dict[int, str] = {}
    number = 0
    for _ in range(150):
        records: list[Record] = []
        for _ in range(chance.randint(1, 12)):
            if held and chance.random() < 0.45:
                gone = chance.choice(list(held))
                records.append(MessageRemoved(1, gone, held.pop(gone)))
            else:
                number += 1
                held[number] = f"s{chance.randint(0, 9)}"
                records.append(book.add(number, held[number]))
        book.write(*records)
        if chance.random() < 0.05:
            book.reopen()
    counts = {name: list(held.values()).count(name) for name in set(held.values())}
    assert dict(book.ready()) == counts
    assert book.names(NEVER) == sorted(counts)


def test_browsing_a_session_does_not_look_at_the_messages_that_others_have_waiting(book: Book) -> None:
    book.write(*(book.add(number, "many") for number in range(1, 3_001)), book.add(3_001, "few"))
    rows = book.desk.ask(LoadFrom(1, 0, 10, 1 << 30, "few"))
    assert ([row.sequence_number for row in rows.messages], rows.is_cut) == ([3_001], False)


def test_browsing_a_session_looks_at_so_many_parked_messages_of_others_and_says_how_far_it_came(book: Book) -> None:
    records: list[Record] = [book.add(number, "many") for number in range(1, 2_501)]
    records += [MessageChanged(1, number, DEFERRED, 0, None) for number in range(1, 2_501)]
    book.write(*records, book.add(2_501, "few"))
    first = 0
    pages: list[list[int]] = []
    for _ in range(10):
        rows = book.desk.ask(LoadFrom(1, first, 10, 1 << 30, "few"))
        pages.append([row.sequence_number for row in rows.messages])
        if not rows.is_cut:
            break
        assert rows.read_upto - first <= limits.QUERY_ROWS_MAX
        first = rows.read_upto + 1
    assert pages == [[], [], [2_501]]
