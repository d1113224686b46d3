"""What the core holds for clients is bounded in bytes: locks, states, rules, messages with what was added to them."""

import gc
import tracemalloc

from spillway.broker.commands import (
    AddRule,
    AttachReceiver,
    AttachSender,
    CreateEntity,
    DeleteEntity,
    GetSessionState,
    ReceiveDeferred,
    RemoveRule,
    SessionWish,
    SetSessionState,
)
from spillway.broker.effects import Failed, SessionState
from spillway.broker.locks import LOCK_BYTES
from spillway.broker.window import ResidentBudget, Window
from spillway.model import limits
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.errors import QuotaExceeded, ServerBusy
from spillway.model.message import Overlay, StoredMessage
from spillway.model.quotas import Quotas
from spillway.model.rules import CorrelationFilter, Rule
from spillway.model.settlement import ABANDON, COMPLETE, Settlement
from spillway.testing.core import CoreHarness, message
from tests.broker.line import OTHER_RECEIVER, RECEIVER, Line

MEMORY_MB = 128


def little() -> Quotas:
    quotas = Quotas()
    quotas.memory_mb = MEMORY_MB
    return quotas


class TwoQueues(Line):
    """`q`, and `other` for the neighbour (sender link 10, receiver link 11)."""

    def __init__(self, quotas: Quotas) -> None:
        super().__init__(quotas=quotas)
        self.apply(CreateEntity(901, QUEUE, "other", EntitySettings()), AttachSender(10, "other"))
        self.send(message(b"for the neighbour"), link_id=10)

    def lock_all(self, link_id: int) -> int:
        """As many as it gets."""
        self.attach(link_id)
        count = 0
        while got := len(self.receive(1_000, link_id)):
            count += got
        return count


def squeezed(locks_count: int) -> TwoQueues:
    """There is room for so many locks in the namespace."""
    line = TwoQueues(little())
    line.namespace.directory.budget.locks.bytes_max = locks_count * 400
    return line


def test_locks_of_one_queue_leave_room_for_those_of_another() -> None:
    line = squeezed(10_000)
    line.send_many(12_000)
    assert 5_000 <= line.lock_all(RECEIVER) <= 5_000 + limits.DELIVERIES_PER_TURN_MAX
    line.attach(11, "other")
    assert len(line.receive(1, 11)) == 1


def test_who_locks_leaves_and_comes_again_gets_no_more() -> None:
    line = squeezed(10_000)
    line.send_many(12_000)
    first = line.lock_all(RECEIVER)
    assert line.lock_all(OTHER_RECEIVER) == 0
    line.attach(11, "other")
    assert len(line.receive(1, 11)) == 1
    assert first < 7_000


def test_a_queue_goes_on_when_locks_are_settled_or_run_out() -> None:
    line = squeezed(100)
    line.send_many(2_000)
    line.attach()
    taken = line.receive(2_000)
    assert len(taken) == limits.DELIVERIES_PER_TURN_MAX
    for delivery in taken[:-40]:
        line.settle(delivery, Settlement(COMPLETE))
    line.step(1_000)
    queue = line.namespace.directory.queues["q"]
    assert queue.counters.active == 1_040
    assert len(queue.lane.locks.by_token) == 1_040, "those that waited have come"
    line.step(100_000)
    assert queue.locked.bytes_used == len(queue.lane.locks.by_token) * LOCK_BYTES


def test_properties_that_settlements_added_count_with_the_lock() -> None:
    line = squeezed(1_000)
    line.send(message(b"body"))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(ABANDON, None, None, {"p": b"v" * 30_000}))
    (again,) = line.receive()
    budget = line.namespace.directory.budget.locks
    line.credit(1)
    assert budget.bytes_used > 30_000
    line.settle(again, Settlement(COMPLETE))
    assert budget.bytes_used == 0


def test_deferred_messages_are_not_locked_beyond_it_either() -> None:
    line = squeezed(1)
    line.send_many(40)
    line.lock_all(RECEIVER)
    (failed,) = line.apply(ReceiveDeferred(50, "q", [1], False))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ServerBusy)
    assert "memory-mb" in failed.error.description


def test_waiting_messages_count_with_what_was_added_to_them() -> None:
    budget = ResidentBudget(1 << 30)
    window = Window(budget)
    stored = StoredMessage(message(b"body"), 1, 0)
    stored.overlay = Overlay()
    stored.overlay.set_properties({"p": b"v" * 30_000})
    window.append(stored)
    assert budget.bytes_used > 30_000
    assert window.resident_bytes > 30_000
    assert window.pop() is stored
    assert budget.bytes_used == window.resident_bytes == 0


def test_the_state_of_a_session_stays_in_the_store() -> None:
    core = CoreHarness()
    settings = EntitySettings()
    settings.requires_session = True
    core.apply(CreateEntity(900, QUEUE, "q", settings))
    for number in range(100):
        core.apply(AttachReceiver(number + 1, "q", False, SessionWish(f"s{number}", 1_000)))
    gc.collect()
    tracemalloc.start()
    try:
        sessions = core.namespace.directory.queues["q"].sessions
        before, _ = tracemalloc.get_traced_memory()
        for number in range(100):
            core.apply(SetSessionState(1_000 + number, "q", f"s{number}", bytes(200_000)))
        core.journal = core.make_journal()  # what it holds is the disk, here
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sessions is not None
    assert after - before < 2 * limits.MIB


def test_a_state_is_read_as_it_was_set_last() -> None:
    core = CoreHarness()
    settings = EntitySettings()
    settings.requires_session = True
    core.apply(CreateEntity(900, QUEUE, "q", settings), AttachReceiver(1, "q", False, SessionWish("s", 1_000)))
    core.apply(SetSessionState(2, "q", "s", b"one"))
    effects = core.apply(SetSessionState(3, "q", "s", b"two"), GetSessionState(4, "q", "s"))
    assert [effect.state for effect in effects if isinstance(effect, SessionState)] == [b"two"]


def test_rules_are_bounded_by_what_they_take_over_all_topics() -> None:
    core = CoreHarness(quotas=little())
    for number in range(2):
        core.apply(CreateEntity(900, TOPIC, f"t{number}", EntitySettings()))
        core.apply(CreateEntity(901, SUBSCRIPTION, f"t{number}/Subscriptions/s", EntitySettings()))
    directory = core.namespace.directory
    refused = None
    for number in range(2_000):
        rule = Rule(f"r{number}", CorrelationFilter(label="x" * 30_000), None, 0)
        (answer,) = core.apply(AddRule(number, f"t{number % 2}/Subscriptions/s", rule))
        if isinstance(answer, Failed):
            refused = answer.error
            break
    assert isinstance(refused, QuotaExceeded)
    assert "memory-mb" in refused.description
    assert directory.rules_bytes <= MEMORY_MB * limits.MIB // 8
    full = directory.rules_bytes
    core.apply(RemoveRule(5_000, "t0/Subscriptions/s", "r0"))
    assert directory.rules_bytes < full
    core.restart()
    assert abs(core.namespace.directory.rules_bytes - directory.rules_bytes) < 1_000
    core.apply(DeleteEntity(5_001, "t0"), DeleteEntity(5_002, "t1"))
    assert core.namespace.directory.rules_bytes == 0
