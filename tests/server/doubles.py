"""What the pump is tested with: a peer that follows a script, a socket that records, a journal that is held back."""

import asyncio
from collections.abc import Callable

from spillway.broker.commands import Command
from spillway.broker.effects import Attached, Dropped, Effect
from spillway.broker.namespace import Namespace
from spillway.model.budget import lone_account
from spillway.model.errors import BrokerError
from spillway.model.records import Catalogue, Query, Turn
from spillway.server.numbers import Numbers
from spillway.server.pump import Pump
from spillway.store.journal import JournalListener
from spillway.store.memory import MemoryJournal
from spillway.testing.clock import FakeClock


class ScriptedPeer:
    """Brings the commands it is given, performs whatever it has a link for, and says one line for each effect."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.performed: list[Effect] = []
        self.output: list[bytes] = []
        self.registered: list[int] = []
        self.forgotten: list[int] = []
        self.received: list[bytes] = []
        self.gone: set[int] = set()  # links that have gone meanwhile
        self.attached: set[int] = set()
        self.ticks: list[int] = []
        self.reviews: list[int] = []
        self.due_ms = 0
        self.frames_count = 0
        self.has_unread = False
        self.is_closing = False
        self.unread_bytes = 0
        self.is_overasked = False
        self.account = lone_account()
        self.is_closed = False
        self.is_authorised = False
        self.is_writable = True
        self.close_error: BrokerError | None = None
        self.refusal: BrokerError | None = None
        self.fault: Exception | None = None
        self.is_unheard = False
        self.dispatching_at = 0
        self.faulty_kinds: list[type[Effect]] = []  # each raises once

    @property
    def frames_weight(self) -> int:
        return self.frames_count

    @property
    def has_commands(self) -> bool:
        return bool(self.commands)

    def receive(self, data: bytes, now_ms: int, frames_max: int = 1 << 62) -> None:
        if self.fault is not None:
            raise self.fault
        self.received.append(data)

    def pop_commands(self, count_max: int, bytes_max: int) -> list[Command]:
        taken = self.commands[:count_max]
        del self.commands[:count_max]
        return taken

    def is_attached(self, number: int) -> bool:
        return number in self.attached

    def dispatch(self, effect: Effect, now_ms: int) -> bool:
        if self.fault is not None:
            raise self.fault
        if type(effect) in self.faulty_kinds:
            self.faulty_kinds.remove(type(effect))
            raise ValueError("a fault of ours")
        if effect.to in self.gone:
            return False
        self.performed.append(effect)
        if isinstance(effect, Attached):
            self.attached.add(effect.to)
        self.output.append(f"{type(effect).__name__} {effect.to}\n".encode())
        return True

    def dispatch_run(self, effects: list[Effect], at: int, now_ms: int, refused: list[Effect]) -> int:
        """All that are for the same link."""
        number = effects[at].to
        while at < len(effects) and effects[at].to == number and not isinstance(effects[at], Dropped):
            self.dispatching_at = at
            if not self.dispatch(effects[at], now_ms):
                refused.append(effects[at])
            at += 1
        return at

    def drain_output(self) -> list[bytes]:
        taken = self.output
        self.output = []
        return taken

    def set_writable(self, is_writable: bool, now_ms: int) -> None:
        self.is_writable = is_writable

    def next_due_ms(self) -> int:
        return self.due_ms

    def tick(self, now_ms: int) -> None:
        self.ticks.append(now_ms)
        self.due_ms = 0
        self.output.append(b"heartbeat\n")

    def review(self, now_ms: int) -> None:
        self.reviews.append(now_ms)

    def last_words(self) -> None:
        self.is_unheard = True

    def lost(self) -> None:
        self.gone.update(self.registered)

    def close(self, error: BrokerError | None) -> None:
        self.close_error = error
        self.is_closed = True
        self.output.append(b"close\n")

    def refuse(self, error: BrokerError) -> None:
        self.refusal = error

    def drain_registered(self) -> list[int]:
        taken = self.registered
        self.registered = []
        return taken

    def drain_unregistered(self) -> list[int]:
        taken = self.forgotten
        self.forgotten = []
        return taken


class RecordedSocket:
    """Stands where a connection stands. One entry in `writes` for each write."""

    def __init__(self, peer: ScriptedPeer) -> None:
        self.peer = peer
        self.writes: list[bytes] = []
        self.is_lost = False
        self.is_slowed = False
        self.is_reading = True
        self.held_bytes = 0
        self.is_closed = False
        self.is_aborted = False
        self.faults: list[Exception] = []

    def write(self, parts: list[bytes]) -> None:
        self.writes.append(b"".join(parts))

    def close_when_written(self) -> None:
        self.is_closed = True

    def set_reading(self, is_reading: bool) -> None:
        self.is_reading = is_reading

    def abort(self) -> None:
        self.is_aborted = True

    def fail(self, error: Exception) -> None:
        self.faults.append(error)


class HeldJournal:
    """A real journal whose news the test lets through when it wants."""

    def __init__(self) -> None:
        self.inner = MemoryJournal()
        self.days = self.inner.days
        self.is_held = False
        self.held: list[Callable[[], None]] = []
        self.turns: list[Turn] = []
        self.order: list[str] = []  # `turn` and `load`, as they came
        self.pending_bytes = 0
        self.is_copying = False
        self.free_bytes = 1 << 40
        self.set_apart_count = 0
        self.listener: JournalListener | None = None

    def recover(self) -> Catalogue:
        return self.inner.recover()

    def start(self, listener: JournalListener, post: Callable[[Callable[[], None]], None]) -> None:
        self.listener = listener
        self.post = post
        self.inner.start(listener, self.tell)

    def tell(self, news: Callable[[], None]) -> None:
        if self.is_held:
            self.held.append(news)
        else:
            self.post(news)

    def let_go(self, count: int = 1_000_000) -> None:
        for news in self.held[:count]:
            self.post(news)
        del self.held[:count]

    def submit(self, turn: Turn, ticket: int) -> None:
        self.turns.append(turn)
        self.order.append("turn")
        self.inner.submit(turn, ticket)

    def fail(self, error: BaseException) -> None:
        """A sync fails: told like everything else, through the loop."""
        listener = self.listener
        assert listener is not None
        self.post(lambda: listener.on_failed(error))

    def load(self, query: Query, ticket: int) -> None:
        self.order.append("load")
        self.inner.load(query, ticket)

    def close(self) -> None:
        self.inner.close()


class Bench:
    """A pump with all of it around, and the loop stepped until nothing more happens."""

    def __init__(self, journal: HeldJournal | None = None) -> None:
        self.clock = FakeClock()
        self.journal = journal or HeldJournal()
        self.fatal: list[BaseException] = []
        self.core = Namespace("test", self.journal.recover(), b"8 bytes.")
        self.pump = Pump(
            "test",
            self.core,
            self.journal,
            self.clock,
            Numbers(),
            asyncio.get_running_loop(),
            self.fatal.append,
        )
        self.pump.start()

    def connect(self) -> tuple[ScriptedPeer, RecordedSocket]:
        peer = ScriptedPeer()
        sock = RecordedSocket(peer)
        self.pump.add(sock)
        return peer, sock

    def bring(self, sock: RecordedSocket, *commands: Command, link_id: int | None = None) -> None:
        sock.peer.commands += commands
        if link_id is not None:
            sock.peer.registered.append(link_id)
        self.pump.mark_dirty(sock)

    async def settle(self) -> None:
        """Every callback that is ready, and those they make ready."""
        for _ in range(30):
            await asyncio.sleep(0)
