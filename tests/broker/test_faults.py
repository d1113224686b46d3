"""Faults in the core: what they do to each operation, how often, how long, and that nobody else notices."""

import pytest

from spillway.broker.commands import (
    Administer,
    AttachReceiver,
    AttachSender,
    CreateEntity,
    Credit,
    DetachLink,
    InjectFault,
    ListFaults,
    ListRules,
    Peek,
    RemoveFaults,
    RenewLocks,
    RenewSession,
    Request,
    Schedule,
    Send,
    SessionWish,
    UpdateDisposition,
)
from spillway.broker.effects import (
    Attached,
    Detached,
    Done,
    Drained,
    Dropped,
    Effect,
    Failed,
    FaultsListed,
    Messages,
    Refused,
    Renewed,
    Restarted,
    Scheduled,
    SendSettled,
    SettlementAnswered,
    Swallowed,
)
from spillway.broker.faults import Dice
from spillway.model import limits
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.errors import (
    BrokerError,
    DetachForced,
    EntityNotFound,
    MessageLockLost,
    QuotaExceeded,
    ServerBusy,
    SessionLockLost,
)
from spillway.model.faults import Fault, FaultReport
from spillway.model.message import Message
from spillway.model.settlement import COMPLETE, Settlement
from spillway.testing.core import message
from tests.broker.line import OTHER_RECEIVER, RECEIVER, SENDER, Line, bodies, delivered

DONE = Settlement(COMPLETE)


def plant(line: Line, fault: Fault) -> FaultReport:
    (listed,) = [said for said in line.apply(InjectFault(600, fault)) if isinstance(said, FaultsListed)]
    return listed.reports[0]


def remove(line: Line, number: int = 0) -> list[Effect]:
    return line.apply(RemoveFaults(601, number))


def reports(line: Line) -> list[FaultReport]:
    (listed,) = line.apply(ListFaults(602, ""))
    assert isinstance(listed, FaultsListed)
    return listed.reports


def inside(line: Line, request: Request) -> list[Effect]:
    """As who runs the namespace asks."""
    request.is_administrative = True
    return line.apply(request)


def error_in(effects: list[Effect]) -> BrokerError | None:
    (said,) = effects
    assert isinstance(said, (SendSettled, SettlementAnswered, Refused, Failed, Detached)), said
    return said.error


# -- what is refused ----------------------------------------------------------------------------------------------


def test_a_refusing_fault_refuses_every_operation_until_it_is_removed(line: Line) -> None:
    line.send(message(b"a"))
    line.attach()
    (delivery,) = line.receive()
    plant(line, Fault("server-busy", "q"))
    assert isinstance(error_in(line.send(message(b"b"))), ServerBusy)
    assert isinstance(error_in(line.settle(delivery, DONE)), ServerBusy)
    assert isinstance(error_in(line.attach(70)), ServerBusy)
    assert isinstance(error_in(line.apply(AttachSender(71, "q"))), ServerBusy)
    assert isinstance(error_in(line.apply(Peek(603, "q", 1, 1))), ServerBusy)
    assert isinstance(error_in(line.apply(Administer(604, "q"))), ServerBusy)
    assert isinstance(error_in(line.credit(1)), ServerBusy), "a receiver that asks is detached"
    remove(line)
    assert error_in(line.send(message(b"c"))) is None
    line.attach(72)
    assert bodies(line.receive(2, 72)) == [b"c"], "what was refused was not stored"


def test_the_text_says_on_purpose_unless_another_is_given(line: Line) -> None:
    plant(line, Fault("disabled", "q", ["send"]))
    assert "'q' is currently disabled. (Fault 1, planted on purpose.)" in str(error_in(line.send()))
    remove(line)
    plant(line, Fault("refuse", "q", ["send"], "vendor:tuesday", "Not today."))
    error = error_in(line.send())
    assert error is not None
    assert (error.said_condition(), error.description) == ("vendor:tuesday", "Not today.")


def test_a_fault_covers_an_entity_and_what_is_below_it_and_no_other(line: Line) -> None:
    topic = [CreateEntity(500, TOPIC, "t", EntitySettings()), CreateEntity(501, QUEUE, "q/b", EntitySettings())]
    line.apply(*topic, CreateEntity(502, SUBSCRIPTION, "t/Subscriptions/s", EntitySettings()))
    plant(line, Fault("server-busy", "Q", ["attach"]))
    plant(line, Fault("quota", "t", ["attach"]))
    refused = {path: isinstance(line.attach(80, path)[0], Refused) for path in ("q", "q/$DeadLetterQueue", "q/b")}
    assert refused == {"q": True, "q/$DeadLetterQueue": True, "q/b": False}
    assert isinstance(error_in(line.attach(81, "t/Subscriptions/s")), QuotaExceeded)
    assert isinstance(error_in(line.attach(82, "t/Subscriptions/s/$DeadLetterQueue")), QuotaExceeded)


def test_a_fault_of_the_namespace_covers_every_entity(line: Line) -> None:
    line.apply(CreateEntity(500, QUEUE, "other", EntitySettings()))
    plant(line, Fault("server-busy", "*", ["attach"]))
    assert isinstance(error_in(line.apply(AttachSender(80, "other"))), ServerBusy)
    assert isinstance(error_in(line.apply(AttachSender(81, "q"))), ServerBusy)


def test_what_the_broker_asks_itself_is_not_struck(line: Line) -> None:
    plant(line, Fault("drop", "*"))
    assert isinstance(inside(line, Peek(603, "q", 1, 1))[0], Messages)


def test_a_pre_settled_send_that_is_refused_is_not_stored_and_not_answered(line: Line) -> None:
    plant(line, Fault("server-busy", "q", ["send"]))
    assert line.send(message(b"a"), is_settled=True) == []
    remove(line)
    line.attach()
    assert line.receive() == []


# -- how often, how long ------------------------------------------------------------------------------------------


def outcomes(line: Line, count: int) -> str:
    return "".join("." if error_in(line.send()) is None else "x" for _ in range(count))


def test_after_and_count_choose_which_operations_suffer(line: Line) -> None:
    plant(line, Fault("server-busy", "q", ["send"], after=2, count=3))
    assert outcomes(line, 8) == "..xxx..."
    (report,) = reports(line)
    assert (report.state, report.tried, report.hit) == ("spent", 5, 3)


def test_chance_follows_from_the_seed(line: Line) -> None:
    plant(line, Fault("server-busy", "q", ["send"], probability=0.5, seed=7))
    first = outcomes(line, 40)
    remove(line)
    plant(line, Fault("server-busy", "q", ["send"], probability=0.5, seed=7))
    assert outcomes(line, 40) == first
    assert 10 < first.count("x") < 30
    remove(line)
    plant(line, Fault("server-busy", "q", ["send"], probability=0.5, seed=8))
    assert outcomes(line, 40) != first


def test_the_dice_are_fair_enough() -> None:
    dice = Dice(1)
    rolls = [dice.roll() for _ in range(10_000)]
    assert 0 <= min(rolls) < 0.01
    assert 0.99 < max(rolls) < 1
    assert 0.48 < sum(rolls) / len(rolls) < 0.52


def test_a_fault_with_a_duration_ends_by_itself_at_its_time(line: Line) -> None:
    report = plant(line, Fault("server-busy", "q", ["send"], duration_ms=5_000))
    assert report.ends_ms == line.now_ms + 5_000
    assert line.namespace.next_due_ms() == line.now_ms + 5_000
    line.step(4_999)
    assert outcomes(line, 1) == "x"
    line.step(1)
    assert outcomes(line, 1) == "."
    (report,) = reports(line)
    assert (report.state, report.hit) == ("ended", 1)
    assert line.namespace.faulting.due_ms() == 0
    assert not line.namespace.faulting.is_on, "as quick as without"


def test_the_first_fault_that_strikes_wins_and_the_others_are_not_asked(line: Line) -> None:
    plant(line, Fault("quota", "q", ["send"], count=1))
    plant(line, Fault("server-busy", "q", ["send"], count=1))
    assert [type(error_in(line.send())) for _ in range(3)] == [QuotaExceeded, ServerBusy, type(None)]
    assert [report.tried for report in reports(line)] == [1, 1]


def test_faults_are_gone_after_a_restart_of_the_broker(line: Line) -> None:
    plant(line, Fault("server-busy", "q"))
    line.restart()
    assert reports(line) == []
    assert isinstance(line.apply(AttachSender(SENDER, "q"))[0], Attached)


def test_there_is_a_limit_and_what_is_over_does_not_count(line: Line) -> None:
    for _ in range(limits.FAULTS_MAX):
        plant(line, Fault("server-busy", "nobody", ["send"]))
    error = error_in(line.apply(InjectFault(600, Fault("drop"))))
    assert isinstance(error, QuotaExceeded)
    assert "1000 faults planted, the most it may have" in error.description
    remove(line)
    for _ in range(limits.FAULTS_REMEMBERED_MAX + 5):
        plant(line, Fault("server-busy", "q", ["send"], count=1))
        line.send()
    assert len(reports(line)) == limits.FAULTS_REMEMBERED_MAX


def test_an_unknown_number_cannot_be_removed_and_a_known_one_alone_is(line: Line) -> None:
    plant(line, Fault("quota", "q", ["send"]))
    second = plant(line, Fault("server-busy", "q", ["send"]))
    assert isinstance(error_in(remove(line, 77)), EntityNotFound)
    remove(line, 1)
    assert [report.number for report in reports(line)] == [second.number]


def test_a_report_says_whether_the_entity_is_there(line: Line) -> None:
    assert plant(line, Fault("drop", "Q/$deadletterqueue")).entity_exists
    assert not plant(line, Fault("drop", "typo")).entity_exists
    assert plant(line, Fault("drop", "*")).entity_exists


# -- silence, ends, locks -----------------------------------------------------------------------------------------


def test_a_swallowed_operation_is_neither_done_nor_answered(line: Line) -> None:
    line.send(message(b"a"))
    line.attach()
    (delivery,) = line.receive()
    plant(line, Fault("timeout", "q", ["send", "settle", "attach", "management", "administration"]))
    assert line.send(message(b"b")) == []
    assert line.settle(delivery, DONE) == []
    assert line.attach(70) == []
    assert [type(said) for said in line.apply(Peek(603, "q", 1, 9))] == [Swallowed]
    assert [type(said) for said in line.apply(Administer(604, "q"))] == [Swallowed]
    remove(line)
    assert error_in(line.settle(delivery, DONE)) is None, "its lock was kept"
    line.attach(71)
    assert line.receive(5, 71) == [], "b was never stored"


def test_a_deaf_receiver_is_handed_nothing_until_the_fault_is_over(line: Line) -> None:
    line.attach()
    line.credit(5)
    plant(line, Fault("timeout", "q", ["receive"]))
    line.send(message(b"a"))
    assert line.credit(5) == []
    assert line.credit(0, drains=True) == [], "not even the drain is answered"
    said = remove(line)
    assert bodies(delivered(said)) == [b"a"]
    assert [type(one) for one in said if isinstance(one, Drained)] == [Drained]


def test_one_deaf_receiver_leaves_the_message_to_the_others(line: Line) -> None:
    plant(line, Fault("timeout", "q", ["receive"], count=1, duration_ms=9_000))
    line.attach()
    line.attach(OTHER_RECEIVER)
    line.credit(9)
    line.credit(9, OTHER_RECEIVER)
    line.send(message(b"a"))
    line.send(message(b"b"))
    assert bodies(delivered(line.apply(Credit(RECEIVER, 50, False)))) == []
    line.send(message(b"c"))
    line.apply(DetachLink(OTHER_RECEIVER))
    line.send(message(b"d"))
    assert [report.state for report in reports(line)] == ["spent"]
    assert bodies(delivered(line.step(9_000))) == [b"d"], "its time is up: it hears again"


def test_a_deaf_receiver_that_leaves_is_forgotten(line: Line) -> None:
    plant(line, Fault("timeout", "q", ["receive"], count=1))
    line.attach()
    line.credit(1)
    line.apply(DetachLink(RECEIVER))
    assert not line.namespace.faulting.faults.by_number[1].muted
    remove(line)


def test_a_receiver_that_waits_is_struck_when_the_fault_is_planted(line: Line) -> None:
    line.attach()
    line.attach(OTHER_RECEIVER)
    line.credit(1)
    said = line.apply(InjectFault(600, Fault("server-busy", "q", ["receive"])))
    assert [(one.to, type(one.error)) for one in said if isinstance(one, Detached)] == [(RECEIVER, ServerBusy)]
    assert isinstance(error_in(line.credit(1, OTHER_RECEIVER)), ServerBusy)


def test_a_detached_link_is_gone_in_the_core_too(line: Line) -> None:
    plant(line, Fault("detach", "q", ["send", "receive"]))
    assert isinstance(error_in(line.send(message(b"a"))), DetachForced)
    assert line.send(message(b"b")) == [], "the link is gone"
    line.attach()
    assert isinstance(error_in(line.credit(1)), DetachForced)
    remove(line)
    line.apply(AttachSender(SENDER, "q"))
    line.send(message(b"c"))
    line.attach()
    assert bodies(line.receive(3)) == [b"c"]


def test_a_dropped_connection_is_named_by_its_link_or_request(line: Line) -> None:
    plant(line, Fault("drop", "q"))
    said = [*line.send(), *line.apply(Peek(603, "q", 1, 1)), *line.apply(Administer(604, "q"))]
    assert [(type(one), one.to) for one in said] == [(Dropped, SENDER), (Dropped, 603), (Dropped, 604)]


def test_lock_lost_really_drops_the_lock(line: Line) -> None:
    line.send(message(b"a"))
    line.attach()
    (first,) = line.receive()
    plant(line, Fault("lock-lost", "q", ["settle"], count=1))
    assert isinstance(error_in(line.settle(first, DONE)), MessageLockLost)
    (second,) = line.receive()
    assert (bodies([second]), second.stored.delivery_count) == ([b"a"], 0), "back in its place, uncounted"
    assert isinstance(error_in(line.settle(first, DONE)), MessageLockLost), "the old lock is gone for good"
    assert error_in(line.settle(second, DONE)) is None


def test_lock_lost_strikes_renewals_and_settlements_by_request_and_nothing_else(line: Line) -> None:
    line.send(message(b"a"), message(b"b"))
    line.attach()
    first, second = line.receive(2)
    plant(line, Fault("lock-lost", "q", ["management"]))
    assert isinstance(line.apply(Peek(603, "q", 1, 1))[0], Messages)
    said = line.apply(RenewLocks(604, "q", [first.lock_token]))
    assert isinstance(error_in([one for one in said if one.to == 604]), MessageLockLost)
    said = line.apply(UpdateDisposition(605, "q", [second.lock_token], DONE))
    assert isinstance(error_in([one for one in said if one.to == 605]), MessageLockLost)
    assert bodies(line.receive(9)) == [b"a", b"b"]


def test_the_lock_of_a_session_is_lost_with_the_link_that_holds_it() -> None:
    settings = EntitySettings()
    settings.requires_session = True
    line = Line(settings)
    line.send(message(b"a", session_id="s"))
    line.apply(AttachReceiver(RECEIVER, "q", False, SessionWish("s", 0)))
    (delivery,) = delivered(line.apply(Credit(RECEIVER, 1, False)))
    plant(line, Fault("lock-lost", "q", count=1))
    settled, detached = line.settle(delivery, DONE)
    assert isinstance(settled, SettlementAnswered)
    assert isinstance(settled.error, SessionLockLost)
    assert isinstance(detached, Detached)
    assert isinstance(detached.error, SessionLockLost)
    assert isinstance(line.apply(AttachReceiver(9, "q", False, SessionWish("s", 0)))[0], Attached), "free for others"
    plant(line, Fault("lock-lost", "q", count=1))
    said = line.apply(RenewSession(606, "q", "s"))
    assert [type(one) for one in said] == [Detached, Failed]
    assert isinstance(error_in(said[1:]), SessionLockLost)


def test_a_quota_strikes_what_is_stored_and_nothing_else(line: Line) -> None:
    plant(line, Fault("quota", "q", ["management"]))
    assert isinstance(line.apply(Peek(603, "q", 1, 1))[0], Messages)
    later = message(b"a", scheduled_ms=line.now_ms + 1_000)
    assert isinstance(error_in(line.apply(Schedule(604, "q", [later], 1))), QuotaExceeded)
    remove(line)
    plant(line, Fault("quota", "q", ["send"]))
    assert isinstance(error_in(line.apply(Schedule(605, "q", [later], 1))), QuotaExceeded), "scheduling is sending"


def test_rules_over_http_are_administration_not_management(line: Line) -> None:
    line.apply(CreateEntity(500, TOPIC, "t", EntitySettings()))
    line.apply(CreateEntity(502, SUBSCRIPTION, "t/Subscriptions/s", EntitySettings()))
    plant(line, Fault("server-busy", "*", ["management"]))
    assert not isinstance(inside(line, ListRules(603, "t/Subscriptions/s", 0, 9))[0], Failed)
    assert isinstance(error_in(line.apply(ListRules(604, "t/Subscriptions/s", 0, 9))), ServerBusy)


# -- slow ---------------------------------------------------------------------------------------------------------


def test_a_slow_answer_comes_late_but_what_it_says_is_done_at_once(line: Line) -> None:
    line.attach()
    line.credit(9)
    plant(line, Fault("slow", "q", ["send"], delay_ms=500))
    said = line.send(message(b"a"))
    assert [type(one).__name__ for one in said] == ["Deliver"], "others are served"
    assert line.step(499) == []
    (settled,) = line.step(1)
    assert isinstance(settled, SendSettled)
    assert settled.error is None


def test_a_link_hears_its_answers_in_order_and_others_do_not_wait(line: Line) -> None:
    line.apply(AttachSender(90, "q"))
    plant(line, Fault("slow", "q", ["send"], delay_ms=500, count=1))
    line.send(message(b"a"))
    assert line.send(message(b"b")) == [], "behind the late one, on the same link"
    (other,) = line.send(message(b"c"), link_id=90)
    assert isinstance(other, SendSettled)
    said = line.step(500)
    assert [one.delivery_id for one in said if isinstance(one, SendSettled)] == [1, 2]
    assert not line.namespace.faulting.is_on, "spent, and nothing is held back"


def test_every_operation_can_be_slow(line: Line) -> None:
    line.send(message(b"a"))
    line.attach()
    (delivery,) = line.receive()
    plant(line, Fault("slow", "q", delay_ms=500))
    assert line.settle(delivery, DONE) == []
    assert line.apply(AttachSender(90, "q")) == []
    assert line.apply(Peek(603, "q", 1, 1)) == []
    assert line.apply(Administer(604, "q")) == []
    assert line.apply(Schedule(605, "q", [message(b"x", scheduled_ms=line.now_ms + 9_999)], 1)) == []
    line.step(100)
    said = line.step(400)
    assert [type(one) for one in said] == [SettlementAnswered, Attached, Messages, Done, Scheduled]
    assert line.namespace.next_due_ms() > line.now_ms, "the schedule"


def test_a_slow_delivery_is_locked_while_it_is_on_its_way_and_comes_in_order(line: Line) -> None:
    line.attach()
    line.credit(9)
    plant(line, Fault("slow", "q", ["receive"], delay_ms=500))
    line.send(message(b"a"))
    line.step(100)
    line.send(message(b"b"))
    line.attach(OTHER_RECEIVER)
    assert line.receive(9, OTHER_RECEIVER) == []
    assert bodies(delivered(line.step(400))) == [b"a"]
    assert bodies(delivered(line.step(100))) == [b"b"]


def test_too_much_that_is_late_is_said_early_and_in_order(line: Line) -> None:
    plant(line, Fault("slow", "q", ["send"], delay_ms=900_000))
    count = limits.DELAYED_EFFECTS_MAX + 10
    said: list[Effect] = []
    for first in range(0, count, 5_000):
        batch = [Send(SENDER, n, [Message(b"")], False, 1) for n in range(first, min(first + 5_000, count))]
        for send in batch:
            send.messages[0].is_ping = True  # answered, never stored
        said += line.apply(*batch)
    assert [one.delivery_id for one in said if isinstance(one, SendSettled)] == list(range(10))


# -- restart ------------------------------------------------------------------------------------------------------


def test_an_entity_that_restarts_ends_its_links_and_loses_its_locks_then_is_slow_for_a_while(line: Line) -> None:
    line.apply(CreateEntity(500, QUEUE, "other", EntitySettings()), AttachSender(90, "other"))
    line.send(message(b"a"))
    line.attach()
    (delivery,) = line.receive()
    said = line.apply(InjectFault(600, Fault("restart", "q", duration_ms=10_000, delay_ms=300)))
    ended = [one for one in said if isinstance(one, Detached)]
    assert sorted(one.to for one in ended) == [SENDER, RECEIVER]
    assert {type(one.error) for one in ended} == {DetachForced}
    assert isinstance(line.send(message(b"x"), link_id=90)[0], SendSettled), "others are not touched"
    assert line.attach() == []
    assert isinstance(line.step(300)[0], Attached)
    line.credit(1)
    (again,) = delivered(line.step(300))
    assert (bodies([again]), again.stored.delivery_count) == ([b"a"], 0)
    said = line.apply(RenewLocks(605, "q", [delivery.lock_token]))
    assert isinstance(error_in(line.step(300)), MessageLockLost)
    line.step(10_000)
    assert isinstance(line.apply(RenewLocks(606, "q", [again.lock_token]))[0], Renewed)
    (report,) = reports(line)
    assert report.state == "ended"


def test_a_namespace_that_restarts_closes_every_connection_and_may_refuse_for_a_while(line: Line) -> None:
    line.send(message(b"a"))
    line.attach()
    line.receive()
    said = line.apply(InjectFault(600, Fault("restart", duration_ms=10_000)))
    assert [type(one) for one in said] == [Restarted, FaultsListed]
    line.apply(DetachLink(SENDER), DetachLink(RECEIVER))
    error = error_in(line.attach())
    assert error is not None
    assert error.condition == "amqp:internal-error"
    line.step(10_000)
    line.attach()
    assert bodies(line.receive()) == [b"a"], "its lock was lost, it was not"


# -- hidden -------------------------------------------------------------------------------------------------------

HIDDEN_MS = 15 * 60_000


def peeked(line: Line, path: str = "q") -> list[bytes]:
    (answer,) = inside(line, Peek(700, path, 0, 100))
    assert isinstance(answer, Messages)
    return [stored.message.raw for stored in answer.messages]


def hide(line: Line, path: str = "q", count: int = 0) -> None:
    plant(line, Fault("hidden", path, delay_ms=HIDDEN_MS, count=count))


@pytest.mark.contract("I8")
def test_a_hidden_message_is_accepted_and_seen_by_nobody_until_its_time_then_it_appears_by_itself(line: Line) -> None:
    line.attach()
    line.credit(9)
    hide(line)
    assert error_in(line.send(message(b"a"))) is None
    assert error_in(line.send(message(b"b"))) is None
    assert peeked(line) == []
    counters = line.namespace.directory.queues["q"].counters
    assert (counters.active, counters.hidden, counters.total) == (0, 2, 2)
    assert delivered(line.step(HIDDEN_MS - 1)) == []
    assert bodies(delivered(line.step(1))) == [b"a", b"b"]
    assert (counters.active, counters.hidden) == (2, 0)


@pytest.mark.contract("I8")
def test_hidden_messages_survive_a_restart_though_the_fault_does_not(line: Line) -> None:
    hide(line)
    for n in range(3):
        line.send(message(b"%d" % n))
        line.step(1_000)
    line.restart()
    assert reports(line) == []
    line.attach()
    line.credit(9)
    assert peeked(line) == []
    assert bodies(delivered(line.step(HIDDEN_MS - 3_000))) == [b"0"]
    line.restart()
    line.attach()
    assert bodies(line.receive(9)) == [b"0"], "it was locked when the broker stopped"
    assert bodies(delivered(line.step(2_000))) == [b"1", b"2"]


def test_a_message_that_appears_stands_where_it_would_have_stood(line: Line) -> None:
    hide(line, count=1)
    line.send(message(b"hidden"))
    line.send(message(b"b"), message(b"c"))
    line.attach()
    first = line.receive()
    assert bodies(first) == [b"b"]
    line.step(HIDDEN_MS)
    line.attach(OTHER_RECEIVER)
    later = line.receive(9, OTHER_RECEIVER)
    assert bodies(later) == [b"hidden", b"b", b"c"], "b's lock has run out meanwhile"
    assert [one.stored.sequence_number for one in later] == [1, 2, 3]
    assert later[0].stored.enqueued_ms < line.now_ms - HIDDEN_MS + 1


def test_hidden_messages_of_a_deep_queue_are_found_in_their_places() -> None:
    settings = EntitySettings()
    settings.lock_duration_ms = 300_000
    line = Line(settings)
    plant(line, Fault("hidden", "q", delay_ms=60_000, probability=0.5, seed=3))
    line.send_many(6_000)
    remove(line)
    line.attach()
    seen = line.receive(1_500)
    line.step(59_999)
    seen += line.receive(500)
    assert len(seen) == 2_000
    line.step(1)
    rest = line.receive(10_000)
    numbers = [one.stored.sequence_number for one in rest]
    assert numbers == sorted(numbers), "by number, however they came"
    assert sorted([one.stored.sequence_number for one in seen] + numbers) == list(range(1, 6_001))


def test_a_hidden_message_expires_like_any_other(line: Line) -> None:
    hide(line)
    line.send(message(b"short", ttl_ms=1_000), message(b"long", ttl_ms=HIDDEN_MS * 2))
    line.attach()
    line.credit(9)
    assert bodies(delivered(line.step(HIDDEN_MS))) == [b"long"]
    assert peeked(line) == [b"long"]


def test_messages_of_a_topic_are_hidden_in_one_subscription_or_in_all(line: Line) -> None:
    line.apply(CreateEntity(500, TOPIC, "t", EntitySettings()), AttachSender(90, "t"))
    for name in ("a", "b"):
        line.apply(CreateEntity(501, SUBSCRIPTION, f"t/Subscriptions/{name}", EntitySettings()))
    hide(line, "t/Subscriptions/a")
    line.send(message(b"1"), link_id=90)
    assert (peeked(line, "t/Subscriptions/a"), peeked(line, "t/Subscriptions/b")) == ([], [b"1"])
    hide(line, "t")
    line.send(message(b"2"), link_id=90)
    assert (peeked(line, "t/Subscriptions/a"), peeked(line, "t/Subscriptions/b")) == ([], [b"1"])
    line.step(HIDDEN_MS)
    assert (peeked(line, "t/Subscriptions/a"), peeked(line, "t/Subscriptions/b")) == ([b"1", b"2"], [b"1", b"2"])


def test_a_hidden_message_of_a_session_appears_to_who_waits_for_it_and_to_who_holds_it() -> None:
    settings = EntitySettings()
    settings.requires_session = True
    settings.lock_duration_ms = 300_000
    line = Line(settings)
    plant(line, Fault("hidden", "q", delay_ms=10_000))
    line.send(message(b"a", session_id="s"))
    assert line.apply(AttachReceiver(RECEIVER, "q", False, SessionWish(None, 60_000))) == []
    (attached,) = line.step(10_000)
    assert isinstance(attached, Attached)
    assert attached.session_id == "s"
    assert bodies(delivered(line.apply(Credit(RECEIVER, 9, False)))) == [b"a"]
    line.send(message(b"b", session_id="s"))
    remove(line)
    assert bodies(delivered(line.send(message(b"c", session_id="s")))) == [b"c"]
    assert bodies(delivered(line.step(10_000))) == [b"b"]
