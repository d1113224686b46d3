"""Ids of accepted messages, on both journals: kept in order, indexed, found, forgotten, and gone with their entity."""

import random
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from spillway.model import limits
from spillway.model.message import NEVER
from spillway.model.message_ids import DIGEST_BYTES, ID_BYTES, number_of, pack_id, place_at, place_of
from spillway.model.records import (
    EntityPut,
    EntityRemoved,
    IdRows,
    LoadEntity,
    LoadIds,
    LoadIndexedIds,
    LoadOldIds,
    MessageIdSeen,
    MessageIdsForgotten,
    MessageIdsIndexed,
    Record,
    Turn,
)
from spillway.store.check import check
from spillway.store.sqlite import SqliteJournal
from tests.contract.kinds import KINDS, open_kind
from tests.store.listening import Desk

ALL = 1_000_000


def digest(name: object) -> bytes:
    return blake2b(str(name).encode(), digest_size=DIGEST_BYTES).digest()


def seen(entity_id: int, number: int, name: object, accepted_ms: int) -> MessageIdSeen:
    return MessageIdSeen(entity_id, number, pack_id(digest(name), place_of(number, accepted_ms)))


class Book:
    """One journal with the queues 1 and 3."""

    def __init__(self, kind: str, path: Path) -> None:
        self.path = path
        self.kind = kind
        self.journal = open_kind(kind, path)
        self.journal.recover()
        self.desk = Desk(self.journal).start()
        self.write(EntityPut(1, "queue", "one", "{}", 0), EntityPut(3, "queue", "three", "{}", 0))

    def write(self, *records: Record) -> None:
        turn = Turn(1_000)
        turn.add(list(records))
        self.desk.submit(turn)
        self.desk.settle()
        self.desk.ask(LoadEntity(1))  # whoever asks has all of it in rows: these ids have one of their own

    def reopen(self) -> dict[int, int]:
        """The oldest times of ids that the catalogue says, by entity."""
        self.desk.settle()
        if self.kind != "memory":
            self.journal.close()
            assert check(self.path) == []
            self.journal = open_kind(self.kind, self.path)
        catalogue = self.journal.recover()
        self.desk = Desk(self.journal).start()
        return {row.put.entity_id: row.oldest_id_ms for row in catalogue.entities}

    def ids(self, query: LoadIds | LoadOldIds | LoadIndexedIds) -> IdRows:
        found = self.desk.ask(query).ids
        assert found is not None
        return found

    def numbers(self, entity_id: int, after: int = 0, count: int = ALL) -> list[int]:
        return numbers_in(self.ids(LoadIds(entity_id, after, count, True)))

    def indexed(self, entity_id: int, *names: object) -> dict[bytes, int]:
        records = self.ids(LoadIndexedIds(entity_id, [digest(name) for name in names])).records
        return {
            records[at : at + DIGEST_BYTES]: number_of(place_at(records, at)) for at in range(0, len(records), ID_BYTES)
        }


def numbers_in(ids: IdRows) -> list[int]:
    return [number_of(place_at(ids.records, at)) for at in range(0, len(ids.records), ID_BYTES)]


@pytest.fixture(params=KINDS)
def book(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Book]:
    made = Book(request.param, tmp_path / "journal.db")
    yield made
    made.journal.close()


def test_ids_are_read_in_the_order_they_were_accepted_and_never_those_of_another_entity(book: Book) -> None:
    book.write(seen(1, 1, "a", 100), seen(3, 7, "a", 100), seen(1, 2, "b", 100))
    book.write(seen(1, 5, "c", 200))
    assert book.reopen() == {1: 100, 3: 100}
    assert book.numbers(1) == [1, 2, 5]
    assert book.numbers(1, after=2) == [5]
    assert book.numbers(3) == [7]
    ids = book.ids(LoadIds(1, 0, ALL, False))
    assert (ids.records, ids.count, ids.upto, ids.accepted_ms) == (b"", 3, 5, 200)
    assert (ids.indexed_upto, ids.indexed_ms) == (0, 0)


def test_an_answer_is_cut_after_the_row_that_has_enough(book: Book) -> None:
    for number in range(1, 11):
        book.write(seen(1, number, number, number * 100))
    rows = book.desk.ask(LoadIds(1, 0, 4, True))
    assert rows.ids is not None
    assert (rows.is_cut, numbers_in(rows.ids), rows.ids.upto) == (True, [1, 2, 3, 4], 4)
    rows = book.desk.ask(LoadIds(1, 4, 6, True))
    assert rows.ids is not None
    assert (rows.is_cut, numbers_in(rows.ids)) == (False, [5, 6, 7, 8, 9, 10])


def test_one_commit_may_have_more_ids_than_a_row(book: Book) -> None:
    count = limits.ID_ROW_MAX * 2 + 5
    book.write(*[seen(1, number, number, 100) for number in range(1, count + 1)])
    book.reopen()
    assert book.numbers(1) == list(range(1, count + 1))


def test_indexed_ids_are_found_by_their_digest_and_not_read_in_order_any_more(book: Book) -> None:
    for number, name in enumerate("abacd", start=1):
        book.write(seen(1, number, name, number * 100))
    book.write(MessageIdsIndexed(1, 2, 200))
    assert book.indexed(1, "a", "b", "c") == {digest("a"): 1, digest("b"): 2}
    book.write(MessageIdsIndexed(1, 4, 400))
    assert book.reopen() == {1: 100, 3: NEVER}
    assert book.indexed(1, "a", "b", "c", "d", "a") == {digest("a"): 3, digest("b"): 2, digest("c"): 4}
    assert book.indexed(3, "a") == {}
    ids = book.ids(LoadIds(1, 0, ALL, True))
    assert (numbers_in(ids), ids.count, ids.indexed_upto, ids.indexed_ms) == ([5], 1, 4, 400)


def test_old_ids_are_found_with_the_time_of_the_next(book: Book) -> None:
    for number in range(1, 7):
        book.write(seen(1, number, number, number * 100))
    book.write(MessageIdsIndexed(1, 2, 200))
    rows = book.desk.ask(LoadOldIds(1, 400, ALL))
    assert rows.ids is not None
    assert (rows.ids.upto, rows.ids.count, rows.next_ms, rows.is_cut) == (4, 2, 500, False)
    rows = book.desk.ask(LoadOldIds(1, 400, 3))
    assert rows.ids is not None
    assert (rows.ids.upto, rows.ids.count, rows.next_ms, rows.is_cut) == (3, 1, 400, True)
    rows = book.desk.ask(LoadOldIds(1, 99, ALL))
    assert rows.ids is not None
    assert (rows.ids.upto, rows.next_ms, rows.is_cut) == (0, 100, False)
    rows = book.desk.ask(LoadOldIds(1, 600, ALL))
    assert rows.ids is not None
    assert (rows.ids.upto, rows.next_ms, rows.is_cut) == (6, NEVER, False)


def test_forgotten_ids_leave_the_index_too_unless_they_came_again(book: Book) -> None:
    for number, name in enumerate("abac", start=1):
        book.write(seen(1, number, name, number * 100))
    book.write(MessageIdsIndexed(1, 3, 300))
    book.write(MessageIdsForgotten(1, 2))
    assert book.indexed(1, "a", "b") == {digest("a"): 3}
    assert book.reopen() == {1: 300, 3: NEVER}
    book.write(MessageIdsForgotten(1, 3))
    assert book.indexed(1, "a", "b") == {}
    ids = book.ids(LoadIds(1, 0, ALL, True))
    assert (numbers_in(ids), ids.indexed_upto) == ([4], 0)
    book.write(MessageIdsForgotten(1, 4))
    assert book.reopen() == {1: NEVER, 3: NEVER}


def test_ids_go_with_their_entity(book: Book) -> None:
    book.write(*[seen(1, number, number, 100) for number in range(1, 3_000)], seen(3, 1, 1, 100))
    book.write(MessageIdsIndexed(1, 2_999, 100))
    book.write(EntityRemoved(1))
    assert book.desk.ask(LoadIndexedIds(1, [digest(1)])).ids is None or book.indexed(1, 1) == {}
    assert book.reopen() == {3: 100}
    assert book.numbers(3) == [1]


def test_after_a_removed_entity_is_buried_nothing_of_its_ids_is_left(tmp_path: Path) -> None:
    book = Book("sqlite", tmp_path / "journal.db")
    book.write(*[seen(1, number, number, 100) for number in range(1, 3_000)])
    book.write(MessageIdsIndexed(1, 2_999, 100))
    book.write(EntityRemoved(1))
    assert isinstance(book.journal, SqliteJournal)
    while True:
        book.journal.close()
        book.journal = SqliteJournal(book.path)
        book.journal.recover()
        database = book.journal._database
        assert database is not None
        if not database.tombstones:
            break
        book.desk = Desk(book.journal).start()
        book.desk.settle()
    for table in ("accepted_id", "id_index", "id_indexed"):
        assert database.connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]
    database.close()


@pytest.mark.parametrize("seed", range(8))
def test_all_journals_answer_alike(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    books = [Book(kind, tmp_path / f"{kind}.db") for kind in KINDS]
    number = indexed = now_ms = 0
    for _ in range(150):
        roll = chance.random()
        now_ms += chance.randint(0, 50)
        if roll < 0.6:
            records: list[Record] = []
            for _ in range(chance.randint(1, 4)):
                number += chance.randint(1, 3)
                records.append(seen(1, number, chance.randint(0, 40), now_ms))
            for book in books:
                book.write(*records)
        elif roll < 0.75:
            answers = [book.ids(LoadIds(1, 0, ALL, True)) for book in books]
            assert answers[0].records == answers[1].records
            rows = books[1].ids(LoadIds(1, 0, 5, False))  # by the rows of SQLite, which are the coarser ones
            if rows.upto > 0:
                indexed = rows.upto
                for book in books:
                    book.write(MessageIdsIndexed(1, rows.upto, rows.accepted_ms))
        elif roll < 0.85:
            rows = books[1].ids(LoadOldIds(1, now_ms - 500, 20))
            if rows.upto > 0:
                for book in books:
                    book.write(MessageIdsForgotten(1, rows.upto))
        else:
            oldest = [book.reopen()[1] for book in books]
            assert (oldest[0] == NEVER) == (oldest[1] == NEVER)
        found = [book.indexed(1, *range(41)) for book in books]
        assert found[0] == found[1]
    assert indexed > 0
    for book in books:
        book.journal.close()
