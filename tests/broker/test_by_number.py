"""Browse, schedule, cancel, receive deferred, delete: what names messages by number."""

import pytest

from spillway.broker.commands import (
    BatchDelete,
    CancelScheduled,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Schedule,
    UpdateDisposition,
)
from spillway.broker.effects import Deleted, Done, Failed, Load, Messages, Renewed, Scheduled
from spillway.model import limits
from spillway.model.entity import EntitySettings
from spillway.model.errors import MessageNotFound
from spillway.model.message import ACTIVE, DEFERRED, SCHEDULED
from spillway.model.records import Query
from spillway.model.settlement import ABANDON, COMPLETE, DEFER, Settlement
from spillway.store.memory import MemoryJournal
from spillway.testing.core import message
from tests.broker.line import RECEIVER, Line, bodies, delivered


def peek(line: Line, first: int = 1, count: int = 100) -> list[tuple[int, int]]:
    (found,) = line.apply(Peek(500, "q", first, count))
    assert isinstance(found, Messages)
    return [(stored.sequence_number, stored.state) for stored in found.messages]


def schedule(line: Line, due_ms: int, *texts: bytes) -> list[int]:
    messages = [message(text, scheduled_ms=due_ms) for text in texts]
    (answer,) = [e for e in line.apply(Schedule(500, "q", messages, 10)) if isinstance(e, Scheduled)]
    return answer.sequence_numbers


def defer(line: Line, *texts: bytes) -> list[int]:
    line.send(*[message(text) for text in texts])
    line.attach()
    numbers = []
    for delivery in line.receive(len(texts)):
        line.settle(delivery, Settlement(DEFER))
        numbers.append(delivery.stored.sequence_number)
    return numbers


def test_browsing_shows_every_state_in_order_and_changes_nothing(line: Line) -> None:
    deferred = defer(line, b"a")
    scheduled = schedule(line, line.now_ms + 1_000, b"b")
    line.send(message(b"c"), message(b"d"))
    assert bodies(line.receive()) == [b"c"]
    want = [(deferred[0], DEFERRED), (scheduled[0], SCHEDULED), (3, ACTIVE), (4, ACTIVE)]
    assert peek(line) == want
    assert peek(line) == want
    assert peek(line, first=3, count=1) == [(3, ACTIVE)]
    assert peek(line, first=5) == []


def test_a_scheduled_message_becomes_active_at_its_time_not_before(line: Line) -> None:
    line.attach()
    line.credit(10)
    (number,) = schedule(line, line.now_ms + 5_000, b"later")
    line.send(message(b"now"))
    assert delivered(line.step(4_999)) == []
    (delivery,) = delivered(line.step(1))
    assert delivery.stored.message.raw == b"later"
    assert delivery.stored.enqueue_sequence_number == number
    assert delivery.stored.sequence_number > number
    assert delivery.stored.enqueued_ms == line.now_ms


def test_a_message_sent_with_a_due_time_is_scheduled_too(line: Line) -> None:
    line.attach()
    line.credit(10)
    assert delivered(line.send(message(b"later", scheduled_ms=line.now_ms + 50))) == []
    assert bodies(delivered(line.step(50))) == [b"later"]


def test_a_due_time_in_the_past_delivers_at_once(line: Line) -> None:
    line.attach()
    line.credit(10)
    assert bodies(delivered(line.apply(Schedule(5, "q", [message(b"late", scheduled_ms=1)], 4)))) == [b"late"]


def test_scheduled_messages_survive_a_restart_and_become_active_after_it(line: Line) -> None:
    schedule(line, line.now_ms + 5_000, b"a", b"b")
    line.restart()
    line.attach()
    line.credit(10)
    assert bodies(delivered(line.step(5_000))) == [b"a", b"b"]


def test_more_due_messages_than_one_sweep_takes_all_become_active(line: Line) -> None:
    schedule(line, line.now_ms + 1_000, *[b"%d" % n for n in range(1_700)])
    line.step(1_000)
    counters = line.namespace.directory.queues["q"].counters
    assert (counters.scheduled, counters.active) == (0, 1_700)
    line.attach()
    assert bodies(line.receive(2_000)) == [b"%d" % n for n in range(1_700)]


def test_time_to_live_of_a_scheduled_message_starts_when_it_becomes_active(line: Line) -> None:
    line.apply(Schedule(5, "q", [message(b"x", scheduled_ms=line.now_ms + 10_000, ttl_ms=1_000)], 1))
    line.step(10_500)
    line.attach()
    assert bodies(line.receive()) == [b"x"]


def test_a_cancelled_message_never_appears(line: Line) -> None:
    numbers = schedule(line, line.now_ms + 1_000, b"a", b"b")
    (done,) = line.apply(CancelScheduled(500, "q", numbers))
    assert isinstance(done, Done)
    line.step(2_000)
    line.attach()
    assert line.receive(5) == []
    assert line.namespace.directory.queues["q"].counters.size_bytes == 0


def test_cancelling_is_all_or_none_and_says_which_number_is_missing(line: Line) -> None:
    (number,) = schedule(line, line.now_ms + 1_000, b"a")
    (failed,) = line.apply(CancelScheduled(500, "q", [number, 77]))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, MessageNotFound)
    assert "77" in failed.error.description
    line.step(1_000)
    line.attach()
    assert bodies(line.receive()) == [b"a"]


def test_an_active_message_cannot_be_cancelled(line: Line) -> None:
    line.send(message(b"a"))
    (failed,) = line.apply(CancelScheduled(500, "q", [1]))
    assert isinstance(failed, Failed)


@pytest.mark.contract("H11")
def test_a_deferred_message_is_received_by_its_number_and_settled_by_its_token(line: Line) -> None:
    (number,) = defer(line, b"a")
    (found,) = line.apply(ReceiveDeferred(500, "q", [number], False))
    assert isinstance(found, Messages)
    assert found.messages[0].message.raw == b"a"
    assert found.locked_until_ms == line.now_ms + line.settings.lock_duration_ms
    (done,) = line.apply(UpdateDisposition(501, "q", found.lock_tokens, Settlement(COMPLETE)))
    assert isinstance(done, Done)
    assert line.namespace.directory.queues["q"].counters.deferred == 0
    assert peek(line) == []


@pytest.mark.contract("H11")
def test_abandoning_a_deferred_message_keeps_it_deferred_and_counts(line: Line) -> None:
    (number,) = defer(line, b"a")
    (found,) = line.apply(ReceiveDeferred(500, "q", [number], False))
    assert isinstance(found, Messages)
    line.apply(UpdateDisposition(501, "q", found.lock_tokens, Settlement(ABANDON)))
    assert peek(line) == [(number, DEFERRED)]
    (again,) = line.apply(ReceiveDeferred(502, "q", [number], False))
    assert isinstance(again, Messages)
    assert again.messages[0].delivery_count == 2  # deferring was the first


def test_deferring_counts_as_a_delivery_and_is_never_the_last(line: Line) -> None:
    (number,) = defer(line, b"a")
    for count in range(1, 15):
        (found,) = line.apply(ReceiveDeferred(500, "q", [number], False))
        assert isinstance(found, Messages)
        assert found.messages[0].delivery_count == count
        line.apply(UpdateDisposition(501, "q", found.lock_tokens, Settlement(DEFER)))
    assert peek(line) == [(number, DEFERRED)]


def test_a_session_id_is_ignored_where_there_are_no_sessions(line: Line) -> None:
    """JavaScript sends the one of the message along."""
    (number,) = defer(line, b"a")
    (found,) = line.apply(ReceiveDeferred(500, "q", [number], False, "some session"))
    assert isinstance(found, Messages)
    (renewed,) = line.apply(RenewLocks(501, "q", found.lock_tokens, "some session"))
    assert isinstance(renewed, Renewed)
    (browsed,) = line.apply(Peek(502, "q", 1, 10, "some session"))
    assert isinstance(browsed, Messages) and len(browsed.messages) == 1
    (done,) = line.apply(UpdateDisposition(503, "q", found.lock_tokens, Settlement(COMPLETE), "some session"))
    assert isinstance(done, Done)
    assert peek(line) == []


def test_a_deferred_message_that_is_locked_cannot_be_received_by_another(line: Line) -> None:
    (number,) = defer(line, b"a")
    line.apply(ReceiveDeferred(500, "q", [number], False))
    (failed,) = line.apply(ReceiveDeferred(501, "q", [number], False))
    assert isinstance(failed, Failed)
    line.step(line.settings.lock_duration_ms)
    (found,) = line.apply(ReceiveDeferred(502, "q", [number], False))
    assert isinstance(found, Messages)


def test_receiving_deferred_is_all_or_none(line: Line) -> None:
    (number,) = defer(line, b"a")
    line.send(message(b"active"))
    (failed,) = line.apply(ReceiveDeferred(500, "q", [number, number + 1], False))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, MessageNotFound)
    (found,) = line.apply(ReceiveDeferred(501, "q", [number], True))
    assert isinstance(found, Messages)
    assert found.lock_tokens == []
    assert line.namespace.directory.queues["q"].counters.deferred == 0


def test_a_deferred_message_that_outlived_its_time_goes_when_it_is_asked_for() -> None:
    settings = EntitySettings()
    settings.dead_letter_on_expiry = True
    line = Line(settings)
    line.send(message(b"a", ttl_ms=10_000))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(DEFER))
    line.step(20_000)
    assert peek(line) == [(1, DEFERRED)]
    (failed,) = line.apply(ReceiveDeferred(500, "q", [1], False))
    assert isinstance(failed, Failed)
    assert bodies(line.dead_letters()) == [b"a"]


def test_deleting_a_batch_takes_the_oldest_unlocked_messages(line: Line) -> None:
    line.send(*[message(b"%d" % n) for n in range(6)])
    line.attach()
    (locked,) = line.receive()
    (answer,) = line.apply(BatchDelete(500, "q", 3, line.now_ms + 1))
    assert isinstance(answer, Deleted)
    assert answer.count == 3
    assert bodies(line.receive(10)) == [b"4", b"5"]
    line.limits[RECEIVER] -= 8
    line.settle(locked, Settlement(COMPLETE))


def test_deleting_spares_messages_enqueued_later(line: Line) -> None:
    line.send(message(b"old"))
    line.step(1_000)
    before_ms = line.now_ms
    line.send(message(b"new"))
    (answer,) = line.apply(BatchDelete(500, "q", 100, before_ms))
    assert isinstance(answer, Deleted)
    assert answer.count == 1
    line.attach()
    assert bodies(line.receive(5)) == [b"new"]


def test_deleting_reaches_messages_that_only_the_store_has(line: Line) -> None:
    line.send_many(6_000)
    (answer,) = line.apply(BatchDelete(500, "q", 5_500, line.now_ms + 1))
    assert isinstance(answer, Deleted)
    assert answer.count == 5_500
    line.attach()
    assert len(line.receive(1_000)) == 500


def test_a_deferred_message_settled_while_another_asks_for_it_does_not_come_back(line: Line) -> None:
    """The question goes to the store while the message is locked; it is completed before the answer comes."""
    (number,) = defer(line, b"a")
    (found,) = line.apply(ReceiveDeferred(500, "q", [number], False))
    assert isinstance(found, Messages)
    said = line.apply(
        ReceiveDeferred(501, "q", [number], False),
        UpdateDisposition(502, "q", found.lock_tokens, Settlement(COMPLETE)),
    )
    assert [type(effect) for effect in said] == [Failed, Done]
    assert peek(line) == []


# -- how much is asked of the store at a time --------------------------------------------------------------------------


class Asking(Line):
    """Keeps what was asked of the store."""

    def __init__(self, settings: EntitySettings | None = None) -> None:
        self.asked: list[Query] = []
        super().__init__(settings)

    def make_journal(self) -> MemoryJournal:
        asked = self.asked

        class Kept(MemoryJournal):
            def load(self, query: Query, ticket: int) -> None:
                asked.append(query)
                super().load(query, ticket)

        return Kept()


def test_browsing_many_asks_for_some_at_a_time_and_shows_all_of_them() -> None:
    line = Asking()
    line.send_many(3_500)
    line.asked.clear()
    assert [number for number, _ in peek(line, 1, 1_200)] == list(range(1, 1_201))
    assert [query.count for query in line.asked] == [1_000, 200]


def test_what_it_takes_to_hold_messages_counts_towards_the_bytes_that_are_browsed() -> None:
    """Of many small ones a part is shown; whoever browses asks for the next."""
    line = Line()
    line.send_many(3_500)
    shown = peek(line, 1, 3_200)
    assert len(shown) == 2_000
    assert peek(line, 2_001, 3_200)[0][0] == 2_001


def test_browsing_a_session_goes_on_behind_what_it_looked_at() -> None:
    settings = EntitySettings()
    settings.requires_session = True
    line = Asking(settings)
    for _ in range(5):
        line.send(*[message(b"x", session_id="many", scheduled_ms=line.now_ms + 9_000) for _ in range(500)])
    line.send(message(b"few", session_id="few"))
    line.asked.clear()
    (answer,) = line.apply(Peek(700, "q", 0, 5, "few"))
    assert isinstance(answer, Messages)
    assert [stored.message.raw for stored in answer.messages] == [b"few"]
    assert len(line.asked) == 3


def test_a_batch_delete_that_finds_nothing_old_enough_asks_once() -> None:
    asking = Asking()
    asking.send_many(5_000)
    asking.asked.clear()
    (deleted,) = asking.apply(BatchDelete(700, "q", 4_000, asking.now_ms))
    assert isinstance(deleted, Deleted)
    assert deleted.count == 0
    assert len(asking.asked) == 1  # it was ten: all there are


def test_messages_named_by_number_are_read_some_hundred_at_a_time_and_nothing_between() -> None:
    line = Asking()
    due_ms = line.now_ms + 9_000
    numbers = [number for _ in range(3) for number in schedule(line, due_ms, *[b"x"] * 400)]
    line.asked.clear()
    said = line.apply(CancelScheduled(700, "q", numbers), CancelScheduled(701, "q", numbers[:1]))
    assert [type(effect) for effect in said] == [Done, Failed]
    assert [query.count for query in line.asked] == [500, 500, 200, 1]
    assert peek(line) == []


def test_a_few_are_browsed_at_once_and_the_others_wait_for_them() -> None:
    """Whoever asks: what is read for them is in memory until it is answered."""
    line = Line()
    line.send_many(3)
    peeks = [Peek(100 + number, "q", 0, 10) for number in range(3 * limits.PEEKS_AT_ONCE)]
    decided = line.namespace.apply(list(peeks), line.now_ms)
    loads = [effect for effect in decided.effects if isinstance(effect, Load)]
    assert len(loads) == limits.PEEKS_AT_ONCE
    for load in loads:
        line.journal.load(load.query, load.to)
    answers = [effect for effect in line.apply() if isinstance(effect, Messages)]
    assert sorted(answer.to for answer in answers) == [peek.request_id for peek in peeks]
    assert all(len(answer.messages) == 3 for answer in answers)
