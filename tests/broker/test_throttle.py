"""Server busy: operations a second, memory, store; and the ten seconds after which it is over."""

import pytest

from spillway.broker.commands import (
    Administer,
    AttachReceiver,
    AttachSender,
    CancelScheduled,
    Command,
    CreateEntity,
    DeleteEntity,
    ListRules,
    MemoryMeasured,
    Peek,
    RenewLocks,
    Schedule,
    Send,
    UpdateDisposition,
)
from spillway.broker.effects import Attached, Done, Drained, Effect, Failed, Messages, Refused, Renewed, SendSettled
from spillway.broker.throttle import ENTITY_OPERATIONS, MEMORY, OPERATIONS, STORE
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.errors import BrokerError, MessageTooLarge, QuotaExceeded, ServerBusy
from spillway.model.limits import MESSAGE_BYTES_MAX, MIB
from spillway.model.quotas import Quotas
from spillway.model.settlement import COMPLETE, Settlement
from spillway.testing.core import message
from tests.broker.line import RECEIVER, SENDER, Line, delivered

DONE = Settlement(COMPLETE)


def quotas(**values: int) -> Quotas:
    made = Quotas()
    for name, value in values.items():
        made.set(name.replace("_", "-"), value)
    return made


def line_of(**values: int) -> Line:
    return Line(quotas=quotas(**values))


def error_of(said: list[Effect]) -> BrokerError | None:
    (effect,) = [one for one in said if isinstance(one, (SendSettled, Refused, Failed, Attached, Done, Renewed))]
    return effect.error if isinstance(effect, (SendSettled, Refused, Failed)) else None


def sent_until_busy(line: Line, at_most: int = 10_000) -> int:
    """How many single messages are taken before one is refused."""
    for count in range(at_most):
        if error_of(line.send()) is not None:
            return count
    raise AssertionError("never busy")


# -- operations a second ----------------------------------------------------------------------------------------


@pytest.mark.contract("I5")
def test_who_sends_more_than_allowed_is_told_which_limit_it_is_and_to_wait_ten_seconds() -> None:
    line = line_of(operations_per_second=10)
    assert sent_until_busy(line) == 99  # ten seconds' worth, less the attach
    error = error_of(line.send())
    assert isinstance(error, ServerBusy)
    for part in ("the namespace 'test'", "10 operations a second", "limit operations-per-second", "wait 10 seconds"):
        assert part in error.description


@pytest.mark.contract("I5", "I6")
def test_a_retry_within_ten_seconds_is_refused_and_one_after_them_is_taken() -> None:
    line = line_of(operations_per_second=10)
    sent_until_busy(line)
    line.now_ms += 9_999
    assert isinstance(error_of(line.send()), ServerBusy)
    line.now_ms += 1
    assert error_of(line.send()) is None


@pytest.mark.parametrize("attempts_per_second", [12, 20, 200])
def test_the_average_under_any_load_is_what_was_set(attempts_per_second: int) -> None:
    line = line_of(operations_per_second=10)
    taken = 0
    seconds = 200
    for _ in range(seconds):
        for _ in range(attempts_per_second):
            line.now_ms += 1_000 // attempts_per_second
            taken += error_of(line.send(message(is_ping=True))) is None
    assert taken / seconds == pytest.approx(10, rel=0.15)


def test_who_stays_below_the_limit_is_never_refused() -> None:
    line = line_of(operations_per_second=10)
    for _ in range(500):
        line.now_ms += 100
        assert error_of(line.send()) is None


def test_a_batch_counts_its_messages_and_is_not_cut() -> None:
    line = line_of(operations_per_second=10)
    assert error_of(line.send(*[message() for _ in range(200)])) is None
    assert isinstance(error_of(line.send()), ServerBusy)
    line.now_ms += 10_000
    assert error_of(line.send()) is None, "however large the batch, ten seconds mend it"


def test_what_a_message_is_refused_for_anyway_is_said_before_busy_and_counts_nothing() -> None:
    line = line_of(operations_per_second=10)
    large = message(b"x" * (MESSAGE_BYTES_MAX + 1))
    for _ in range(200):
        assert isinstance(error_of(line.send(large)), MessageTooLarge)
    assert sent_until_busy(line) == 99
    assert isinstance(error_of(line.send(large)), MessageTooLarge)


def test_attaching_and_management_are_refused_while_busy() -> None:
    line = line_of(operations_per_second=10)
    line.send(message(scheduled_ms=line.now_ms + 60_000))
    line.attach()
    sent_until_busy(line)
    refused: list[Command] = [
        AttachSender(50, "q"),
        AttachReceiver(51, "q", False),
        Peek(52, "q", 0, 10),
        Schedule(53, "q", [message(scheduled_ms=line.now_ms + 1)], 10),
        Administer(54, ""),
    ]
    for command in refused:
        assert isinstance(error_of(line.apply(command)), ServerBusy), type(command).__name__
    assert isinstance(line.apply(CancelScheduled(55, "q", [1]))[-1], Done), "it makes room"


@pytest.mark.contract("I5")
def test_settlements_and_renewals_are_never_refused() -> None:
    line = line_of(operations_per_second=10)
    line.send(message(), message(), message())
    line.attach()
    first, second, third = line.receive(3)
    sent_until_busy(line)
    assert error_of(line.apply(RenewLocks(60, "q", [third.lock_token]))) is None
    assert error_of(line.apply(UpdateDisposition(61, "q", [first.lock_token], DONE))) is None
    (settled,) = [one for one in line.settle(second, DONE) if one.to == RECEIVER]
    assert getattr(settled, "error", "no answer") is None


def test_an_administrators_request_counts_ten() -> None:
    line = line_of(operations_per_second=10)
    for _ in range(10):  # the attach has left 99
        assert isinstance(line.apply(Administer(70, ""))[0], Done)
    assert isinstance(error_of(line.apply(Administer(70, ""))), ServerBusy)


def test_rules_count_as_management_and_every_filter_tried_counts() -> None:
    line = line_of(operations_per_second=10)
    line.apply(CreateEntity(80, TOPIC, "t", EntitySettings()))
    for name in ("a", "b", "c"):
        line.apply(CreateEntity(81, SUBSCRIPTION, f"t/Subscriptions/{name}", EntitySettings()))
    line.apply(AttachSender(82, "t"))
    common = line.namespace.throttle.common
    assert common is not None
    level = common.level
    line.send(link_id=82)
    assert level - common.level == 4 * 1_000
    line.apply(ListRules(83, "t/Subscriptions/a", 0, 10))
    assert level - common.level == 14 * 1_000


def test_what_is_asked_inside_the_process_is_free() -> None:
    line = line_of(operations_per_second=1)
    sent_until_busy(line)
    peek = Peek(90, "q", 0, 10)
    peek.is_administrative = True
    assert isinstance(line.apply(peek)[0], Messages)
    assert isinstance(line.apply(CreateEntity(91, QUEUE, "another", EntitySettings()))[0], Done)


# -- deliveries -------------------------------------------------------------------------------------------------


def full_queue(count: int, **values: int) -> Line:
    """Filled before anybody counted."""
    line = Line()
    line.send_many(count)
    line.quotas = quotas(**values)
    line.restart()
    line.attach()
    return line


@pytest.mark.contract("I5")
def test_deliveries_are_not_refused_but_wait() -> None:
    line = full_queue(1_000, operations_per_second=10)
    assert len(line.receive(1_000)) == 49, "half of ten seconds' worth, less the attach"
    assert delivered(line.step(50)) == []
    came = 0
    for _ in range(100):
        came += len(delivered(line.step(100)))
    assert came == 100


def test_deliveries_leave_senders_their_half() -> None:
    line = full_queue(1_000, operations_per_second=10)
    line.receive(1_000)
    line.apply(AttachSender(SENDER, "q"))
    for _ in range(100):
        line.step(100)
        assert error_of(line.send()) is None


def test_receivers_that_drain_hear_so_while_deliveries_wait() -> None:
    line = full_queue(1_000, operations_per_second=10)
    said = line.credit(1_000, drains=True)
    assert len(delivered(said)) == 49
    assert isinstance(said[-1], Drained)


def test_all_receivers_of_a_throttled_queue_get_their_turn() -> None:
    line = full_queue(2_000, operations_per_second=100)
    line.attach(3)
    line.receive(1_000)
    line.credit(1_000, 3)
    counts = {RECEIVER: 0, 3: 0}
    for _ in range(40):
        for delivery in delivered(line.step(100)):
            counts[delivery.to] += 1
    assert counts[RECEIVER] > 100
    assert counts[3] > 100


def test_a_queue_that_is_deleted_while_its_deliveries_wait_is_forgotten() -> None:
    line = full_queue(100, operations_per_second=10)
    line.receive(100)
    line.apply(DeleteEntity(95, "q"))
    line.step(60_000)
    assert line.namespace.next_due_ms() == line.namespace.ledger.seal_due_ms  # nothing else


def test_nothing_is_due_when_nobody_waits() -> None:
    line = line_of(operations_per_second=10)
    line.attach()
    line.receive(10)
    line.step(60_000)
    assert line.namespace.next_due_ms() == 0


# -- one entity's share -------------------------------------------------------------------------------------------


def test_one_entity_beyond_its_share_leaves_the_others_theirs() -> None:
    line = line_of(operations_per_second=1_000, entity_operations_per_second=10)
    line.apply(CreateEntity(100, QUEUE, "other", EntitySettings()), AttachSender(101, "other"))
    assert sent_until_busy(line) == 99
    error = error_of(line.send())
    assert isinstance(error, ServerBusy)
    assert "the entity 'q'" in error.description
    assert "limit entity-operations-per-second" in error.description
    assert error_of(line.apply(Send(101, 1, [message()], False, 10))) is None
    assert line.namespace.throttle.refused[ENTITY_OPERATIONS] == 2
    assert line.namespace.throttle.refused[OPERATIONS] == 0


@pytest.mark.contract("I7")
@pytest.mark.parametrize("kind", [QUEUE, TOPIC])
def test_a_partitioned_entity_has_the_share_of_sixteen(kind: str) -> None:
    line = line_of(entity_operations_per_second=10)
    settings = EntitySettings()
    settings.is_partitioned = True
    line.apply(CreateEntity(105, kind, "partitioned", settings), AttachSender(106, "partitioned"))
    for number in range(16 * 100 - 1):
        assert error_of(line.apply(Send(106, number, [message()], False, 10))) is None
    assert isinstance(error_of(line.apply(Send(106, 9_999, [message()], False, 10))), ServerBusy)
    assert sent_until_busy(line) == 99
    line.restart()
    share = line.namespace.directory.find("partitioned").share  # type: ignore[union-attr]
    assert share is not None
    assert share.buckets[0].per_second == 160


def test_subscriptions_and_dead_letters_take_from_the_share_of_what_they_belong_to() -> None:
    line = line_of(entity_operations_per_second=10)
    line.apply(CreateEntity(110, TOPIC, "t", EntitySettings()))
    line.apply(CreateEntity(111, SUBSCRIPTION, "t/Subscriptions/s", EntitySettings()))
    directory = line.namespace.directory
    assert directory.queues["t/subscriptions/s"].share is directory.topics["t"].share
    assert directory.queues["t/subscriptions/s/$deadletterqueue"].share is directory.topics["t"].share
    assert directory.queues["q/$deadletterqueue"].share is directory.queues["q"].share
    assert directory.queues["q"].share is not directory.topics["t"].share


# -- memory and store ---------------------------------------------------------------------------------------------


@pytest.mark.contract("I5")
def test_too_much_memory_refuses_sends_for_ten_seconds_at_least() -> None:
    line = line_of(memory_mb=128)
    line.send()
    line.attach()
    line.apply(MemoryMeasured(128 * MIB))
    error = error_of(line.send())
    assert isinstance(error, ServerBusy)
    for part in ("128 MB of memory", "limit memory-mb", "wait 10 seconds"):
        assert part in error.description
    assert len(line.receive()) == 1, "receiving makes room"
    line.step(9_000)
    line.apply(MemoryMeasured(100 * MIB))
    assert isinstance(error_of(line.send()), ServerBusy)
    line.step(1_000)
    assert error_of(line.send()) is None
    assert line.namespace.throttle.refused[MEMORY] == 2


def test_memory_that_stays_too_much_stays_refused_and_is_forgiven_at_once_when_it_falls() -> None:
    line = line_of(memory_mb=128)
    line.apply(MemoryMeasured(130 * MIB))
    line.step(60_000)
    line.apply(MemoryMeasured(129 * MIB))
    assert isinstance(error_of(line.send()), ServerBusy)
    line.apply(MemoryMeasured(127 * MIB))
    assert error_of(line.send()) is None


@pytest.mark.contract("I5")
def test_a_full_namespace_refuses_sends_until_something_was_received() -> None:
    line = line_of(store_mb=1)
    body = b"x" * (MIB // 8)
    while error_of(line.send(message(body))) is None:
        pass
    error = error_of(line.send())
    assert isinstance(error, ServerBusy)
    for part in ("1 MB of messages", "limit store-mb", "wait 10 seconds"):
        assert part in error.description
    line.step(20_000)
    assert isinstance(error_of(line.send()), ServerBusy), "time alone frees nothing"
    line.attach(deletes=True)
    line.receive()
    assert error_of(line.send()) is None


def test_the_store_is_counted_over_all_entities_and_from_the_start() -> None:
    line = line_of(store_mb=1)
    for number in range(4):
        line.apply(CreateEntity(120, QUEUE, f"q{number}", EntitySettings()), AttachSender(200 + number, f"q{number}"))
        line.apply(Send(200 + number, 1, [message(b"x" * (MIB // 4 - 1))], False, 10))
    assert line.namespace.directory.store_bytes == MIB - 4
    line.restart()
    assert line.namespace.directory.store_bytes == MIB - 4
    line.apply(AttachSender(SENDER, "q"))
    line.send(message(b"1234"))
    assert isinstance(error_of(line.send()), ServerBusy)
    assert line.namespace.throttle.refused[STORE] == 1
    line.apply(DeleteEntity(121, "q0"))
    line.step(10_000)
    assert error_of(line.send()) is None
    assert line.namespace.directory.store_bytes == MIB - (MIB // 4 - 1) + 5


# -- receivers ----------------------------------------------------------------------------------------------------


def test_an_entity_has_so_many_receivers_over_all_subscriptions() -> None:
    line = line_of(receivers_per_entity=2)
    line.apply(CreateEntity(130, TOPIC, "t", EntitySettings()))
    for name in ("a", "b"):
        line.apply(CreateEntity(131, SUBSCRIPTION, f"t/Subscriptions/{name}", EntitySettings()))
    assert error_of(line.attach(140, "t/Subscriptions/a")) is None
    assert error_of(line.attach(141, "t/Subscriptions/b")) is None
    error = error_of(line.attach(142, "t/Subscriptions/b"))
    assert isinstance(error, QuotaExceeded)
    assert "limit receivers-per-entity" in error.description
    assert error_of(line.attach(143, "q")) is None
