"""What the ledger counts: each kind by its definition in docs/ledger.md, in the minute it happened."""

import random

import pytest

from spillway.broker.commands import (
    ASKS_AGAIN,
    ASKS_MORE,
    ASKS_NOTHING,
    NOT_ASKED,
    AddRule,
    AttachReceiver,
    AttachSender,
    BatchDelete,
    CancelScheduled,
    Command,
    CreateEntity,
    Credit,
    DeleteEntity,
    DetachLink,
    GetSessionState,
    ListRules,
    ListSessions,
    Meter,
    Peek,
    ReadLedger,
    ReceiveDeferred,
    RemoveRule,
    RenewLocks,
    RenewSession,
    Request,
    SaveLedger,
    Schedule,
    Send,
    SessionWish,
    SetSessionState,
    Settle,
    UpdateDisposition,
    UpdateEntity,
)
from spillway.broker.effects import Drained, Effect, LedgerPage, Scheduled
from spillway.broker.ledger import WRITTEN_A_SECOND_MAX
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.ledger import KIND_NAMES, MANAGEMENT, NAMESPACE_ENTITY, UNIT_BYTES, LedgerRow, Totals, unpack_tally
from spillway.model.records import Turn
from spillway.model.rules import default_rule
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Settlement
from spillway.testing.core import CoreHarness, message
from tests.broker.line import OTHER_RECEIVER, RECEIVER, SENDER, Line, delivered

BEFORE_ALL = (-1, "", -1)
FOR_EVER = 1 << 40
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def rows(core: CoreHarness) -> list[LedgerRow]:
    (page,) = core.apply(ReadLedger(990, 0, FOR_EVER, BEFORE_ALL, 1_000))
    assert isinstance(page, LedgerPage)
    assert page.after is None
    return page.rows


def counted(core: CoreHarness) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(entity, kind): operations, units, bytes."""
    totals = Totals()
    for row in rows(core):
        totals.add(row)
    return {
        (entity, KIND_NAMES[kind]): (count.operations, count.units, count.size_bytes)
        for (entity, kind), count in totals.counts.items()
    }


def kinds(core: CoreHarness, entity: str = "q") -> dict[str, int]:
    """Operations of one entity, by kind."""
    return {kind: numbers[0] for (path, kind), numbers in counted(core).items() if path == entity}


def turn_of(core: CoreHarness, *commands: Command) -> Turn:
    """What one step alone would have remembered."""
    turn = core.namespace.apply(list(commands), core.now_ms).turn
    core.ticket += 1
    core.journal.submit(turn, core.ticket)
    return turn


def saved(turn: Turn) -> dict[str, int]:
    """The one tally that a turn brings: operations by kind."""
    (packed,) = turn.tallies.values()
    rows: list[LedgerRow] = []
    unpack_tally("q", 1, packed).drain(rows)
    return {KIND_NAMES[row.kind]: row.operations for row in rows}


# -- messages in and out ------------------------------------------------------------------------------------------


def test_each_message_of_a_send_and_of_a_batch_is_an_operation(line: Line) -> None:
    line.send(message(b"x" * 10))
    line.send(message(b"x" * 20), message(b"x" * 30), is_settled=True)
    assert counted(line) == {("q", "send"): (3, 3, 60)}


@pytest.mark.parametrize(
    ("size", "units"), [(1, 1), (UNIT_BYTES, 1), (UNIT_BYTES + 1, 2), (2 * UNIT_BYTES, 2), (200_000, 4)]
)
def test_a_message_is_charged_for_every_64_kb_begun_when_it_is_sent_received_and_browsed(size: int, units: int) -> None:
    line = Line()
    line.send(message(b"x" * size))
    line.apply(Peek(1, "q", 0, 10))
    line.attach()
    line.receive()
    assert counted(line) == {
        ("q", "send"): (1, units, size),
        ("q", "peek"): (1, units, size),
        ("q", "receive"): (1, units, size),
    }


def test_a_refused_send_is_not_counted(line: Line) -> None:
    line.send(message(b"x" * 300_000))
    assert counted(line) == {}


@pytest.mark.contract("F5")
def test_a_ping_is_charged_like_a_message_under_its_own_name(line: Line) -> None:
    line.send(message(b"x" * 100, is_ping=True))
    line.send(message(b"x"), message(b"yy", is_ping=True))
    assert counted(line) == {("q", "ping"): (2, 2, 102), ("q", "send"): (1, 1, 1)}


def test_every_delivery_counts_in_both_modes(line: Line) -> None:
    line.send_many(3)
    line.attach(deletes=True)
    line.receive()
    line.attach(OTHER_RECEIVER)
    (first,) = line.receive(1, OTHER_RECEIVER)
    line.settle(first, Settlement(ABANDON))
    line.receive(2, OTHER_RECEIVER)
    assert kinds(line) == {"send": 3, "receive": 4, "settle": 1}


def test_a_topic_is_charged_for_the_send_and_its_subscriptions_for_what_is_received() -> None:
    core = CoreHarness()
    core.apply(CreateEntity(1, TOPIC, "t", EntitySettings()))
    for name in ("one", "two"):
        core.apply(CreateEntity(2, SUBSCRIPTION, f"t/Subscriptions/{name}", EntitySettings()))
    core.apply(AttachSender(1, "t"), AttachReceiver(2, "t/Subscriptions/two", False))
    core.apply(Send(1, 1, [message(b"abc")], False, 3), Credit(2, 5, False))
    assert counted(core) == {("t", "send"): (1, 1, 3), ("t/Subscriptions/two", "receive"): (1, 1, 3)}


def test_a_duplicate_that_is_dropped_was_accepted_and_is_a_send() -> None:
    settings = EntitySettings()
    settings.requires_duplicate_detection = True
    line = Line(settings)
    for _ in range(3):
        line.send(message(b"abc", message_id="same"))
    assert counted(line) == {("q", "send"): (3, 3, 9)}
    line.attach()
    assert len(line.receive(5)) == 1


def test_an_entity_that_goes_by_itself_leaves_its_rows() -> None:
    settings = EntitySettings()
    settings.auto_delete_ms = 5 * MINUTE_MS
    line = Line(settings)
    line.send(message(b"abc"))
    line.apply(DetachLink(SENDER))
    line.step(30 * MINUTE_MS)
    assert not line.namespace.exists("q")
    assert counted(line) == {("q", "send"): (1, 1, 3)}


def test_every_hop_of_a_forwarded_message_is_a_send_where_it_arrives() -> None:
    core = CoreHarness()
    onward = EntitySettings()
    onward.forward_to = "end"
    core.apply(CreateEntity(1, QUEUE, "end", EntitySettings()), CreateEntity(2, QUEUE, "middle", onward))
    first = EntitySettings()
    first.forward_to = "middle"
    core.apply(CreateEntity(3, QUEUE, "start", first), AttachSender(1, "start"))
    core.apply(Send(1, 1, [message(b"abc"), message(b"d")], False, 4))
    assert counted(core) == {(name, "send"): (2, 2, 4) for name in ("start", "middle", "end")}


def test_moving_to_the_dead_letter_queue_costs_nothing_receiving_from_it_does() -> None:
    settings = EntitySettings()
    settings.max_delivery_count = 1
    line = Line(settings)
    line.send(message(b"abc"))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(ABANDON))
    assert kinds(line) == {"send": 1, "receive": 1, "settle": 1}
    (dead,) = line.dead_letters()
    line.settle(dead, Settlement(COMPLETE))
    assert kinds(line, "q/$DeadLetterQueue") == {"receive": 1, "settle": 1}


# -- settling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [COMPLETE, ABANDON, DEFER, DEAD_LETTER, RELEASE])
def test_a_settlement_of_any_kind_is_one_operation_without_bytes(line: Line, kind: int) -> None:
    line.send(message(b"x" * 100_000))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(kind))
    assert counted(line)["q", "settle"] == (1, 1, 0)


def test_settling_by_tokens_counts_each_of_them_and_none_if_one_is_lost(line: Line) -> None:
    line.send_many(3)
    line.attach()
    tokens = [delivery.lock_token for delivery in line.receive(3)]
    line.apply(UpdateDisposition(1, "q", [*tokens, b"lost"], Settlement(COMPLETE)))
    assert "settle" not in kinds(line)
    line.apply(UpdateDisposition(2, "q", tokens, Settlement(COMPLETE)))
    assert kinds(line)["settle"] == 3


def test_a_settlement_that_comes_too_late_is_not_counted(line: Line) -> None:
    line.send()
    line.attach()
    (delivery,) = line.receive()
    line.step(line.settings.lock_duration_ms)
    line.settle(delivery, Settlement(COMPLETE))
    assert "settle" not in kinds(line)


def test_renewing_counts_each_lock(line: Line) -> None:
    line.send_many(2)
    line.attach()
    tokens = [delivery.lock_token for delivery in line.receive(2)]
    line.apply(RenewLocks(1, "q", tokens))
    line.apply(RenewLocks(2, "q", [*tokens, b"lost"]))
    assert counted(line)["q", "renew"] == (2, 2, 0)


# -- by number ----------------------------------------------------------------------------------------------------


def test_browsing_counts_each_message_shown_and_one_if_there_was_none(line: Line) -> None:
    line.apply(Peek(1, "q", 0, 10))
    assert counted(line) == {("q", "peek"): (1, 1, 0)}
    line.send(message(b"aa"), message(b"bbb"))
    line.apply(Peek(2, "q", 0, 10))
    assert counted(line)["q", "peek"] == (3, 3, 5)


def test_scheduling_and_cancelling_count_each_message(line: Line) -> None:
    later = [message(b"x" * size, scheduled_ms=line.now_ms + 60_000) for size in (10, UNIT_BYTES + 1)]
    (scheduled,) = line.apply(Schedule(1, "q", later, 0))
    assert isinstance(scheduled, Scheduled)
    line.apply(CancelScheduled(2, "q", [*scheduled.sequence_numbers, 99]))
    line.apply(CancelScheduled(3, "q", scheduled.sequence_numbers))
    assert counted(line) == {("q", "schedule"): (2, 3, UNIT_BYTES + 11), ("q", "cancel"): (2, 2, 0)}


def test_a_message_sent_for_later_is_a_send_and_nothing_more_when_its_time_comes(line: Line) -> None:
    line.send(message(b"abc", scheduled_ms=line.now_ms + 1_000))
    line.step(1_000)
    assert counted(line) == {("q", "send"): (1, 1, 3)}


def test_receiving_by_number_counts_each_message_and_an_empty_receive_if_there_was_none(line: Line) -> None:
    line.send(message(b"aa"), message(b"bbb"))
    line.attach()
    for delivery in line.receive(2):
        line.settle(delivery, Settlement(DEFER))
    before = kinds(line)
    line.apply(ReceiveDeferred(1, "q", [1], True))
    line.apply(ReceiveDeferred(2, "q", [2], False))
    assert kinds(line) == before | {"receive": before["receive"] + 2}
    line.apply(ReceiveDeferred(3, "q", [1], False))
    line.apply(ReceiveDeferred(4, "q", [2], False))  # somebody holds it
    assert kinds(line)["empty_receive"] == 2


# -- calls to receive that end with nothing -----------------------------------------------------------------------


class Calls(Line):
    """A receiver that grants credit as the SDKs do."""

    def __init__(self) -> None:
        super().__init__()
        self.attach()

    def ask(self, limit: int, asks: int, drains: bool = False) -> list[Effect]:
        return self.apply(Credit(RECEIVER, limit, drains, asks))

    @property
    def empty(self) -> int:
        return kinds(self).get("empty_receive", 0)


def test_credit_that_is_given_again_and_again_counts_every_call_once_it_is_over() -> None:
    calls = Calls()
    calls.ask(10, ASKS_MORE)
    assert calls.empty == 0
    calls.ask(10, ASKS_AGAIN)
    assert calls.empty == 1
    calls.ask(10, ASKS_AGAIN)
    calls.apply(DetachLink(RECEIVER))
    assert calls.empty == 3
    assert counted(calls)["q", "empty_receive"] == (3, 3, 0)


def test_a_call_that_got_a_message_is_not_empty_however_much_credit_is_left() -> None:
    calls = Calls()
    calls.ask(10, ASKS_MORE)
    calls.send()
    calls.ask(11, ASKS_MORE)
    calls.send()
    calls.apply(DetachLink(RECEIVER))
    assert calls.empty == 0


def test_the_call_after_the_one_that_got_a_message_is_a_call_of_its_own() -> None:
    calls = Calls()
    calls.ask(10, ASKS_MORE)
    calls.send()
    calls.ask(11, ASKS_MORE)
    calls.apply(DetachLink(RECEIVER))
    assert calls.empty == 1


def test_more_credit_for_a_call_that_still_waits_is_not_another_call() -> None:
    calls = Calls()
    for limit in range(1, 6):
        calls.ask(limit, ASKS_MORE)
    calls.apply(DetachLink(RECEIVER))
    assert calls.empty == 1


def test_a_drain_ends_the_call_and_the_link_may_go_then() -> None:
    calls = Calls()
    for limit in (1, 2, 3):
        calls.ask(limit, ASKS_MORE)
        assert [type(effect) for effect in calls.ask(limit, NOT_ASKED, drains=True)] == [Drained]
        assert calls.empty == limit
    calls.apply(DetachLink(RECEIVER))
    assert calls.empty == 3


def test_credit_and_drain_in_one_are_one_call() -> None:
    calls = Calls()
    calls.ask(1, ASKS_MORE, drains=True)
    assert calls.empty == 1


def test_a_drain_after_a_message_or_without_credit_is_no_empty_receive() -> None:
    calls = Calls()
    calls.send()
    calls.ask(5, ASKS_MORE)
    calls.ask(5, NOT_ASKED, drains=True)
    calls.ask(1, NOT_ASKED, drains=True)
    assert calls.empty == 0


def test_a_call_that_begins_before_the_drain_of_the_last_one_is_answered_is_not_drained_with_it() -> None:
    calls = Calls()
    calls.send()
    calls.ask(5, ASKS_MORE)
    said = calls.apply(Credit(RECEIVER, 5, True, NOT_ASKED), Credit(RECEIVER, 6, False, ASKS_MORE))
    assert said == []
    assert calls.empty == 0
    calls.send()
    assert kinds(calls)["receive"] == 2
    calls.apply(DetachLink(RECEIVER))
    assert calls.empty == 0


def test_credit_taken_back_ends_the_call() -> None:
    calls = Calls()
    calls.ask(5, ASKS_MORE)
    calls.ask(0, ASKS_NOTHING)
    assert calls.empty == 1
    calls.apply(DetachLink(RECEIVER))
    assert calls.empty == 1


def test_a_limit_that_we_move_ourselves_is_no_call() -> None:
    calls = Calls()
    calls.ask(5, ASKS_MORE)
    calls.ask(0, NOT_ASKED)
    calls.ask(5, NOT_ASKED)
    assert calls.empty == 0
    calls.apply(DetachLink(RECEIVER))
    assert calls.empty == 1


def test_a_link_that_never_asked_leaves_no_empty_receive() -> None:
    calls = Calls()
    calls.apply(DetachLink(RECEIVER))
    assert calls.empty == 0


def test_a_call_that_waits_when_its_queue_is_deleted_is_over() -> None:
    calls = Calls()
    calls.ask(5, ASKS_MORE)
    calls.apply(DeleteEntity(1, "q"))
    assert calls.empty == 1


# -- sessions -----------------------------------------------------------------------------------------------------


@pytest.fixture
def talks() -> CoreHarness:
    core = CoreHarness()
    settings = EntitySettings()
    settings.requires_session = True
    core.apply(CreateEntity(900, QUEUE, "q", settings), AttachSender(SENDER, "q"))
    return core


def test_accepting_reading_setting_and_listing_are_session_operations_and_renewing_is_renewing(
    talks: CoreHarness,
) -> None:
    talks.apply(AttachReceiver(RECEIVER, "q", False, SessionWish("s", 0)))
    talks.apply(SetSessionState(1, "q", "s", b"x" * (UNIT_BYTES + 1)))
    talks.apply(GetSessionState(2, "q", "s"))
    talks.apply(SetSessionState(3, "q", "s", None))
    talks.apply(ListSessions(4, "q", 0, 0, 10))
    talks.apply(RenewSession(5, "q", "s"))
    assert counted(talks) == {("q", "session"): (5, 7, 2 * (UNIT_BYTES + 1)), ("q", "renew"): (1, 1, 0)}


def test_a_state_read_from_the_store_counts_like_one_that_is_known(talks: CoreHarness) -> None:
    talks.apply(AttachReceiver(RECEIVER, "q", False, SessionWish("s", 0)))
    talks.apply(SetSessionState(1, "q", "s", b"four"))
    talks.apply(DetachLink(RECEIVER))
    talks.apply(AttachReceiver(OTHER_RECEIVER, "q", False, SessionWish("s", 0)))
    talks.apply(GetSessionState(2, "q", "s"))
    assert counted(talks) == {("q", "session"): (4, 4, 8)}


def test_waiting_for_the_next_session_in_vain_is_an_empty_receive(talks: CoreHarness) -> None:
    talks.apply(AttachReceiver(RECEIVER, "q", False, SessionWish(None, 1_000)))
    assert kinds(talks) == {}
    talks.step(1_000)
    assert kinds(talks) == {"empty_receive": 1}
    talks.apply(AttachReceiver(OTHER_RECEIVER, "q", False, SessionWish(None, 1_000)))
    talks.apply(DetachLink(OTHER_RECEIVER))
    assert kinds(talks) == {"empty_receive": 2}


def test_a_session_that_is_lost_while_its_receiver_waits_ends_the_call(talks: CoreHarness) -> None:
    talks.apply(AttachReceiver(RECEIVER, "q", False, SessionWish("s", 0)))
    talks.apply(Credit(RECEIVER, 5, False, ASKS_MORE))
    talks.step(60_000)
    assert kinds(talks) == {"session": 1, "empty_receive": 1}


def test_what_is_refused_about_a_session_is_not_counted(talks: CoreHarness) -> None:
    talks.apply(GetSessionState(1, "q", "nobody's"), RenewSession(2, "q", "nobody's"))
    talks.apply(AttachReceiver(RECEIVER, "q", False, SessionWish("s", 0)))
    talks.apply(AttachReceiver(OTHER_RECEIVER, "q", False, SessionWish("s", 0)))
    assert kinds(talks) == {"session": 1}


# -- management ---------------------------------------------------------------------------------------------------


def test_requests_of_clients_about_rules_are_management_and_those_behind_http_are_not() -> None:
    core = CoreHarness()
    core.apply(CreateEntity(1, TOPIC, "t", EntitySettings()))
    core.apply(CreateEntity(2, SUBSCRIPTION, "t/Subscriptions/s", EntitySettings()))
    rule = default_rule(0)
    rule.name = "mine"
    path = "t/Subscriptions/s"
    asked: list[Request] = [AddRule(3, path, rule), ListRules(4, path, 0, 10), RemoveRule(5, path, "mine")]
    core.apply(*asked)
    core.apply(asked[-1])  # there is none any more: refused
    assert counted(core) == {(path, "management"): (3, 3, 0)}
    for request in asked:
        request.is_administrative = True
    core.apply(*asked)
    assert counted(core) == {(path, "management"): (3, 3, 0)}


def test_deleting_a_batch_is_one_management_operation(line: Line) -> None:
    line.send_many(3)
    line.apply(BatchDelete(1, "q", 10, line.now_ms + 1))
    assert kinds(line) == {"send": 3, "management": 1}


def test_an_operation_of_the_administration_is_counted_where_it_was_asked_for(line: Line) -> None:
    line.apply(Meter(1, "Q", MANAGEMENT, NAMESPACE_ENTITY), Meter(2, "gone", MANAGEMENT, "gone"))
    line.apply(Meter(3, "never", MANAGEMENT, NAMESPACE_ENTITY), Meter(4, "$any", MANAGEMENT, NAMESPACE_ENTITY))
    assert counted(line) == {
        ("q", "management"): (1, 1, 0),
        ("gone", "management"): (1, 1, 0),
        (NAMESPACE_ENTITY, "management"): (2, 2, 0),
    }


# -- when it is written down --------------------------------------------------------------------------------------


def test_a_send_and_a_settlement_are_counted_in_the_turn_that_remembers_them(line: Line) -> None:
    turn = turn_of(line, Send(SENDER, 1, [message(b"abc")], False, 3))
    assert turn.needs_ack()
    assert saved(turn) == {"send": 1}
    line.attach()
    (delivery,) = line.receive()
    turn = turn_of(line, Settle(RECEIVER, 1, delivery.lock_token, Settlement(COMPLETE), False))
    assert turn.needs_ack()
    assert saved(turn) == {"send": 1, "receive": 1, "settle": 1}


def test_what_leaves_nothing_to_remember_waits_for_the_next_turn_that_does_or_for_the_second_to_pass(
    line: Line,
) -> None:
    line.send_many(2)
    line.attach()
    assert turn_of(line, Credit(RECEIVER, 1, False)).is_empty()
    assert line.namespace.has_counted()
    turn = turn_of(line, SaveLedger())
    assert saved(turn) == {"send": 2, "receive": 1}
    assert not turn.needs_ack()
    assert not line.namespace.has_counted()
    assert turn_of(line, Credit(RECEIVER, 2, False)).is_empty()
    turn = turn_of(line, Send(SENDER, 1, [message()], False, 5))
    assert saved(turn) == {"send": 3, "receive": 2}


def test_a_second_in_which_nothing_happened_writes_nothing(line: Line) -> None:
    line.send()
    assert turn_of(line, SaveLedger()).is_empty()


def test_what_is_written_down_late_is_in_the_minute_it_happened() -> None:
    line = Line()
    line.now_ms = 10 * DAY_MS + 59_900
    line.send(message(b"1"))
    line.attach()
    line.receive()  # not written down yet
    line.now_ms += 200
    line.send(message(b"2"))
    first = 10 * 24 * 60
    assert [(row.minute, KIND_NAMES[row.kind], row.operations) for row in rows(line)] == [
        (first, "send", 1),
        (first, "receive", 1),
        (first + 1, "send", 1),
    ]


def test_a_clock_that_goes_back_counts_in_the_latest_minute() -> None:
    line = Line()
    line.now_ms = 10 * DAY_MS + MINUTE_MS
    line.send()
    line.now_ms -= DAY_MS
    line.send()
    assert [(row.minute, row.operations) for row in rows(line)] == [(10 * 24 * 60 + 1, 2)]


def test_a_deleted_entity_keeps_its_rows_and_one_of_the_same_name_goes_on_with_them(line: Line) -> None:
    line.send()
    line.apply(DeleteEntity(1, "q"))
    assert kinds(line) == {"send": 1}
    line.apply(CreateEntity(2, QUEUE, "q", EntitySettings()), AttachSender(8, "q"))
    line.send(link_id=8)
    assert kinds(line) == {"send": 2}


@pytest.mark.parametrize("later_ms", [0, MINUTE_MS, DAY_MS])
def test_what_was_counted_survives_a_restart_in_its_minute_and_later(line: Line, later_ms: int) -> None:
    line.send(message(b"abc"))
    line.now_ms += later_ms
    line.restart()
    line.apply(AttachSender(SENDER, "q"))
    line.send(message(b"abc"))
    found = [(row.minute, row.operations) for row in [*line.journal.days.rows(0), *rows(line)]]
    assert found == ([(16, 2)] if later_ms == 0 else [(16, 1), (16 + later_ms // MINUTE_MS, 1)])


def test_asking_for_the_ledger_counts_nothing_twice(line: Line) -> None:
    for number in range(1, 6):
        line.send()
        assert kinds(line) == {"send": number}
        assert kinds(line) == {"send": number}
    line.restart()
    assert kinds(line) == {"send": 5}


def test_rows_are_made_once_a_minute_and_a_few_hundred_a_second() -> None:
    core = CoreHarness()
    count = WRITTEN_A_SECOND_MAX + 20
    core.apply(*[CreateEntity(number, QUEUE, f"q{number}", EntitySettings()) for number in range(count)])
    core.apply(*[AttachSender(10 + number, f"q{number}") for number in range(count)])
    for _ in range(3):
        turn = turn_of(core, *[Send(10 + number, 1, [message()], False, 5) for number in range(count)])
        assert (len(turn.ledger), len(turn.tallies)) == (0, count)
    core.now_ms += MINUTE_MS
    assert len(turn_of(core, SaveLedger()).ledger) == WRITTEN_A_SECOND_MAX
    assert len(turn_of(core, SaveLedger()).ledger) == 20
    assert not core.namespace.has_counted()
    assert turn_of(core, SaveLedger()).is_empty()
    assert sum(numbers[0] for numbers in counted(core).values()) == 3 * count


def test_whatever_happens_in_whatever_order_every_operation_is_counted_once() -> None:
    """Operations, seconds, minutes, days, crashes, deletions and readers at random; sends are counted beside it."""
    for seed in range(30):
        dice = random.Random(seed)
        core = CoreHarness(now_ms=10 * DAY_MS)
        sent: dict[str, int] = {}
        links: dict[str, int] = {}
        for step in range(200):
            name = f"q{dice.randrange(4)}"
            what = dice.random()
            if what < 0.5:
                if name not in links:
                    core.apply(CreateEntity(1, QUEUE, name, EntitySettings()))
                    links[name] = 100 + step
                    core.apply(AttachSender(links[name], name))
                core.apply(Send(links[name], 1, [message()], False, 5))
                sent[name] = sent.get(name, 0) + 1
            elif what < 0.6:
                core.apply(SaveLedger())
            elif what < 0.8:
                core.step(dice.choice([10, 20_000, MINUTE_MS, 7 * MINUTE_MS, DAY_MS, 3 * DAY_MS]))
            elif what < 0.85:
                core.apply(DeleteEntity(1, name))
                links.pop(name, None)
            elif what < 0.9:
                core.restart()
                core.apply(*[AttachSender(link_id, name) for name, link_id in links.items()])
            else:
                rows(core)
        totals: dict[str, int] = {}
        days = [row for day in range(10, 400) for row in core.journal.days.rows(day)]
        for row in [*days, *rows(core)]:
            totals[row.entity] = totals.get(row.entity, 0) + row.operations
        assert totals == sent, f"seed {seed}"


def test_changing_an_entity_loses_no_count(line: Line) -> None:
    line.send()
    line.attach()
    line.receive()
    line.apply(UpdateEntity(1, "q", EntitySettings()))
    assert kinds(line) == {"send": 1, "receive": 1}


# -- days ---------------------------------------------------------------------------------------------------------


def sealed(core: CoreHarness, day: int) -> list[tuple[int, str, int]]:
    return [(row.minute, KIND_NAMES[row.kind], row.operations) for row in core.journal.days.rows(day)]


def test_a_day_is_sealed_when_it_is_over_and_the_next_begins_anew() -> None:
    line = Line()
    line.now_ms = 10 * DAY_MS
    line.send()
    line.now_ms = 11 * DAY_MS - 1
    line.attach()
    line.receive()
    assert line.namespace.next_due_ms() == line.now_ms + 1
    line.step(1)
    assert sealed(line, 10) == [(10 * 1440, "send", 1), (11 * 1440 - 1, "receive", 1)]
    assert rows(line) == []
    line.send()
    assert [(row.minute, row.operations) for row in rows(line)] == [(11 * 1440, 1)]
    assert sealed(line, 11) == []


def test_every_day_that_a_leap_of_the_clock_ends_is_sealed_and_idle_days_have_no_file() -> None:
    line = Line()
    line.now_ms = 10 * DAY_MS
    line.send()
    line.step(5 * DAY_MS)
    line.send()
    line.step(DAY_MS)
    assert [day for day in range(8, 20) if sealed(line, day)] == [10, 15]


def test_a_day_that_ended_while_nobody_ran_is_sealed_at_the_next_start() -> None:
    line = Line()
    line.now_ms = 10 * DAY_MS
    line.send()
    line.now_ms += 3 * DAY_MS
    line.restart()
    assert 0 < line.namespace.next_due_ms() <= line.now_ms
    line.apply()
    assert sealed(line, 10) == [(10 * 1440, "send", 1)]
    assert line.namespace.next_due_ms() == 0


def test_an_idle_namespace_has_nothing_to_seal_and_sets_no_timer(line: Line) -> None:
    assert line.namespace.next_due_ms() == 0
    line.attach()
    assert delivered(line.credit(1)) == []
    assert line.namespace.next_due_ms() == 0


def test_a_page_ends_where_it_was_asked_to_and_goes_on_behind_its_last_row() -> None:
    core = CoreHarness()
    core.apply(*[CreateEntity(number, QUEUE, f"q{number}", EntitySettings()) for number in range(7)])
    core.apply(*[AttachSender(10 + number, f"q{number}") for number in range(7)])
    core.apply(*[Send(10 + number, 1, [message()], False, 5) for number in range(7)])
    seen: list[str] = []
    after: tuple[int, str, int] | None = BEFORE_ALL
    while after is not None:
        (page,) = core.apply(ReadLedger(1, 0, FOR_EVER, after, 3))
        assert isinstance(page, LedgerPage)
        seen += [row.entity for row in page.rows]
        after = page.after
    assert seen == [f"q{number}" for number in range(7)]
