"""The table of docs/disk.md, cell by cell: what is done, refused or left waiting when the disk is short of space."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from spillway.broker import commands
from spillway.broker.commands import (
    AddRule,
    AttachReceiver,
    AttachSender,
    BatchDelete,
    CancelScheduled,
    Command,
    CreateEntity,
    DeleteEntity,
    DiskMeasured,
    Peek,
    ReceiveDeferred,
    RemoveRule,
    RenewLocks,
    Request,
    SaveLedger,
    Schedule,
    Send,
    SessionWish,
    SetSessionState,
    UpdateDisposition,
    UpdateEntity,
)
from spillway.broker.effects import (
    Attached,
    Deleted,
    Deliver,
    Done,
    Effect,
    Failed,
    Messages,
    Renewed,
    Scheduled,
    SendSettled,
    SettlementAnswered,
)
from spillway.broker.queue import Queue
from spillway.model import limits
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.errors import ServerBusy
from spillway.model.ledger import MS_PER_MINUTE
from spillway.model.records import (
    EntityRemoved,
    MessageIdsForgotten,
    MessageIdsIndexed,
    MessageRemoved,
    Record,
    SessionStatePut,
    Turn,
)
from spillway.model.rules import Rule, SqlFilter
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, Settlement
from spillway.store.memory import MemoryJournal
from spillway.testing.core import message
from tests.broker.line import SENDER, Line

PAGE: Final = Path(__file__).parents[2] / "docs" / "disk.md"
ROW: Final = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)

LOW: Final = limits.DISK_RESERVE_BYTES - 1
FULL: Final = limits.DISK_FULL_BYTES - 1
PLENTY: Final = limits.DISK_WATCHED_BYTES
MINUTE: Final = 60_000

Cell: TypeAlias = Callable[["Short"], str]


class KeepingJournal(MemoryJournal):
    def __init__(self, line: "Short") -> None:
        super().__init__()
        self.line = line

    def submit(self, turn: Turn, ticket: int) -> None:
        if self.line.is_squeezed:
            self.line.turns.append(turn)
        super().submit(turn, ticket)


class Short(Line):
    """A queue that is prepared while there is space, and then short of it. It keeps every turn from then on."""

    def __init__(self, free_bytes: int) -> None:
        self.is_squeezed = False
        self.free_bytes = free_bytes
        self.turns: list[Turn] = []
        super().__init__(EntitySettings())

    def make_journal(self) -> MemoryJournal:
        return KeepingJournal(self)

    def make(self, kind: str, path: str, settings: EntitySettings | None = None) -> None:
        (done,) = self.apply(CreateEntity(901, kind, path, settings or EntitySettings()))
        assert isinstance(done, Done)

    def squeeze(self, *before: Command) -> None:
        self.is_squeezed = True
        self.apply(*before, DiskMeasured(self.free_bytes))

    def relax(self) -> None:
        self.is_squeezed = False
        self.apply(DiskMeasured(PLENTY))

    def written(self) -> list[Record]:
        return [record for turn in self.turns for group in turn.groups for record in group]

    def queue(self, path: str = "q") -> Queue:
        return self.namespace.directory.queues[path]

    def counts(self, path: str = "q") -> tuple[int, int, int]:
        counters = self.queue(path).counters
        return counters.active, counters.deferred, counters.scheduled


def verdict(effects: list[Effect], *kinds: type[Effect]) -> str:
    """Of the one answer among them."""
    (answer,) = [effect for effect in effects if isinstance(effect, (Failed, *kinds))]
    error = getattr(answer, "error", None)
    assert error is None or isinstance(error, ServerBusy), error
    return "done" if error is None else "refused"


# -- what clients ask for -----------------------------------------------------------------------------------------


def send(line: Short) -> str:
    line.squeeze()
    (settled,) = line.send(message(b"x"))
    return "done" if settled.error is None else "refused"  # type: ignore[attr-defined]


def schedule(line: Short) -> str:
    line.squeeze()
    return verdict(line.apply(Schedule(1, "q", [message(b"x", scheduled_ms=line.now_ms + 9)], 1)), Scheduled)


def held_session(line: Short) -> None:
    settings = EntitySettings()
    settings.requires_session = True
    line.make(QUEUE, "s", settings)
    said = line.apply(AttachReceiver(50, "s", False, SessionWish("one", 0)))
    assert isinstance(said[0], Attached)


def set_state(line: Short) -> str:
    held_session(line)
    line.squeeze()
    return verdict(line.apply(SetSessionState(1, "s", "one", b"x" * 100)), Done)


def clear_state(line: Short) -> str:
    held_session(line)
    line.apply(SetSessionState(1, "s", "one", b"x" * 100))
    line.squeeze()
    return verdict(line.apply(SetSessionState(1, "s", "one", None)), Done)


def create(line: Short) -> str:
    line.squeeze()
    found = verdict(line.apply(CreateEntity(1, QUEUE, "new", EntitySettings())), Done)
    assert line.namespace.exists("new") == (found == "done")
    return found


def update(line: Short) -> str:
    line.squeeze()
    settings = EntitySettings()
    settings.max_delivery_count = 3
    return verdict(line.apply(UpdateEntity(1, "q", settings)), Done)


def subscribed(line: Short) -> None:
    line.make(TOPIC, "t")
    line.make(SUBSCRIPTION, "t/Subscriptions/all")


def add_rule(line: Short) -> str:
    subscribed(line)
    line.squeeze()
    return verdict(line.apply(AddRule(1, "t/Subscriptions/all", Rule("more", SqlFilter("1=1"), None, 0))), Done)


def remove_rule(line: Short) -> str:
    subscribed(line)
    line.apply(AddRule(1, "t/Subscriptions/all", Rule("more", SqlFilter("1=1"), None, 0)))
    line.squeeze()
    return verdict(line.apply(RemoveRule(1, "t/Subscriptions/all", "more")), Done)


def settle_each(line: Short, *settlements: Settlement) -> str:
    """Over the link and over `$management`: both say the same. A refused message stays locked and can be completed."""
    count = len(settlements)
    line.send(*[message(b"%d" % number) for number in range(2 * count)])
    line.attach()
    deliveries = line.receive(2 * count)
    line.squeeze()
    verdicts = set()
    for settlement, delivery, other in zip(settlements, deliveries[:count], deliveries[count:], strict=True):
        verdicts.add(verdict(line.settle(delivery, settlement), SettlementAnswered))
        verdicts.add(verdict(line.apply(UpdateDisposition(1, "q", [other.lock_token], settlement)), Done))
    (found,) = verdicts
    if found == "refused":
        assert line.written() == []
        for delivery in deliveries:
            assert verdict(line.settle(delivery, Settlement(COMPLETE)), SettlementAnswered) == "done"
        assert line.counts() == (0, 0, 0)
    return found


def put_away(line: Short) -> str:
    return settle_each(line, Settlement(ABANDON), Settlement(DEFER), Settlement(DEAD_LETTER, "why", "because"))


def put_away_with_properties(line: Short) -> str:
    kinds = (ABANDON, DEFER, DEAD_LETTER)
    return settle_each(line, *[Settlement(kind, None, None, {"name": b"\xa1\x01x"}) for kind in kinds])


def complete(line: Short) -> str:
    return settle_each(line, Settlement(COMPLETE), Settlement(COMPLETE))


def receive(line: Short) -> str:
    line.send(message(b"x"))
    line.attach()
    line.squeeze()
    (delivery,) = line.receive()
    assert verdict(line.apply(RenewLocks(1, "q", [delivery.lock_token])), Renewed) == "done"
    assert verdict(line.apply(Peek(1, "q", 0, 10, None)), Messages) == "done"
    assert line.written() == []
    return "done"


def receive_and_delete(line: Short) -> str:
    line.send(message(b"x"), message(b"y"))
    line.attach(deletes=True)
    line.squeeze()
    assert len(line.receive(2)) == 2
    return "done" if line.counts() == (0, 0, 0) else "refused"


def receive_deferred(line: Short) -> str:
    line.send(message(b"x"), message(b"y"))
    line.attach()
    for delivery in line.receive(2):
        line.settle(delivery, Settlement(DEFER))
    line.squeeze()
    said = line.apply(ReceiveDeferred(1, "q", [1], False))
    assert verdict(said, Messages) == "done"
    assert verdict(line.apply(ReceiveDeferred(1, "q", [2], True)), Messages) == "done"
    (found,) = [effect for effect in said if isinstance(effect, Messages)]
    assert verdict(line.apply(UpdateDisposition(1, "q", found.lock_tokens, Settlement(COMPLETE))), Done) == "done"
    return "done" if line.counts() == (0, 0, 0) else "refused"


def cancel(line: Short) -> str:
    line.apply(Schedule(1, "q", [message(b"x", scheduled_ms=line.now_ms + 9)], 1))
    line.squeeze()
    return verdict(line.apply(CancelScheduled(1, "q", [1])), Done)


def delete_messages(line: Short) -> str:
    line.send_many(10)
    line.squeeze()
    found = verdict(line.apply(BatchDelete(1, "q", 10, line.now_ms + 1)), Deleted)
    assert line.counts() == (0, 0, 0)
    return found


def delete_entity(line: Short) -> str:
    line.send_many(10)
    line.squeeze()
    return verdict(line.apply(DeleteEntity(1, "q")), Done)


# -- what happens by itself ---------------------------------------------------------------------------------------


def lock_runs_out(line: Short) -> str:
    """A thousand at once. Whatever the disk, they are there again."""
    line.send_many(1_000)
    line.attach()
    assert len(line.receive(1_000)) == 1_000
    line.squeeze()
    line.step(line.settings.lock_duration_ms)
    again = line.receive(1_000)
    assert len(again) == 1_000
    (count,) = {delivery.stored.delivery_count for delivery in again}
    return "done" if count == 1 else "done, and the delivery is not counted"


def last_delivery(line: Short) -> str:
    settings = EntitySettings()
    settings.max_delivery_count = 1
    line.apply(UpdateEntity(1, "q", settings))
    line.send(message(b"x"))
    line.attach()
    line.receive()
    line.squeeze()
    line.step(settings.lock_duration_ms)
    if line.receive():
        line.relax()
        line.step(settings.lock_duration_ms)
        assert len(line.dead_letters()) == 1
        return "waits: it is delivered again"
    return "done"


def expiry(line: Short) -> str:
    line.send(message(b"x", ttl_ms=1_000))
    line.squeeze()
    line.step(1_000)
    return "done" if line.counts() == (0, 0, 0) else "waits"


def expiry_to_dead_letters(line: Short) -> str:
    """Those behind it are received; it is moved when there is space, whether a receiver has passed over it or not."""
    settings = EntitySettings()
    settings.dead_letter_on_expiry = True
    line.apply(UpdateEntity(1, "q", settings))
    line.send(message(b"x", ttl_ms=1_000), message(b"y"), message(b"z", ttl_ms=3_000), message(b"w"))
    line.attach(deletes=True)
    line.squeeze()
    line.step(1_000)
    assert [delivery.stored.message.raw for delivery in line.receive()] == [b"y"]
    line.step(2_000)
    if line.counts("q/$deadletterqueue")[0] == 2:
        return "done"
    line.step(5_000)
    assert line.counts() == (3, 0, 0)
    assert [delivery.stored.message.raw for delivery in line.receive(5)] == [b"w"]
    line.relax()
    line.step(5_000)
    assert line.counts() == (0, 0, 0)
    assert [delivery.stored.message.raw for delivery in line.dead_letters()] == [b"x", b"z"]
    return "waits: it is not delivered"


def falls_due(line: Short) -> str:
    line.send(message(b"x", scheduled_ms=line.now_ms + 1_000))
    line.squeeze()
    line.step(1_000)
    if line.counts() == (0, 0, 1):
        line.step(5_000)
        assert line.counts() == (0, 0, 1)
        line.relax()
        line.step(5_000)
        assert line.counts() == (1, 0, 0)
        return "waits"
    return "done"


def forwarded(line: Short) -> str:
    settings = EntitySettings()
    line.make(QUEUE, "home")
    settings.forward_to = "home"
    settings.status = "ReceiveDisabled"
    line.apply(UpdateEntity(1, "q", settings))
    line.send(message(b"x"), message(b"y"))
    on = EntitySettings()
    on.forward_to = "home"
    line.squeeze(UpdateEntity(1, "q", on))
    if line.counts("home") == (2, 0, 0):
        return "done"
    line.step(5_000)
    assert (line.counts(), line.counts("home")) == ((2, 0, 0), (0, 0, 0))
    line.relax()
    line.step(5_000)
    assert (line.counts(), line.counts("home")) == ((0, 0, 0), (2, 0, 0))
    return "waits"


def idle_deletion(line: Short) -> str:
    settings = EntitySettings()
    settings.auto_delete_ms = limits.AUTO_DELETE_MS_MIN
    line.make(QUEUE, "idle", settings)
    line.squeeze()
    line.step(settings.auto_delete_ms + 1)
    return "waits" if line.namespace.exists("idle") else "done"


def ids_to_index(line: Short) -> str:
    settings = EntitySettings()
    settings.requires_duplicate_detection = True
    line.make(QUEUE, "once", settings)
    line.namespace.directory.id_budget.count_max = 3
    line.apply(AttachSender(60, "once"))
    for number in range(3):
        line.apply(Send(60, number, [message(b"x", message_id=f"id-{number}")], False, 1))
    line.squeeze(Send(60, 9, [message(b"x", message_id="one more")], False, 1))
    indexed = [record for record in line.written() if isinstance(record, MessageIdsIndexed)]
    return "done" if indexed else "waits"


def ledger_minute(line: Short) -> str:
    line.send(message(b"x"))
    line.attach()
    line.squeeze()
    ends_ms = line.namespace.ledger.minute_ends_ms
    line.now_ms = ends_ms + MINUTE
    line.receive()
    line.apply(SaveLedger())
    if line.namespace.ledger.minute == ends_ms // MS_PER_MINUTE - 1:
        assert all(not turn.ledger for turn in line.turns)
        return "waits: what is counted goes to the minute before"
    return "done"


CELLS: Final[dict[str, Cell]] = {
    "send a message or a batch": send,
    "schedule a message": schedule,
    "set the state of a session": set_state,
    "create an entity": create,
    "change an entity, its status, keys or limits": update,
    "add a rule": add_rule,
    "abandon, defer or dead-letter with properties": put_away_with_properties,
    "abandon, defer or dead-letter": put_away,
    "receive, renew a lock, browse": receive,
    "complete": complete,
    "receive and delete": receive_and_delete,
    "receive deferred messages, and delete them": receive_deferred,
    "cancel a scheduled message": cancel,
    "delete messages": delete_messages,
    "clear the state of a session": clear_state,
    "remove a rule": remove_rule,
    "delete an entity": delete_entity,
    "a lock runs out": lock_runs_out,
    "a message reaches its MaxDeliveryCount": last_delivery,
    "a message expires": expiry,
    "a message expires and is dead-lettered": expiry_to_dead_letters,
    "a scheduled message falls due": falls_due,
    "a message is forwarded": forwarded,
    "an idle entity is deleted": idle_deletion,
    "ids of duplicate detection go from memory to an index on disk": ids_to_index,
    "the [ledger](ledger.md) begins a new minute": ledger_minute,
}
# Whatever else a command may be, it writes nothing but the ledger and when an entity was used.
OTHERS: Final = {
    "AttachSender",
    "AttachReceiver",
    "Credit",
    "Settle",
    "Send",
    "DetachLink",
    "Undelivered",
    "Loaded",
    "SaveLedger",
    "DiskMeasured",
    "MemoryMeasured",
    "Administer",
    "Meter",
    "ReadLedger",
    "ListEntities",
    "Describe",
    "ListRules",
    "ListSessions",
    "ListFaults",
    "InjectFault",
    "RemoveFaults",
    "GetSessionState",
    "RenewSession",
    "SessionRequest",
    "Request",
}
# The last command of these is one that was given while there was space.
DECIDED_BEFORE: Final = {
    "a message is forwarded",
    "ids of duplicate detection go from memory to an index on disk",
    "remove a rule",
}


def makes_smaller(record: Record) -> bool:
    if isinstance(record, SessionStatePut):
        return record.state is None
    return isinstance(record, (MessageRemoved, EntityRemoved, MessageIdsForgotten))


def rows_of_page() -> dict[str, tuple[str, str]]:
    found = {what: (low, full) for what, low, full in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    return {what: cells for what, cells in found.items() if what != "what" and not what.startswith("---")}


def test_the_page_has_every_row_and_no_other() -> None:
    assert list(rows_of_page()) == list(CELLS)


@pytest.mark.parametrize("what", CELLS)
def test_below_the_reserve(what: str) -> None:
    assert CELLS[what](Short(LOW)) == rows_of_page()[what][0]


@pytest.mark.parametrize("what", CELLS)
def test_on_a_full_disk(what: str) -> None:
    """And nothing that is written makes the store grow."""
    line = Short(FULL)
    assert CELLS[what](line) == rows_of_page()[what][1]
    if what not in DECIDED_BEFORE:
        assert [record for record in line.written() if not makes_smaller(record)] == []


@pytest.mark.parametrize("what", CELLS)
def test_with_plenty_of_space_everything_is_done(what: str) -> None:
    assert CELLS[what](Short(PLENTY)) == "done"


def test_every_command_is_in_the_table_or_writes_nothing() -> None:
    """A new command must be looked at: does it make the store grow?"""
    classes = {name for name, each in vars(commands).items() if isinstance(each, type) and issubclass(each, Command)}
    asked = {
        each.__name__
        for each in (
            *(Schedule, SetSessionState, CreateEntity, UpdateEntity, AddRule, UpdateDisposition, RenewLocks, Peek),
            *(ReceiveDeferred, CancelScheduled, BatchDelete, RemoveRule, DeleteEntity),
        )
    }
    assert classes - {"Command"} == asked | OTHERS
    assert asked & OTHERS == set()
    assert issubclass(Schedule, Request)


# -- as much as there is, and no more -------------------------------------------------------------------------------


def test_one_turn_takes_no_more_than_the_disk_has(line: Line) -> None:
    """However many commands come at once: what the turn has decided so far counts."""
    body = b"x" * 100_000
    free_bytes = limits.DISK_RESERVE_BYTES + 2_000_000
    sends = [Send(SENDER, number, [message(body)], False, len(body)) for number in range(50)]
    said = line.apply(DiskMeasured(free_bytes), *sends)
    taken = [effect for effect in said if isinstance(effect, SendSettled) and effect.error is None]
    assert len(said) == 50
    assert len(taken) == 10  # each is written to the log and to the file
    refused = [effect.error for effect in said if isinstance(effect, SendSettled) and effect.error is not None]
    assert all(isinstance(error, ServerBusy) for error in refused)
    assert line.namespace.throttle.refused["disk"] == 40
    (later,) = line.send(message(body))  # nothing was measured since
    assert isinstance(later, SendSettled) and isinstance(later.error, ServerBusy)


def test_locks_that_run_out_together_are_counted_as_far_as_there_is_space(line: Line) -> None:
    body = b"x" * 10_000
    line.send_many(1_000, body)
    line.attach()
    assert len(line.receive(1_000)) == 1_000
    line.apply(DiskMeasured(limits.DISK_FULL_BYTES + 4_000_000))
    line.step(line.settings.lock_duration_ms)
    again: list[Deliver] = []
    while more := line.receive(1_000):
        again += more
    assert len(again) == 1_000
    counted = [delivery for delivery in again if delivery.stored.delivery_count == 1]
    assert 150 < len(counted) < 200


def test_many_messages_settled_in_one_request_are_refused_whole_if_there_is_no_space_for_all(line: Line) -> None:
    line.send_many(100, b"x" * 10_000)
    line.attach()
    tokens = [delivery.lock_token for delivery in line.receive(100)]
    line.apply(DiskMeasured(limits.DISK_FULL_BYTES + 1_000_000))
    (failed,) = line.apply(UpdateDisposition(1, "q", tokens, Settlement(ABANDON)))
    assert isinstance(failed, Failed) and isinstance(failed.error, ServerBusy)
    (done,) = line.apply(UpdateDisposition(1, "q", tokens[:40], Settlement(ABANDON)))
    assert isinstance(done, Done)
    (done,) = line.apply(UpdateDisposition(1, "q", tokens[40:], Settlement(COMPLETE)))
    assert isinstance(done, Done)
