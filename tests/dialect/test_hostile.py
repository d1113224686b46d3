"""Whatever a client sends, the peer does not raise: each fault ends its own link, session or connection."""

import random

import pytest

from spillway.amqp.errors import AmqpError
from spillway.amqp.frames import encode_frame
from spillway.amqp.performatives import ACCEPTED, Modified, Rejected, Source, Target, Transfer
from spillway.amqp.types import Array, Int, Symbol
from spillway.broker.commands import Command, CreateEntity, Undelivered
from spillway.broker.effects import Deliver
from spillway.dialect.annotations import BATCH_FORMAT
from spillway.dialect.peer import Peer, PeerOptions
from spillway.dialect.rights import Rights
from spillway.dialect.sending import ClientSender
from spillway.model.entity import QUEUE, EntitySettings
from spillway.testing.core import CoreHarness
from tests.dialect.visit import NOW_MS, RULES, Numbers, Tracking, Whole, body_message


class Recording(Whole):
    """A visit whose bytes to the peer are kept, in the pieces in which they went."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        super().__init__()

    def pump(self) -> None:
        out = b"".join(self.connection.drain_output())
        if out:
            self.pieces.append(out)
            self.peer.receive(out, self.now_ms)
        back = b"".join(self.peer.drain_output())
        if back:
            self.connection.receive(back, self.now_ms)
        self.events += self.connection.drain_events()
        self.commands += self.peer.pop_commands(10_000, 1 << 30)
        if out or back:
            self.pump()


def recorded() -> list[bytes]:
    """A visit that uses everything: tokens, sends, batches, receives, settlements, drain, management, bad links."""
    visit = Recording()
    visit.authorised()
    sender = visit.open_sender()
    for number in range(8):
        sender.send(b"%d" % number, body_message(b"x" * 100), number == 5)
    sender.send(b"b", b"\x00\x53\x75\xa0\x20" + body_message(b"inner")[:32], False, BATCH_FORMAT)
    sender.send(b"j", b"junk", False)
    receiver = visit.open_receiver(credit=6)
    deliveries = visit.deliveries()
    states = [
        ACCEPTED,
        Modified(True, False, {Symbol("a"): 1}),
        Modified(True, True),
        Rejected(AmqpError("com.microsoft:dead-letter", None, {Symbol("DeadLetterReason"): "r"})),
    ]
    for delivery, state in zip(deliveries, states, strict=False):
        visit.session.dispose(delivery.delivery_id, state)
    receiver.grant(20, drain=True)
    visit.run()
    out, _ = visit.pair("q/$management")
    visit.ask(out, {"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 1, "message-count": Int(3)})
    visit.ask(out, {"operation": "com.microsoft:cancel-scheduled-message"}, {"sequence-numbers": Array(0x81, [1])})
    visit.run()
    visit.receiver(source=Source(address="q", filter={Symbol("com.microsoft:session-filter"): None}))
    visit.session.attach_sender("s", Source(), Target(address="nowhere"))
    receiver.detach()
    visit.run()
    visit.session.end()
    visit.connection.close()
    visit.run()
    return visit.pieces


PIECES = recorded()


class Victim:
    """A peer with a real core behind it, fed with bytes."""

    def __init__(self) -> None:
        self.core = CoreHarness(NOW_MS)
        self.core.apply(CreateEntity(1_000_000, QUEUE, "q", EntitySettings()))
        self.peer = Peer(PeerOptions("ns"), self.core.namespace, Rights(RULES), Numbers(), Tracking(), True, NOW_MS)

    def feed(self, data: bytes) -> None:
        self.peer.receive(data, NOW_MS)
        commands: list[Command] = self.peer.pop_commands(1_000, 1 << 30)
        while commands:
            back: list[Command] = []
            for effect in self.core.apply(*commands):
                if not self.peer.dispatch(effect, NOW_MS) and isinstance(effect, Deliver) and effect.lock_token:
                    back.append(Undelivered(effect.path, effect.lock_token))
            commands = back + self.peer.pop_commands(1_000, 1 << 30)
        self.peer.drain_output()


def test_the_recorded_visit_itself_is_served_to_its_end() -> None:
    victim = Victim()
    for piece in PIECES:
        victim.feed(piece)
    assert victim.peer.is_closed
    assert victim.peer.links == {}


@pytest.mark.parametrize("seed", range(150))
def test_no_damage_to_the_bytes_of_a_visit_makes_the_peer_raise(seed: int) -> None:
    chance = random.Random(seed)
    victim = Victim()
    first_damaged = chance.randrange(len(PIECES))
    for index, piece in enumerate(PIECES):
        data = bytearray(piece)
        for _ in range(0 if index < first_damaged else chance.choice([0, 0, 1, 1, 2, 5])):
            kind = chance.randrange(4)
            at = chance.randrange(len(data)) if data else 0
            if kind == 0 and data:
                data[at] = chance.randrange(256)
            elif kind == 1 and data:
                data[at] ^= 1 << chance.randrange(8)
            elif kind == 2:
                del data[at : at + chance.randrange(1, 4)]
            else:
                data[at:at] = chance.choice(PIECES)[: chance.randrange(1, 300)]
        step = chance.choice([len(data) or 1, 1 + len(data) // 3])
        for at in range(0, len(data), step):
            victim.feed(bytes(data[at : at + step]))
    victim.peer.tick(NOW_MS + 1_000)
    victim.peer.lost()
    victim.feed(b"")
    assert victim.peer.links == {}
    assert not victim.core.namespace.links.receivers.by_number
    assert not victim.core.namespace.links.senders


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_whole_pieces_makes_the_peer_raise(seed: int) -> None:
    chance = random.Random(1_000 + seed)
    victim = Victim()
    victim.feed(PIECES[0])
    if len(PIECES) > 1:
        victim.feed(PIECES[1])
    for _ in range(12):
        victim.feed(b"".join(chance.choice(PIECES[1:]) for _ in range(chance.randrange(1, 3))))
    victim.peer.lost()
    victim.feed(b"")
    assert victim.peer.links == {}


def test_answers_that_are_not_taken_end_their_link_and_not_our_memory() -> None:
    visit = Whole()
    visit.authorised()
    reply = visit.session.attach_receiver("answers", Source(address="q/$management"), Target(address="here"))
    out = visit.session.attach_sender("asks", Source(address="here"), Target(address="q/$management"))
    visit.run()
    for _ in range(40):
        visit.ask(out, {"operation": "x" * 100}, {"padding": 1}, message_id="m" * 200_000)
        visit.run()
    assert reply.is_detached
    assert not visit.peer.nodes.holding
    assert not out.is_detached


def test_deliveries_that_are_called_off_use_up_no_credit_for_good() -> None:
    visit = Whole()
    visit.authorised()
    sender = visit.open_sender()
    (link,) = [user.link for user in visit.peer.links.values() if isinstance(user, ClientSender)]
    frames = b"".join(
        encode_frame(0, Transfer(sender.local_handle, number, b"t", 0, more=True), b"x")
        + encode_frame(0, Transfer(sender.local_handle, aborted=True))
        for number in range(700)
    )
    visit.peer.receive(frames, NOW_MS)
    assert link.credit_left > 500
    assert visit.peer.connection.partial_bytes == 0
