"""Bytes that copies share are kept once, for as long as one of them is there, and damage in them is damage in each."""

import random
import shutil
from pathlib import Path

import apsw
import pytest

from spillway.model.message import DEFERRED, Message
from spillway.model.records import EntityRemoved, LoadActive, MessageChanged, MessageMoved, Turn
from spillway.store.bodies import CHECK_BITS, SHARED_BYTES_MIN, body_id_of
from spillway.store.check import check
from spillway.store.database import Database
from tests.store.listening import (
    ALL,
    Desk,
    copies,
    counters,
    everything,
    fields,
    long_message,
    numbers,
    opened,
    queue_put,
    removed,
)
from tests.store.test_damage import flip, verdict


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def table(path: Path, name: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    found = connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()
    connection.close()
    return found


def published(path: Path, count: int, queues: int = 3) -> Path:
    """So many messages, each in every queue."""
    desk = opened(path)
    turn = Turn(1)
    turn.add([queue_put(entity_id) for entity_id in range(1, queues + 1)])
    for number in range(1, count + 1):
        places = [(entity_id, number) for entity_id in range(1, queues + 1)]
        turn.add(list(copies(long_message(f"message {number:05d} "), *places)))
    for entity_id in range(1, queues + 1):
        turn.counters[entity_id] = counters(count, count)
    desk.submit(turn)
    desk.journal.close()
    assert check(path) == []
    return path


def removed_with_counters(desk: Desk, entity_id: int, number: int, left: int, last: int) -> None:
    turn = Turn(1)
    turn.add([removed(entity_id, number)])
    turn.counters[entity_id] = counters(left, last)
    desk.submit(turn)


def test_the_bytes_of_copies_are_kept_once(path: Path) -> None:
    published(path, 4)
    assert [raw for _, raw in table(path, "body")] == [
        long_message(f"message {number:05d} ").raw for number in range(1, 5)
    ]
    assert [row[1:] for row in table(path, "body_count")] == [(3, -3)] * 4
    assert [row[-1] for row in table(path, "message")] == [None] * 12


def test_bytes_of_which_there_is_one_row_stay_in_it(path: Path) -> None:
    desk = opened(path)
    desk.submit_records(queue_put(1), queue_put(2), *copies(long_message("alone "), (1, 1)))
    desk.submit_records(*copies(long_message("alone in the end "), (1, 2), (2, 1)), removed(2, 1))
    desk.journal.close()
    # Two turns, one commit or two: the second message had two rows only within one turn.
    assert table(path, "body") == [] and len(table(path, "message")) == 2


def test_short_messages_are_copied(path: Path) -> None:
    desk = opened(path)
    desk.submit_records(queue_put(1), *copies(Message(b"x" * (SHARED_BYTES_MIN - 1)), (1, 1), (1, 2)))
    desk.submit_records(*copies(Message(b"x" * SHARED_BYTES_MIN), (1, 3), (1, 4)))
    desk.journal.close()
    assert [len(raw) for _, raw in table(path, "body") if isinstance(raw, bytes)] == [SHARED_BYTES_MIN]


def test_the_bytes_go_with_the_last_copy_and_their_number_is_not_used_again(path: Path) -> None:
    published(path, 1)
    desk = opened(path)
    for entity_id in (1, 3):
        removed_with_counters(desk, entity_id, 1, 0, 1)
    desk.settle()
    assert [row[1:] for row in table(path, "body_count")] == [(1, -1)]
    removed_with_counters(desk, 2, 1, 0, 1)
    desk.journal.close()
    assert table(path, "body") == [] and table(path, "body_count") == []
    assert check(path) == []
    desk = opened(path)
    desk.submit_records(*copies(long_message("next "), (1, 2), (2, 2)))
    desk.journal.close()
    assert [row[0] for row in table(path, "body")] == [body_id_of(2)]


def test_a_change_and_a_move_keep_the_reference(path: Path) -> None:
    published(path, 1)
    desk = opened(path)
    turn = Turn(1)
    turn.add([MessageChanged(1, 1, DEFERRED, 1, None), MessageMoved(2, 1, 3, 2, 0, 0, 0, None)])
    turn.counters = {1: counters(0, 1), 2: counters(0, 1), 3: counters(2, 2)}
    turn.counters[1].deferred = 1
    desk.submit(turn)
    desk.journal.close()
    assert [row[1:] for row in table(path, "body_count")] == [(3, -3)]
    assert [row[-1] for row in table(path, "message") + table(path, "parked")] == [None] * 3
    assert check(path) == []


def test_a_removed_entity_gives_up_its_bodies_piece_by_piece(path: Path) -> None:
    database = Database(path)
    database.catalogue()
    turn = Turn(1)
    turn.add([queue_put(1), queue_put(2)])
    for number in range(1, 21):
        turn.add(
            list(copies(long_message(f"{number} "), (1, number), (2, number) if number <= 10 else (1, 100 + number)))
        )
    database.begin()
    gone = Turn(2)
    gone.add([EntityRemoved(1)])
    for each in (turn, gone):
        batch = database.new_batch()
        batch.add(each)
        database.write(batch)
    left = []
    while database.tombstones:
        database.purge(7)
        left += [row[0] for row in database.connection.execute("SELECT sum(count) FROM body_count").fetchall()]
    database.commit()
    database.close()
    # 30 rows of queue 1 in steps of 7 take their counts with them; the ten of queue 2 keep ten bodies.
    assert left == [33, 26, 19, 12, 10, 10]
    assert len(table(path, "body")) == 10


def test_while_nothing_is_shared_removing_asks_nothing(path: Path) -> None:
    database = Database(path)
    database.catalogue()
    assert not database.bodies.are_there
    database.close()
    published(path.with_name("other.db"), 1)
    other = Database(path.with_name("other.db"))
    other.catalogue()
    assert other.bodies.are_there
    other.close()


# -- damage -------------------------------------------------------------------------------------------------------


def test_a_flipped_byte_in_a_body_is_reported_for_each_message_that_refers_to_it(path: Path) -> None:
    published(path, 5)
    raw = long_message("message 00003 ").raw
    at = path.read_bytes().find(raw)
    assert at > 0
    flip(path, at + 100)
    desk = opened(path)
    for entity_id in (1, 2, 3):
        rows = desk.ask(LoadActive(entity_id, 0, ALL, ALL))
        assert (rows.corrupt, numbers(rows)) == ([3], [1, 2, 4, 5])
    desk.journal.close()
    assert check(path) == [f"message 3 of queue-{entity_id}: its checksum does not hold" for entity_id in (1, 2, 3)]


def test_a_damaged_message_that_is_moved_and_removed_keeps_the_count_right(path: Path) -> None:
    published(path, 1)
    flip(path, path.read_bytes().find(long_message("message 00001 ").raw) + 100)
    desk = opened(path)
    desk.submit_records(MessageMoved(1, 1, 2, 2, 0, 0, 0, None), MessageChanged(3, 1, DEFERRED, 1, None))
    desk.settle()
    assert [row[1:] for row in table(path, "body_count")] == [(3, -3)]
    assert desk.ask(everything(2)).corrupt == [1, 2]
    desk.submit_records(removed(2, 1), removed(2, 2), removed(3, 1))
    desk.journal.close()
    assert table(path, "body") == [] and table(path, "body_count") == []


@pytest.mark.parametrize("column", ["count", "mirror"])
def test_with_a_damaged_count_the_bytes_stay(path: Path, column: str) -> None:
    published(path, 1)
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE body_count SET {column} = {column} + 2")
    connection.close()
    body_id = body_id_of(1)
    assert check(path) == [f"body {body_id}: its count is damaged"]
    desk = opened(path)
    for entity_id in (1, 2):
        removed_with_counters(desk, entity_id, 1, 0, 1)
    assert [row.message.raw for row in desk.ask(everything(3)).messages] == [long_message("message 00001 ").raw]
    desk.journal.close()
    assert len(table(path, "body")) == 1


def test_a_count_that_is_wrong_is_found_by_the_full_check(path: Path) -> None:
    published(path, 2)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE body_count SET count = 4, mirror = -4 WHERE body_id = ?", (body_id_of(1),))
    connection.execute("DELETE FROM body_count WHERE body_id = ?", (body_id_of(2),))
    connection.close()
    assert check(path) == [
        f"body {body_id_of(1)}: 3 messages refer to it, its count says 4",
        f"body {body_id_of(2)}: messages refer to it, and nothing counts them",
        f"body {body_id_of(2)}: it has no count",
    ]


def test_a_reference_with_a_flipped_bit_never_leads_to_another_body() -> None:
    known = {body_id_of(number) for number in range(1, 5_000)}
    for number in range(1, 5_000):
        body_id = body_id_of(number)
        assert body_id >> CHECK_BITS == number
        assert not any(body_id ^ 1 << bit in known for bit in range(40))


def test_a_lost_body_is_damage_of_its_messages_and_of_no_others(path: Path) -> None:
    published(path, 2)
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM body WHERE id = ?", (body_id_of(1),))
    connection.close()
    desk = opened(path)
    rows = desk.ask(everything(1))
    assert (rows.corrupt, numbers(rows)) == ([1], [2])
    desk.journal.close()


def test_wherever_a_byte_is_flipped_it_is_never_passed_over_in_silence(path: Path, tmp_path: Path) -> None:
    published(path, 300, queues=2)
    desk = opened(path)
    sound = {row.sequence_number: fields(row) for row in desk.ask(everything(1)).messages}
    desk.journal.close()
    size = path.stat().st_size
    chance = random.Random(4711)
    copy = tmp_path / "copy.db"
    verdicts = []
    for _ in range(200):
        shutil.copyfile(path, copy)
        flip(copy, chance.randrange(size), 1 << chance.randrange(8))
        verdicts.append(verdict(copy, sound))
        copy.with_name("copy.db-wal").unlink(missing_ok=True)
    assert verdicts.count("reported") > 80
