"""One contract for every journal. What holds here, the broker may rely on, whatever stands behind the seam."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spillway.model.message import ACTIVE, DEFERRED, HIDDEN, NEVER, SCHEDULED, Overlay
from spillway.model.records import (
    EntityPut,
    EntityRemoved,
    EntityRow,
    LoadActive,
    LoadDue,
    LoadEntity,
    LoadExpired,
    LoadFrom,
    LoadNumbers,
    MessageChanged,
    MessageMoved,
    RulePut,
    RuleRemoved,
    Turn,
)
from spillway.store.journal import Journal
from tests.contract.kinds import KINDS, open_kind
from tests.store.listening import (
    ALL,
    Desk,
    added,
    copies,
    counters,
    everything,
    fields,
    long_message,
    numbers,
    queue_put,
    removed,
    stored,
)

Reopen = Callable[[Desk], Desk]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def journal(kind: str, tmp_path: Path) -> Iterator[Journal]:
    made: Journal = open_kind(kind, tmp_path / "journal.db")
    yield made
    made.close()


@pytest.fixture
def desk(journal: Journal) -> Desk:
    """A journal with the queues 1 and 2."""
    journal.recover()
    desk = Desk(journal).start()
    desk.submit_records(queue_put(1), queue_put(2))
    return desk


def overlay(reason: str) -> Overlay:
    made = Overlay()
    made.dead_letter_reason = reason
    made.hops = 3
    made.properties["colour"] = b"\xa1\x03red"
    return made


def moved_to(entity_id: int, number: int, from_number: int, reason: str | None = None) -> MessageMoved:
    return MessageMoved(1, from_number, entity_id, number, 5_000, 9_000, 3, None if reason is None else overlay(reason))


# -- tickets ------------------------------------------------------------------------------------------------------


def test_turns_become_durable_in_the_order_submitted(desk: Desk) -> None:
    last = 0
    for number in range(1, 51):
        last = desk.submit_records(added(1, number))
    desk.wait(lambda: desk.durable >= last)
    assert desk.told == sorted(desk.told, key=lambda told: told[1])


def test_an_empty_turn_is_told_as_well(desk: Desk) -> None:
    ticket = desk.submit(Turn(0))
    desk.wait(lambda: desk.durable == ticket)


def test_an_answer_comes_after_the_turns_it_rests_on_are_durable(desk: Desk) -> None:
    turn = desk.submit_records(added(1, 1))
    query = desk.load(everything(1))
    later = desk.submit_records(added(1, 2))
    desk.wait(lambda: desk.durable >= later and query in desk.rows)
    before = desk.told[: desk.told.index(("loaded", query))]
    assert any(what == "durable" and ticket >= turn for what, ticket in before)
    assert numbers(desk.rows[query]) == [1], "and has nothing of later ones"


def test_an_answer_reflects_exactly_the_turns_submitted_before_the_query(desk: Desk) -> None:
    asked = []
    for number in range(1, 21):
        desk.submit_records(added(1, number))
        asked.append((desk.load(everything(1)), list(range(1, number + 1))))
    for number in range(1, 21):
        desk.submit_records(removed(1, number))
        asked.append((desk.load(everything(1)), list(range(number + 1, 21))))
    desk.settle()
    assert [numbers(desk.rows[ticket]) for ticket, _ in asked] == [expected for _, expected in asked]


def test_nothing_is_pending_once_everything_is_durable(desk: Desk) -> None:
    desk.submit_records(added(1, 1, b"x" * 10_000))
    assert desk.journal.pending_bytes >= 0
    desk.settle()
    assert desk.journal.pending_bytes == 0


def test_there_is_room_for_more(desk: Desk) -> None:
    assert desk.journal.free_bytes > 0


# -- rows ---------------------------------------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was_handed_in(desk: Desk) -> None:
    row = stored(7, b"\x00\x53\x75\xa0\x05hello", time_ms=77_000)
    row.enqueue_sequence_number = 3
    row.delivery_count = 2
    row.overlay = overlay("because")
    row.message.session_id = "s"
    row.message.partition_key = "\udcff"  # a lone surrogate: text that only we could have made
    row.message.ttl_ms = 77
    expected = fields(row)
    desk.submit_records(added(1, 1))
    record = added(1, 7)
    record.stored = row
    desk.submit_records(record)
    assert fields(desk.ask(LoadActive(1, 6, 1, 1)).messages[0]) == expected


def test_what_is_answered_may_be_changed_without_changing_what_is_remembered(desk: Desk) -> None:
    desk.submit_records(added(1, 1))
    row = desk.ask(everything(1)).messages[0]
    row.delivery_count = 9
    row.overlay = overlay("mine")
    again = desk.ask(everything(1)).messages[0]
    assert again.delivery_count == 0 and again.overlay is None


def test_a_change_keeps_the_place_and_sets_the_fields(desk: Desk) -> None:
    desk.submit_records(added(1, 1), added(1, 2))
    desk.settle()
    desk.submit_records(MessageChanged(1, 1, ACTIVE, 4, overlay("again")))
    rows = desk.ask(LoadActive(1, 0, ALL, ALL))
    assert numbers(rows) == [1, 2]
    assert rows.messages[0].delivery_count == 4
    assert rows.messages[0].overlay is not None and rows.messages[0].overlay.dead_letter_reason == "again"


def test_a_deferred_message_is_found_by_number_and_by_browsing_but_not_among_the_active(desk: Desk) -> None:
    desk.submit_records(added(1, 1), added(1, 2))
    desk.settle()
    desk.submit_records(MessageChanged(1, 1, DEFERRED, 1, None))
    assert numbers(desk.ask(LoadActive(1, 0, ALL, ALL))) == [2]
    assert numbers(desk.ask(LoadFrom(1, 0, ALL, ALL))) == [1, 2]
    found = desk.ask(LoadNumbers(1, [1], ALL)).messages[0]
    assert (found.state, found.delivery_count) == (DEFERRED, 1)


def test_a_deferred_message_can_be_removed(desk: Desk) -> None:
    desk.submit_records(added(1, 1))
    desk.submit_records(MessageChanged(1, 1, DEFERRED, 0, None))
    desk.settle()
    desk.submit_records(removed(1, 1))
    assert numbers(desk.ask(everything(1))) == []


def test_a_moved_message_arrives_active_under_its_new_number_and_keeps_its_first(desk: Desk) -> None:
    desk.submit_records(added(1, 5, b"poison"))
    desk.settle()
    desk.submit_records(moved_to(2, 9, 5, "MaxDeliveryCountExceeded"))
    assert numbers(desk.ask(everything(1))) == []
    row = desk.ask(LoadActive(2, 0, ALL, ALL)).messages[0]
    assert (row.sequence_number, row.enqueue_sequence_number, row.message.raw) == (9, 5, b"poison")
    assert (row.enqueued_ms, row.expires_ms, row.delivery_count, row.due_ms) == (5_000, 9_000, 3, NEVER)
    assert row.overlay is not None and row.overlay.dead_letter_reason == "MaxDeliveryCountExceeded"


def test_a_scheduled_message_that_falls_due_moves_to_the_active_ones(desk: Desk) -> None:
    desk.submit_records(added(1, 5, b"later", SCHEDULED, 2_000))
    desk.settle()
    desk.submit_records(moved_to(1, 6, 5))
    assert numbers(desk.ask(LoadDue(1, ALL, ALL, ALL))) == []
    assert numbers(desk.ask(LoadActive(1, 0, ALL, ALL))) == [6]


@pytest.mark.contract("I8")
def test_a_hidden_message_is_due_like_a_scheduled_one_and_browsed_by_nobody(desk: Desk, reopen: Reopen) -> None:
    desk.submit_records(added(1, 1), added(1, 2, b"later", HIDDEN, 2_000), added(1, 3, b"", SCHEDULED, 3_000))
    again = reopen(desk)
    assert again.journal.recover().entities[0].next_due_ms == 2_000
    again.start()
    assert numbers(again.ask(everything(1))) == [1, 3]
    assert numbers(again.ask(LoadActive(1, 0, 10, ALL))) == [1]
    (row,) = again.ask(LoadDue(1, 2_000, 10, ALL)).messages
    assert (row.sequence_number, row.state, row.due_ms) == (2, HIDDEN, 2_000)
    again.submit_records(MessageChanged(1, 2, ACTIVE, 0, None))
    assert numbers(again.ask(LoadActive(1, 0, 10, ALL))) == [1, 2], "under the number that it had"
    assert numbers(again.ask(LoadDue(1, 9_000, 10, ALL))) == [3]


def test_a_removal_of_what_is_not_there_is_no_error(desk: Desk) -> None:
    desk.submit_records(removed(1, 99))
    desk.settle()
    assert numbers(desk.ask(everything(1))) == []


# -- many records in one commit -----------------------------------------------------------------------------------


def test_what_is_added_and_removed_in_one_commit_was_never_there(desk: Desk) -> None:
    desk.submit_records(added(1, 1), added(1, 2), removed(1, 1), added(1, 3), removed(1, 3))
    assert numbers(desk.ask(everything(1))) == [2]


def test_added_changed_moved_and_removed_in_one_commit_leaves_nothing_behind(desk: Desk) -> None:
    desk.submit_records(
        added(1, 1),
        MessageChanged(1, 1, DEFERRED, 1, None),
        MessageChanged(1, 1, ACTIVE, 2, None),
        moved_to(2, 1, 1),
        removed(2, 1),
    )
    assert numbers(desk.ask(everything(1))) == [] and numbers(desk.ask(everything(2))) == []


def test_a_durable_message_changed_and_removed_in_one_commit_is_gone(desk: Desk) -> None:
    desk.submit_records(added(1, 1), added(1, 2), added(1, 3))
    desk.settle()
    desk.submit_records(
        MessageChanged(1, 1, DEFERRED, 1, None),
        removed(1, 1),
        moved_to(2, 1, 2),
        removed(2, 1),
        MessageChanged(1, 3, ACTIVE, 5, None),
        moved_to(2, 2, 3),
    )
    assert numbers(desk.ask(everything(1))) == []
    assert numbers(desk.ask(everything(2))) == [2]


def test_a_message_moved_out_survives_the_removal_of_its_entity_in_the_same_commit(desk: Desk) -> None:
    desk.submit_records(added(1, 1), added(1, 2))
    desk.submit_records(moved_to(2, 1, 1), EntityRemoved(1))
    assert numbers(desk.ask(everything(1))) == []
    assert numbers(desk.ask(everything(2))) == [1]


def test_changes_across_turns_that_share_a_commit_are_applied_in_order(desk: Desk) -> None:
    for count in range(1, 30):
        desk.submit_records(added(1, count))
        desk.submit_records(MessageChanged(1, count, ACTIVE, count, None))
        if count % 3 == 0:
            desk.submit_records(removed(1, count))
    rows = desk.ask(everything(1))
    assert [(row.sequence_number, row.delivery_count) for row in rows.messages] == [
        (number, number) for number in range(1, 30) if number % 3
    ]


# -- copies of one message ----------------------------------------------------------------------------------------


def raws(desk: Desk, entity_id: int) -> list[bytes]:
    return [row.message.raw for row in desk.ask(everything(entity_id)).messages]


def test_copies_of_one_message_are_messages_of_their_own(desk: Desk) -> None:
    message = long_message("shared ")
    desk.submit_records(*copies(message, (1, 1), (1, 2), (2, 7)), added(1, 3))
    desk.submit_records(MessageChanged(1, 2, DEFERRED, 5, overlay("one of three")))
    first, second, other = desk.ask(everything(1)).messages
    (third,) = desk.ask(LoadActive(2, 0, ALL, ALL)).messages
    assert first.message.raw == second.message.raw == third.message.raw == message.raw
    assert [row.message.message_id for row in (first, second, third)] == ["shared "] * 3
    assert (first.state, first.delivery_count, first.overlay) == (ACTIVE, 0, None)
    assert (second.state, second.delivery_count, third.delivery_count) == (DEFERRED, 5, 0)
    assert (third.sequence_number, other.message.raw) == (7, b"body")


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_a_copy_that_is_removed_leaves_the_others(desk: Desk, reopen: Reopen, order: list[int]) -> None:
    message = long_message("shared ")
    places = [(1, 1), (1, 2), (2, 7)]
    desk.submit_records(*copies(message, *places))
    for index in order:
        assert raws(desk, 1) + raws(desk, 2) == [message.raw] * len(places)
        desk = reopen(desk)
        desk.journal.recover()
        desk.start()
        gone = [(1, 1), (1, 2), (2, 7)][index]
        places.remove(gone)
        desk.submit_records(removed(*gone))
    assert raws(desk, 1) + raws(desk, 2) == []


def test_copies_that_move_and_change_keep_their_bytes_when_the_rest_is_gone(desk: Desk, reopen: Reopen) -> None:
    message = long_message("shared ")
    desk.submit_records(queue_put(3), *copies(message, (1, 1), (1, 2), (2, 7), (3, 1)))
    desk.settle()
    desk.submit_records(moved_to(3, 2, 1, "dead"), MessageChanged(1, 2, DEFERRED, 1, None))
    desk.submit_records(EntityRemoved(2), removed(3, 1))
    desk.settle()
    desk.submit_records(MessageChanged(1, 2, ACTIVE, 2, None), moved_to(3, 3, 2), EntityRemoved(1))
    again = reopen(desk)
    again.journal.recover()
    again.start()
    assert numbers(again.ask(everything(3))) == [2, 3]
    assert raws(again, 3) == [message.raw] * 2


def test_copies_that_are_settled_in_the_commit_that_made_them_leave_the_last_one_whole(desk: Desk) -> None:
    message = long_message("shared ")
    desk.submit_records(*copies(message, (1, 1), (1, 2), (2, 7)), removed(1, 1), removed(2, 7), moved_to(2, 8, 2))
    assert raws(desk, 1) == [] and raws(desk, 2) == [message.raw]


# -- queries ------------------------------------------------------------------------------------------------------


def test_an_answer_stops_at_the_count_and_says_so(desk: Desk) -> None:
    desk.submit_records(*(added(1, number) for number in range(1, 6)))
    cut = desk.ask(LoadActive(1, 1, 3, ALL))
    assert (numbers(cut), cut.is_cut) == ([2, 3, 4], True)
    whole = desk.ask(LoadActive(1, 1, 4, ALL))
    assert (numbers(whole), whole.is_cut) == ([2, 3, 4, 5], False)


def test_an_answer_stops_after_the_row_that_passes_the_bytes(desk: Desk) -> None:
    desk.submit_records(*(added(1, number, b"x" * 100) for number in range(1, 6)))
    assert numbers(desk.ask(LoadActive(1, 0, ALL, 199))) == [1, 2]
    assert numbers(desk.ask(LoadActive(1, 0, ALL, 200))) == [1, 2, 3]
    cut = desk.ask(LoadFrom(1, 0, ALL, 399))
    assert (numbers(cut), cut.is_cut) == ([1, 2, 3, 4], True)
    assert not desk.ask(LoadFrom(1, 0, ALL, 499)).is_cut


def test_at_least_one_row_is_answered_however_large(desk: Desk) -> None:
    desk.submit_records(added(1, 1, b"x" * 100_000), added(1, 2))
    for query in (LoadActive(1, 0, ALL, 0), LoadFrom(1, 0, ALL, 0), LoadNumbers(1, [1, 2], 0)):
        rows = desk.ask(query)
        assert (numbers(rows), rows.is_cut) == ([1], True)


def test_numbers_are_answered_in_order_once_each_without_the_missing(desk: Desk) -> None:
    desk.submit_records(added(1, 1), added(1, 3), added(1, 5, b"", SCHEDULED, 9), added(2, 2))
    rows = desk.ask(LoadNumbers(1, [5, 2, 3, 5, 99, -1, 1 << 60], ALL))
    assert (numbers(rows), rows.is_cut) == ([3, 5], False)


def test_browsing_sees_every_state_in_order(desk: Desk) -> None:
    desk.submit_records(added(1, 1), added(1, 2, b"", SCHEDULED, 50), added(1, 3), added(2, 1))
    desk.submit_records(MessageChanged(1, 3, DEFERRED, 0, None), added(1, 4))
    rows = desk.ask(LoadFrom(1, 2, ALL, ALL))
    assert [(row.sequence_number, row.state) for row in rows.messages] == [(2, SCHEDULED), (3, DEFERRED), (4, ACTIVE)]


def test_due_messages_come_earliest_first_with_the_time_of_the_next(desk: Desk) -> None:
    desk.submit_records(added(1, 1, b"", SCHEDULED, 300), added(1, 2, b"", SCHEDULED, 100))
    desk.submit_records(
        added(1, 3, b"", SCHEDULED, 200), added(1, 4, b"", SCHEDULED, 200), added(2, 1, b"", SCHEDULED, 1)
    )
    rows = desk.ask(LoadDue(1, 200, ALL, ALL))
    assert (numbers(rows), rows.is_cut, rows.next_ms) == ([2, 3, 4], False, 300)
    cut = desk.ask(LoadDue(1, 200, 2, ALL))
    assert (numbers(cut), cut.is_cut, cut.next_ms) == ([2, 3], True, 200)
    early = desk.ask(LoadDue(1, 99, ALL, ALL))
    assert (numbers(early), early.is_cut, early.next_ms) == ([], False, 100)
    assert desk.ask(LoadDue(1, 300, ALL, ALL)).next_ms == NEVER


def test_expired_messages_come_earliest_first_with_the_time_of_the_next(desk: Desk) -> None:
    desk.submit_records(added(1, 1), added(1, 2, time_ms=500), added(1, 3, time_ms=400), added(1, 4, time_ms=600))
    desk.submit_records(added(1, 5, time_ms=1), MessageChanged(1, 5, DEFERRED, 0, None))
    rows = desk.ask(LoadExpired(1, 500, ALL, ALL))
    assert (numbers(rows), rows.is_cut, rows.next_ms) == ([3, 2], False, 600)
    cut = desk.ask(LoadExpired(1, 500, 1, ALL))
    assert (numbers(cut), cut.is_cut, cut.next_ms) == ([3], True, 500)
    assert desk.ask(LoadExpired(1, 600, ALL, ALL)).next_ms == NEVER


def test_an_entity_that_never_was_has_no_messages(desk: Desk) -> None:
    for query in (LoadActive(9, 0, 9, 9), LoadNumbers(9, [1], 9), LoadDue(9, 9, 9, 9), LoadExpired(9, 9, 9, 9)):
        rows = desk.ask(query)
        assert (rows.messages, rows.is_cut, rows.next_ms, rows.corrupt) == ([], False, NEVER, [])


# -- entities -----------------------------------------------------------------------------------------------------


def test_a_removed_entity_takes_all_its_messages_with_it(desk: Desk) -> None:
    desk.submit_records(added(1, 1), added(1, 2, b"", SCHEDULED, 5), added(2, 1))
    desk.settle()
    desk.submit_records(EntityRemoved(1))
    for query in (everything(1), LoadActive(1, 0, 9, 9), LoadNumbers(1, [1, 2], 9), LoadDue(1, 9, 9, 9)):
        assert numbers(desk.ask(query)) == []
    assert numbers(desk.ask(everything(2))) == [1]


# -- what is left for the next start ------------------------------------------------------------------------------


@pytest.fixture
def reopen(kind: str, tmp_path: Path) -> Iterator[Reopen]:
    """The next life: another process would find the same."""
    opened: list[Journal] = []

    def again(desk: Desk) -> Desk:
        desk.settle()
        if kind != "memory":
            desk.journal.close()
        journal = desk.journal if kind == "memory" else open_kind(kind, tmp_path / "journal.db")
        opened.append(journal)
        return Desk(journal)

    yield again
    for journal in opened:
        journal.close()


def test_an_empty_journal_has_an_empty_catalogue(journal: Journal) -> None:
    catalogue = journal.recover()
    assert (catalogue.entities, catalogue.last_entity_id, catalogue.clock_ms) == ([], 0, 0)


def test_entities_counters_and_the_clock_are_found_again(desk: Desk, reopen: Reopen) -> None:
    turn = Turn(123_456)
    turn.add([added(1, 1, time_ms=900), added(1, 2, time_ms=800), added(1, 3, b"", SCHEDULED, 700)])
    turn.add([added(2, 1, b"", SCHEDULED, 60), EntityPut(2, "queue", "renamed", "{}", 1)])
    turn.counters[1] = counters(2, 3)
    turn.counters[2] = counters(0, 1)
    desk.submit(turn)
    late = Turn(100_000)  # a clock that went back
    late.counters[1] = counters(2, 1_000)
    desk.submit(late)
    catalogue = reopen(desk).journal.recover()
    first, second = catalogue.entities
    assert (first.put.entity_id, first.put.kind, first.put.path) == (1, "queue", "queue-1")
    assert (first.put.settings, first.put.parent_id) == ('{"lock_duration_ms": 60000}', 0)
    assert (first.counters.active, first.counters.last_sequence_number) == (2, 1_000)
    assert (first.next_due_ms, first.next_expiry_ms) == (700, 800)
    assert (second.put.path, second.put.settings, second.put.parent_id) == ("renamed", "{}", 1)
    assert (second.next_due_ms, second.next_expiry_ms) == (60, NEVER)
    assert catalogue.clock_ms == 123_456
    assert catalogue.last_entity_id == 2


def test_a_turn_of_one_empty_group_leaves_its_time_behind(desk: Desk, reopen: Reopen) -> None:
    turn = Turn(777_000)
    turn.add([])
    desk.submit(turn)
    assert reopen(desk).journal.recover().clock_ms == 777_000


def test_a_change_of_settings_keeps_the_counters(desk: Desk, reopen: Reopen) -> None:
    turn = Turn(1)
    turn.counters[1] = counters(5, 50)
    desk.submit(turn)
    desk.submit_records(EntityPut(1, "queue", "queue-1", '{"other": 1}', 0))
    row = reopen(desk).journal.recover().entities[0]
    assert (row.put.settings, row.counters.active, row.counters.last_sequence_number) == ('{"other": 1}', 5, 50)


def rules_in(row: EntityRow | None) -> list[tuple[int, str, str, str]]:
    assert row is not None
    return [(rule.number, rule.name, rule.text, rule.problem) for rule in row.rules]


def test_rules_are_found_again_in_the_order_of_their_numbers(desk: Desk, reopen: Reopen) -> None:
    desk.submit_records(RulePut(1, 2, "two", "{}"), RulePut(1, 1, "one", '{"a": "ä"}'), RulePut(2, 1, "other", "{}"))
    desk.settle()
    desk.submit_records(RulePut(1, 3, "three", "{}"))
    desk.submit_records(RuleRemoved(1, 2), RuleRemoved(1, 3))
    desk.submit_records(RulePut(1, 3, "three again", "[]"))
    expected = [(1, "one", '{"a": "ä"}', ""), (3, "three again", "[]", "")]
    assert rules_in(desk.ask(LoadEntity(1)).entity) == expected
    desk.submit_records(queue_put(1))
    first, second = reopen(desk).journal.recover().entities
    assert rules_in(first) == expected, "settings that change leave them"
    assert rules_in(second) == [(1, "other", "{}", "")]


def test_an_entity_takes_its_rules_with_it(desk: Desk, reopen: Reopen) -> None:
    desk.submit_records(queue_put(3), *[RulePut(3, number, f"r{number}", "{}") for number in range(1, 500)])
    desk.settle()
    desk.submit_records(RulePut(3, 500, "late", "{}"), RulePut(1, 1, "mine", "{}"), EntityRemoved(3))
    again = reopen(desk)
    assert [rules_in(row) for row in again.journal.recover().entities] == [[(1, "mine", "{}", "")], []]


def test_the_number_of_a_removed_entity_is_remembered(desk: Desk, reopen: Reopen) -> None:
    desk.submit_records(queue_put(3), added(3, 1))
    turn = Turn(1)
    turn.add([EntityRemoved(3)])
    turn.counters[3] = counters(0, 1)
    desk.submit(turn)
    again = reopen(desk)
    catalogue = again.journal.recover()
    assert [row.put.entity_id for row in catalogue.entities] == [1, 2]
    assert catalogue.last_entity_id == 3
    again.start()
    assert numbers(again.ask(everything(3))) == []


def test_messages_are_found_again_in_every_state(desk: Desk, reopen: Reopen) -> None:
    desk.submit_records(added(1, 1), added(1, 2), added(1, 3, b"", SCHEDULED, 5), added(1, 4))
    desk.submit_records(MessageChanged(1, 2, DEFERRED, 1, overlay("kept")), removed(1, 4))
    before = [fields(row) for row in desk.ask(everything(1)).messages]
    again = reopen(desk)
    again.journal.recover()
    again.start()
    assert [fields(row) for row in again.ask(everything(1)).messages] == before
    assert len(before) == 3


# -- one entity, while the store is open ------------------------------------------------------------------------------


def test_an_entity_is_read_as_the_catalogue_has_it(desk: Desk, reopen: Reopen) -> None:
    turn = Turn(1_000)
    turn.add([added(1, 1), added(1, 2, state=SCHEDULED, time_ms=5_000), added(1, 3, time_ms=7_000)])
    turn.counters[1] = counters(2, 3)
    desk.submit(turn)
    found = desk.ask(LoadEntity(1)).entity
    row = reopen(desk).journal.recover().entities[0]
    assert found is not None
    for each in (found, row):
        assert (each.put.path, each.next_due_ms, each.next_expiry_ms) == ("queue-1", 5_000, 7_000)
        assert (each.counters.active, each.counters.last_sequence_number) == (2, 3)


def test_an_entity_that_is_not_there_has_no_row(desk: Desk) -> None:
    assert desk.ask(LoadEntity(77)).entity is None
    desk.submit_records(EntityRemoved(2))
    assert desk.ask(LoadEntity(2)).entity is None


def test_counters_are_made_of_the_rows_where_the_broker_lost_count(desk: Desk, reopen: Reopen) -> None:
    """In the turn that says so: whenever the power goes, they are right."""
    turn = Turn(1_000)
    turn.add([added(1, 1), added(1, 2, state=SCHEDULED, time_ms=5_000), added(1, 3, state=DEFERRED)])
    turn.add([added(1, 4, state=HIDDEN, time_ms=9_000), *copies(long_message("shared"), (1, 5), (2, 1))])
    turn.counters[1] = counters(-4, 9)
    turn.recounts.append(1)
    desk.submit(turn)
    found = desk.ask(LoadEntity(1)).entity
    held = desk.ask(LoadNumbers(1, [1, 2, 3, 4, 5], ALL)).messages
    row = reopen(desk).journal.recover().entities[0]
    assert found is not None and len(held) == 5
    for said in (found.counters, row.counters):
        assert (said.active, said.deferred, said.scheduled, said.hidden) == (2, 1, 1, 1)
        assert said.size_bytes == sum(len(each.message.raw) for each in held)
        assert said.last_sequence_number == 9


def test_the_counters_of_a_removed_entity_are_not_made_again(desk: Desk, reopen: Reopen) -> None:
    turn = Turn(1_000)
    turn.add([EntityRemoved(2)])
    turn.recounts.append(2)
    desk.submit(turn)
    assert [row.put.entity_id for row in reopen(desk).journal.recover().entities] == [1]
