"""What is left of many turns when they share a commit."""

import pytest

from spillway.broker.topic import weigh_once
from spillway.model.message import DEFERRED, Message, StoredMessage
from spillway.model.records import ROW_BYTES, EntityRemoved, MessageAdded, MessageChanged, MessageMoved, Record, Turn
from spillway.store.batch import Batch
from spillway.store.rows import DamagedRow, columns_of, row_key
from tests.store.listening import added, counters, queue_put, removed, stored


class Shelf:
    """What is durable already."""

    def __init__(self, *numbers: int) -> None:
        self.rows: dict[int, StoredMessage | DamagedRow] = {row_key(1, n): stored(n) for n in numbers}

    def batch(self, *records: Record) -> Batch:
        batch = Batch(self.rows.get)
        for record in records:
            turn = Turn(1)
            turn.add([record])
            batch.add(turn)
        return batch


def moved(from_number: int, to_entity_id: int, to_number: int) -> MessageMoved:
    return MessageMoved(1, from_number, to_entity_id, to_number, 0, 0, 0, None)


def test_a_message_added_and_removed_is_not_written_at_all() -> None:
    batch = Shelf().batch(added(1, 1), removed(1, 1))
    assert (batch.fresh, batch.gone) == ({}, set())


def test_a_message_added_changed_moved_and_removed_is_not_written_at_all() -> None:
    batch = Shelf().batch(added(1, 1), MessageChanged(1, 1, DEFERRED, 1, None), moved(1, 2, 9), removed(2, 9))
    assert (batch.fresh, batch.gone) == ({}, set())


def test_a_message_added_and_moved_is_written_once_at_its_last_place() -> None:
    batch = Shelf().batch(added(1, 1), moved(1, 2, 9))
    assert (list(batch.fresh), batch.gone) == ([row_key(2, 9)], set())


def test_a_durable_message_that_is_changed_and_removed_is_only_deleted() -> None:
    batch = Shelf(1).batch(MessageChanged(1, 1, DEFERRED, 1, None), removed(1, 1))
    assert (batch.fresh, batch.gone) == ({}, {row_key(1, 1)})


def test_a_durable_message_that_is_moved_leaves_its_old_place() -> None:
    batch = Shelf(1).batch(moved(1, 2, 9), removed(2, 9))
    assert (batch.fresh, batch.gone) == ({}, {row_key(1, 1)})


def test_a_change_does_not_touch_the_object_that_was_handed_in() -> None:
    record = added(1, 1)
    batch = Shelf().batch(record, MessageChanged(1, 1, DEFERRED, 7, None))
    assert (record.stored.state, record.stored.delivery_count) == (0, 0)
    written = batch.fresh[row_key(1, 1)]
    assert isinstance(written, StoredMessage) and (written.state, written.delivery_count) == (DEFERRED, 7)


def test_only_numbers_without_a_gap_are_deleted_as_one_range() -> None:
    batch = Shelf().batch(*(removed(1, n) for n in (5, 3, 1, 2, 7, 8, 10)), removed(2, 11))
    one = row_key(1, 0)
    assert batch.runs_gone() == [
        (one + 1, one + 3),
        (one + 5, one + 5),
        (one + 7, one + 8),
        (one + 10, one + 10),
        (row_key(2, 11), row_key(2, 11)),
    ]


def test_a_removed_entity_is_not_written_and_leaves_no_counters() -> None:
    batch = Shelf().batch(queue_put(1), added(1, 1), added(2, 1), EntityRemoved(1))
    assert (list(batch.fresh), batch.puts, batch.removed) == ([row_key(2, 1)], {}, {1})


def test_the_last_counters_and_the_latest_time_stand() -> None:
    batch = Batch(Shelf().rows.get)
    for now_ms, active in ((5, 1), (9, 2), (7, 3)):
        turn = Turn(now_ms)
        turn.counters[1] = counters(active, active)
        batch.add(turn)
    assert (batch.counters[1].active, batch.clock_ms) == (3, 9)


def test_a_damaged_message_stays_damaged_wherever_it_goes() -> None:
    shelf = Shelf()
    columns = columns_of(row_key(1, 1), stored(1))
    shelf.rows[row_key(1, 1)] = DamagedRow((*columns[:-1], b"flipped"))
    for record in (MessageChanged(1, 1, 0, 1, None), moved(1, 2, 9)):
        (row,) = shelf.batch(record).fresh.values()
        assert isinstance(row, DamagedRow)


def test_a_change_of_a_message_that_is_not_there_is_our_own_fault() -> None:
    with pytest.raises(AssertionError, match="no message 1 in entity 1"):
        Shelf().batch(MessageChanged(1, 1, 0, 1, None))
    with pytest.raises(AssertionError, match="removed"):
        Shelf(1).batch(removed(1, 1), moved(1, 2, 9))


def test_counters_that_a_younger_batch_has_too_are_written_with_that_one() -> None:
    older, younger = Batch(Shelf().rows.get), Batch(Shelf().rows.get)
    for batch, entities in ((older, (1, 2)), (younger, (2, 3))):
        turn = Turn(1)
        turn.counters = {entity_id: counters(1, 1) for entity_id in entities}
        turn.tallies = dict.fromkeys(entities, b"counted")
        batch.add(turn)
    older.leave_counts_to(younger)
    assert (set(older.counters), set(older.tallies)) == ({1}, {1})
    assert (set(younger.counters), set(younger.tallies)) == ({2, 3}, {2, 3})


def test_copies_that_share_a_body_weigh_as_much_going_as_coming() -> None:
    message = Message(b"x" * 100_000)
    for others in (0, 3):  # some are removed by the younger batch
        older = Shelf().batch()
        younger = Batch(Shelf().rows.get, older=older)
        group: list[Record] = [MessageAdded(entity_id, StoredMessage(message, 1, 1)) for entity_id in range(1, 11)]
        weigh_once(message, group, 0)
        turn = Turn(1)
        turn.add(group)
        older.add(turn)
        assert older.held_bytes == turn.size_bytes == 10 * ROW_BYTES + 100_000
        for batch, entities in ((older, range(1 + others, 11)), (younger, range(1, 1 + others))):
            for entity_id in entities:
                gone = Turn(1)
                gone.add([removed(entity_id, 1)])
                batch.add(gone)
        assert (older.held_bytes, younger.held_bytes) == (0, 0)


def test_a_light_copy_that_is_changed_and_removed_weighs_nothing_in_the_end() -> None:
    message = Message(b"x" * 1_000)
    group: list[Record] = [MessageAdded(entity_id, StoredMessage(message, 1, 1)) for entity_id in (1, 2)]
    weigh_once(message, group, 0)
    batch = Shelf().batch()
    turns: list[list[Record]] = [group, [MessageChanged(2, 1, DEFERRED, 1, None)], [removed(2, 1)], [removed(1, 1)]]
    for records in turns:
        turn = Turn(1)
        turn.add(records)
        batch.add(turn)
    assert 0 <= batch.held_bytes < 200, "about what the change itself weighs"
