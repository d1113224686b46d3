"""Any sequence of frames, against a server whose owner answers: nothing raises, everything stays bounded."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.amqp.connection import Connection, ConnectionOptions
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    DispositionReceived,
    FlowReceived,
    LinkDetached,
    SessionEnded,
    TransferReceived,
    TransferTooLarge,
)
from spillway.amqp.frames import AMQP_HEADER, encode_frame
from spillway.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Attach,
    Begin,
    Close,
    DeliveryState,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Rejected,
    Source,
    Target,
    Transfer,
)

LAST = (1 << 32) - 1
PARTIAL_BYTES_MAX = 2_000
LINKS_MAX = 6

STATES: list[DeliveryState | None] = [None, ACCEPTED, RELEASED, Rejected(), Modified(True)]
KINDS = {"begin": 1, "attach": 3, "flow": 6, "transfer": 10, "disposition": 4, "detach": 2, "end": 1}


class Peer:
    """Throws dice over what to send. Mostly it follows the rules, as far as it sees through the server's eyes, so that
    it gets far; every dice has a face or two that does not."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.next_ids: dict[int, int] = {}
        self.delivery_id = LAST - 5

    def channel(self, die: int) -> int:
        mapped = sorted(self.connection.sessions_by_remote_channel)
        if mapped and die > 0:
            return mapped[die % len(mapped)]
        return 2

    def handle(self, channel: int, die: int, is_sender: bool) -> int:
        session = self.connection.sessions_by_remote_channel.get(channel)
        found = (
            []
            if session is None
            else [
                handle
                for handle, link in session.links_by_remote_handle.items()
                if link.is_sender == is_sender or die > 9
            ]
        )
        return found[die % len(found)] if found and die > 0 else die % 6

    def frame(self, kind: str, one: int, two: int, three: int, four: int) -> bytes:
        channel = self.channel(one)
        role = four % 2 == 0
        if kind in ("transfer", "flow") and two > 0 and not self.has_open_link(channel, kind == "flow"):
            kind, role = "attach", kind == "flow"
        if kind == "begin":
            free = self.free_channel() if one else three % 5
            return encode_frame(free, Begin(None if two else 1, LAST - 1, two * 3, LAST))
        if kind == "attach":
            source, target = (None, None) if two == 0 else (Source("s"), Target("t"))
            handle = self.free_handle(channel) if three else 1
            return encode_frame(
                channel, Attach("abcdefghijkl"[two], handle, role, 0, 1, source, target, initial_delivery_count=LAST)
            )
        if kind == "flow":
            return encode_frame(channel, self.flow(channel, two, three, four))
        if kind == "transfer":
            return encode_frame(channel, self.transfer(channel, two, three, four), bytes(200 if two % 3 else 0))
        if kind == "disposition":
            state = STATES[four % len(STATES)]
            last = None if two == 0 else three + two - 1 if two < 11 else LAST
            return encode_frame(channel, Disposition(four < 9, three, last, two % 2 == 0, state))
        if kind == "detach":
            return encode_frame(channel, Detach(self.handle(channel, two, three % 2 == 0), four < 8))
        if three > 8:
            return encode_frame(0, Close() if four == 0 else Open("again") if four == 1 else End())
        return encode_frame(channel, End())

    def has_open_link(self, channel: int, is_sender: bool) -> bool:
        session = self.connection.sessions_by_remote_channel.get(channel)
        return session is not None and any(
            link.is_open and link.is_sender == is_sender for link in session.links_by_remote_handle.values()
        )

    def free_channel(self) -> int:
        return min({0, 1, 2, 3} - set(self.connection.sessions_by_remote_channel), default=4)

    def free_handle(self, channel: int) -> int:
        session = self.connection.sessions_by_remote_channel.get(channel)
        taken = set() if session is None else set(session.links_by_remote_handle)
        return min(set(range(6)) - taken)

    def flow(self, channel: int, two: int, three: int, four: int) -> Flow:
        handle = None if two == 11 else self.handle(channel, two, three != 0)
        session = self.connection.sessions_by_remote_channel.get(channel)
        link = None if session is None or handle is None else session.links_by_remote_handle.get(handle)
        seen = session.outgoing.next_outgoing_id if session is not None else 0
        count = link.delivery_count if link is not None else 0
        credit = LAST if four == 11 else four
        return Flow(
            seen - min(seen, four % 3), three, 0, LAST, handle, count, credit, drain=three % 3 == 0, echo=four % 4 == 0
        )

    def transfer(self, channel: int, two: int, three: int, four: int) -> Transfer:
        handle = self.handle(channel, two, three == 0)
        session = self.connection.sessions_by_remote_channel.get(channel)
        link = None if session is None else session.links_by_remote_handle.get(handle)
        more, aborted = four % 3 == 0, four % 7 == 0
        if link is not None and link.partial is not None and three != 1:
            return Transfer(handle, None, None, None, None, more, aborted=aborted)
        self.delivery_id += four % 3 - 1  # repeated, ahead and back: any will do
        return Transfer(
            handle, self.delivery_id & LAST, b"tag" if three != 2 else None, 0, three == 3, more, aborted=aborted
        )


class Owner:
    """Answers what it is told, one way or another as the dice say, and checks that nothing is told twice."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.over: set[int] = set()
        self.kept: list[object] = []  # so that no id is used again

    def once(self, thing: object) -> None:
        assert id(thing) not in self.over, "an ending is told once"
        self.over.add(id(thing))
        self.kept.append(thing)

    def answer(self, die: int) -> None:
        for event in self.connection.drain_events():
            if isinstance(event, AttachRequested):
                link = event.link
                if link.is_detached or die == 0:
                    continue  # let it wait
                if die == 1:
                    link.refuse(AmqpError("amqp:not-found", "random"))
                    continue
                link.accept(Source("s"), Target("t"), max_message_size=500)
                if not link.is_sender:
                    link.grant(die)
            elif isinstance(event, FlowReceived):
                link = event.link
                for number in range(min(link.credit, die) if link.is_open and link.is_sender else 0):
                    link.send(bytes([number]), bytes(1_000), die == 2)
                if event.drain and link.is_sender:
                    link.drained()
            elif isinstance(event, (TransferReceived, TransferTooLarge)):
                if not event.settled:
                    event.link.session.settle(event.delivery_id, ACCEPTED)
            elif isinstance(event, DispositionReceived):
                assert event.deliveries
                if not event.settled:
                    for delivery in event.deliveries:
                        delivery.link.session.settle_sent(delivery.delivery_id, ACCEPTED)
            elif isinstance(event, LinkDetached):
                self.once(event.link)
                event.link.drain_unsent()
                assert event.link.is_detached
            elif isinstance(event, SessionEnded):
                self.once(event.session)
                assert event.session.is_ended
            elif isinstance(event, ConnectionClosed):
                self.once(self.connection)


def check_bounds(connection: Connection) -> None:
    mapped = 0
    partial_bytes = 0
    for session in connection.sessions.values():
        mapped += len(session.links_by_remote_handle)
        for link in session.links.values():
            partial_bytes += 0 if link.partial is None else link.partial.charged_bytes
            queued = [one for one in session.outgoing.queue if one.link is link and not one.is_begun]
            assert link.unsent == len(queued)
    assert connection.links_count == mapped <= 2 * LINKS_MAX
    assert connection.partial_bytes == partial_bytes <= PARTIAL_BYTES_MAX
    assert len(connection.names) <= LINKS_MAX
    assert len(connection.sessions) <= 4
    assert len(connection.ended_channels) <= 4


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, LAST), count=st.integers(20, 200))
def test_no_sequence_of_frames_raises_or_outgrows_its_bounds(seed: int, count: int) -> None:
    options = ConnectionOptions(
        "us",
        channel_max=3,
        handle_max=4,
        links_max=LINKS_MAX,
        partial_bytes_max=PARTIAL_BYTES_MAX,
        incoming_window=10,
        max_frame_size=512,
    )
    connection = Connection(options, True, 0)
    owner = Owner(connection)
    connection.receive(AMQP_HEADER + encode_frame(0, Open("peer", max_frame_size=512)), 0)
    connection.receive(encode_frame(0, Begin(None, 0, 100, 100)), 0)
    connection.receive(encode_frame(1, Begin(None, 0, 2, 100)), 0)
    connection.receive(encode_frame(2, Begin(None, 0, 50, 100)), 0)
    peer = Peer(connection)
    now_ms = 0
    random = Random(seed)
    for kind in random.choices(list(KINDS), list(KINDS.values()), k=count):
        one, two, three, four = (random.randrange(12) for _ in range(4))
        now_ms += four
        connection.receive(peer.frame(kind, one, two, three, four), now_ms)
        owner.answer(one)
        check_bounds(connection)
        connection.tick(now_ms)
        if two > 2:
            connection.drain_output()
    connection.drain_output()
    assert not connection.drain_output()


def widened(frame: bytes) -> bytes:
    """The same frame with an extended header, which nobody sends: it is never read in a plain way."""
    return (len(frame) + 4).to_bytes(4, "big") + b"\x03" + frame[5:8] + b"wide" + frame[8:]


def told(connection: Connection) -> list[list[object]]:
    """The events so far, without what differs from one connection to another."""
    found: list[list[object]] = []
    for event in connection.events:
        values = [getattr(event, name, None) for name in ("delivery_id", "tag", "settled", "message_format", "payload")]
        link = getattr(event, "link", None)
        found.append([type(event).__name__, *values, None if link is None else link.local_handle])
    return found


def standing(connection: Connection) -> list[object]:
    sessions = [
        [session.local_channel, session.state, session.incoming_left, session.next_incoming_id, session.is_dirty]
        for session in connection.sessions.values()
    ]
    links = [
        [link.local_handle, link.state, link.delivery_count, link.credit_left, link.is_draining]
        for session in connection.sessions.values()
        for link in session.links.values()
    ]
    return [connection.state, connection.frames_count, connection.frames_weight, sessions, links]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, LAST), count=st.integers(20, 200))
def test_frames_mean_the_same_whether_they_are_read_in_the_plain_way_or_not(seed: int, count: int) -> None:
    random = Random(seed)
    window = random.choice([10, 1_000_000])
    options = ConnectionOptions("us", channel_max=3, handle_max=4, links_max=LINKS_MAX, incoming_window=window)
    plain, general = Connection(options, True, 0), Connection(options, True, 0)
    both = ((plain, Owner(plain)), (general, Owner(general)))
    for connection, _ in both:
        connection.receive(AMQP_HEADER + encode_frame(0, Open("peer", max_frame_size=512)), 0)
        for channel in range(3):
            connection.receive(encode_frame(channel, Begin(None, 0, 100, 100)), 0)
    peer = Peer(plain)
    batch = b""
    wide_batch = b""
    for kind in random.choices(list(KINDS), list(KINDS.values()), k=count):
        one, two, three, four = (random.randrange(12) for _ in range(4))
        frame = peer.frame(kind, one, two, three, four)
        batch += frame
        wide_batch += widened(frame)
        if one < 5:
            continue  # several frames at once
        frames_max = random.choice([1, 2, 1_000])
        plain.receive(batch, 0, frames_max)
        general.receive(wide_batch, 0, frames_max)
        batch = wide_batch = b""
        while plain.is_cut:
            plain.receive(b"", 0, frames_max)
        while general.is_cut:
            general.receive(b"", 0, frames_max)
        assert told(plain) == told(general)
        assert standing(plain) == standing(general)
        for _, owner in both:
            owner.answer(one)
        assert b"".join(plain.drain_output()) == b"".join(general.drain_output())


def test_whole_deliveries_cost_what_they_weigh_in_the_plain_way_too() -> None:
    options = ConnectionOptions("us")
    plain, general = Connection(options, True, 0), Connection(options, True, 0)
    for connection in (plain, general):
        connection.receive(AMQP_HEADER + encode_frame(0, Open("peer")) + encode_frame(0, Begin(None, 0, 100, 100)), 0)
        connection.receive(encode_frame(0, Attach("a", 0, False, target=Target("t"), initial_delivery_count=0)), 0)
        connection.sessions[0].links[0].accept(None, Target("t"), max_message_size=10_000)
        connection.drain_events()
    for size in (0, 1, 2_000, 2_048, 5_000, 10_001, 30_000):
        frame = encode_frame(0, Transfer(0, size, b"t", 0, False), bytes(size))
        plain.receive(frame * 3, 0, 4)
        general.receive(widened(frame) * 3, 0, 4)
        assert plain.is_cut == general.is_cut
        while plain.is_cut or general.is_cut:
            plain.receive(b"", 0, 4)
            general.receive(b"", 0, 4)
            assert plain.is_cut == general.is_cut
        assert told(plain) == told(general)
        assert standing(plain) == standing(general)
