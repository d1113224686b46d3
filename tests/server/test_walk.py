"""The way of a message through the broker, traced: who reads the code to follow it does not pass more than in the days
when the house was measured.

One message is sent, acknowledged and delivered to a receiver that waits for it, and then completed: over two sockets,
with a journal on disk. Hops are the functions between the bytes that come and the bytes that go that carry the message
on (as bytes, frame, event, command, record, effect) or decide what becomes of it. Each counts once. What only finds,
reads, makes, counts, bounds or times is no hop; it stands in `BESIDE`, so that a function that comes in between is one
until somebody says that it is not.
"""

import json
import threading
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType

import pytest

import spillway
from spillway.amqp.events import DispositionReceived, IncomingSettled, TransferReceived
from spillway.amqp.performatives import Accepted
from spillway.client import OutgoingMessage
from spillway.store.logged import LoggedJournal
from spillway.testing.clock import FakeClock
from tests.wire.live import LiveBroker
from tests.wire.raw import RawClient

HOUSE = Path(spillway.__file__).parent
SEND_HOPS, SEND_HOPS_BEFORE = 85, 86  # before: at 92afc91, by the same rule; docs/evidence/walk-before.json has them
COMPLETE_HOPS, COMPLETE_HOPS_BEFORE = 68, 68
BEFORE = json.loads((Path(__file__).resolve().parents[2] / "docs" / "evidence" / "walk-before.json").read_text("utf-8"))
BESIDE = {
    "makes what is carried": "*.__init__ amqp.dispositions.*",
    "finds": "amqp.session.Session.find_link amqp.outgoing.Outgoing.find_unsettled broker.queue.Queue.find_lock "
    "broker.lane.Receivers.*",
    "reads a field of a frame, a part of a message": "amqp.fast._* amqp.serial.* dialect.usual._* "
    "model.message.Message.*",
    "reads a state": "*.is_* *.has_* *.needs_ack *.are_waiting *.frames_count *.frames_weight *.may_read *.may_send "
    "amqp.frames.FrameParser.unread server.pump.Pump.share_of",
    "counts and meters": "*.count *.uncount *.metered *.use broker.ledger.* model.ledger.* model.records.Counters.* "
    "broker.entity.Entity.next_number dialect.receiving.ClientReceiver._note_size "
    "broker.directory.Directory.note_store",
    "bounds": "*.held_bytes *.pending_bytes *.free_bytes *.set_reading broker.disk_room.* broker.pace.* "
    "broker.queue.Queue.pace_senders broker.locks.LockTable.note broker.locks.LockShare.* broker.window.Window.retain "
    "broker.window.Window.evict amqp.frames.FrameParser._wait_for server.pump.Pump.check_* "
    "server.pump.Pump.on_read server.pump.Pump.after_write",
    "times": "testing.clock.* broker.timers.* broker.entity.earlier broker.entity.Entity.expiry_of *.due_ms "
    "*.next_due_ms broker.namespace.Namespace._fire_timers server.pump.Pump.set_timer",
    "sees to what else there is in a turn": "broker.namespace.Namespace._begin_turn broker.decided.Decided.begin "
    "server.pump.Pump.read_on server.pump.Pump.tell_* server.namespace_server.* *.drain_registered "
    "*.drain_unregistered broker.queue.Queue.ask_for_more broker.window.Window.wants_more "
    "broker.window.Window.unread_returned broker.window.Window._trim",
    "marks that there is something to do": "*.mark_* *.wake",
    "writes one part of a turn or a frame, or waits for what is to be written": "store.turn_codec._* "
    "store.segments.frame_bytes store.segments._pack_head store.segments.SegmentLog._* store.segments.SystemFiles.* "
    "store.logged.LoggedJournal._waiting_entries store.logged.LoggedJournal._first_entry "
    "store.logged.LoggedJournal._wait_for_keeper store.logged.LoggedJournal._unfolded_bytes "
    "store.logged.LoggedJournal.<lambda>",
}
BESIDE["hands on to the keeper what is acknowledged"] = "store.logged.LoggedJournal._hand_over"
# The keeper's thread: it folds what is acknowledged already into the file, and nobody waits for it.
KEEPER = LoggedJournal._run.__code__


class Walk:
    """Functions of the house that the broker's threads enter while it is on, in order, each once."""

    def __init__(self) -> None:
        self.is_on = False
        self.entered: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self.is_on and not is_below(KEEPER, frame):
            name = name_of(frame.f_code)
            if name and "<locals>" not in name:  # what is inside a function is part of it
                self.entered[name] = None

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *_: object) -> None:
        self.is_on = False

    @property
    def hops(self) -> list[str]:
        return [name for name in self.entered if not is_beside(name)]


def name_of(code: CodeType) -> str:
    """Room, file and function; empty for what is not of the house."""
    if not code.co_filename.startswith(f"{HOUSE}/"):
        return ""
    return f"{code.co_filename[len(str(HOUSE)) + 1 : -len('.py')].replace('/', '.')}.{code.co_qualname}"


def is_below(code: CodeType, frame: FrameType) -> bool:
    at: FrameType | None = frame
    while at is not None:
        if at.f_code is code:
            return True
        at = at.f_back
    return False


def is_beside(name: str) -> bool:
    return any(fnmatch(name, each) for names in BESIDE.values() for each in names.split())


def last_spoken(hops: list[str]) -> str:
    """The last hop but for the journal's: its thread goes on behind the one that is told."""
    return [hop for hop in hops if not hop.startswith("store.")][-1]


class Passage:
    """Two clients on sockets of their own: one sends, the other has credit and completes."""

    def __init__(self, broker: LiveBroker) -> None:
        self.broker = broker
        queue = broker.queue()
        self.sending, self.receiving = RawClient(broker.server.port), RawClient(broker.server.port)
        self.sender = self.sending.sender(queue)
        receiver = self.receiving.receiver(queue)
        receiver.grant(10)
        self.complete(self.send("the first of a queue wakes it up"))

    def send(self, text: str) -> TransferReceived:
        """Return when it is acknowledged and delivered, and the broker at rest."""
        self.sender.send(b"tag", OutgoingMessage(text, message_id="1").encode(), False)
        self.sending.wait(DispositionReceived)
        delivery = self.receiving.wait(TransferReceived)
        self.broker.wait(self.broker.server.pump.is_at_rest)
        return delivery

    def complete(self, delivery: TransferReceived) -> None:
        self.receiving.session.dispose(delivery.delivery_id, Accepted())
        self.receiving.wait(IncomingSettled)
        self.broker.wait(self.broker.server.pump.is_at_rest)

    def close(self) -> None:
        self.sending.close()
        self.receiving.close()


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Walk, Walk, Walk]:
    """A send with its acknowledgement and delivery, what completes it, and both with all that is around them."""
    sent, completed, everything = Walk(), Walk(), Walk()

    def trace(frame: FrameType, event: str, of: object) -> None:
        sent(frame, event, of)
        completed(frame, event, of)
        everything(frame, event, of)

    directory = tmp_path_factory.mktemp("walk")
    threading.setprofile(trace)  # for threads that begin now: the broker's and its journal's
    try:
        broker = LiveBroker(directory, LoggedJournal(directory / "journal.db"), FakeClock)  # no second ends meanwhile
    finally:
        threading.setprofile(None)
    with everything:
        passage = Passage(broker)
        with sent:
            delivery = passage.send("walks through the house")
        with completed:
            passage.complete(delivery)
        passage.close()
        broker.close()
    return sent, completed, everything


def test_a_message_is_sent_acknowledged_and_delivered_in_no_more_hops_than_it_was(
    walks: tuple[Walk, Walk, Walk],
) -> None:
    hops = walks[0].hops
    assert hops[0] == "server.connection.ClientConnection.data_received"
    assert "server.connection.ClientConnection.write" in hops  # of the delivery, which does not wait for the disk
    assert last_spoken(hops) == "amqp.fast.disposition_frame"  # of the acknowledgement, which does
    assert {"broker.sending.Sending.send", "store.segments.SegmentLog.append", "server.pump.Pump.release"} <= set(hops)
    assert {"amqp.session.Session.settle", "dialect.receiving.ClientReceiver.deliver"} <= set(hops)
    assert len(BEFORE["send"]) == SEND_HOPS_BEFORE
    assert len(hops) <= SEND_HOPS <= SEND_HOPS_BEFORE, "\n".join(hops)


def test_a_message_is_completed_in_no_more_hops_than_it_was(walks: tuple[Walk, Walk, Walk]) -> None:
    hops = walks[1].hops
    assert hops[0] == "server.connection.ClientConnection.data_received"
    assert last_spoken(hops) == "server.connection.ClientConnection.write"
    assert {"broker.settling.Settling.settle", "store.segments.SegmentLog.append"} <= set(hops)
    assert {"server.pump.Pump.release", "dialect.receiving.ClientReceiver.echo"} <= set(hops)
    assert len(BEFORE["complete"]) == COMPLETE_HOPS_BEFORE
    assert len(hops) <= COMPLETE_HOPS <= COMPLETE_HOPS_BEFORE, "\n".join(hops)


def test_what_is_no_hop_is_still_on_the_way(walks: tuple[Walk, Walk, Walk]) -> None:
    """A pattern that nothing passes any more hides whatever gets that name next."""
    entered = walks[2].entered
    idle = [each for names in BESIDE.values() for each in names.split() if not any(fnmatch(x, each) for x in entered)]
    assert idle == []
