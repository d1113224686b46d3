"""One line, one direction: bytes become commands, the broker decides, the journal remembers, peers speak.

One pump drives one namespace. A turn is scheduled at most once per iteration of the loop, takes a bounded share from
each peer that has something new, and ends with one write per connection that has something to say. Effects leave in one
FIFO: those of a turn wait until the turn is durable, those of a turn without records wait behind earlier turns. Nothing
here decides anything about messages; nothing here is spoken before it is remembered.

    collect_commands ─▶ apply ─┬─▶ records ─▶ journal.submit(ticket) ─ ─ ─▶ on_durable(ticket) ─▶ release ─▶ dispatch
                               ├─▶ effects ─▶ waiting, behind those of earlier tickets ─────────────┘
                               └─▶ loads ───▶ journal.load, right behind that submit ─ ─▶ on_loaded ─▶ own_commands

To wait for the disk after every command would be one sync a command. So the core decides ahead of the disk, on a state
that is not durable yet, and only what is *said* waits. What follows from that:

- **Effects leave in the order in which they were decided**, and each when all turns up to its own are durable.
  `waiting` is in the order of tickets, and nothing overtakes it.
- **A turn without records waits as well**, if one before it does: what it says rests on what that one decided, for
  example on a message whose send is not on the disk. It has no ticket of its own, for which nobody would commit
  anything; its effects join those of the last turn that waits (`remember`). Spoken at once, a crash could take back
  what a client has been told.
- **A locked message may leave before its turn is durable** (`release_early`): only deliveries, only to links whose
  attach was answered, and only while little waits for the disk. A reader may then see a message whose send fails, as in
  every broker that hands over before it syncs; what he settles is in a later turn, so he never completes one that comes
  back. Deliveries of a link never overtake each other: `late_ticket` is the last turn that has some which wait.
- **The ledger alone holds nobody up.** Its turn has a ticket, and nothing waits for that.
- **A load is asked behind the turn that decided it.** The journal does one thing after the other, so its answer has
  what that turn has written. It need not be durable for that, and comes back as a command, like everything that
  happens.
- **What could not be said goes back to the core** (`requeue`): the core has counted on it, and only the core knows
  what it means that a delivery did not leave.
- **What nobody waits for yields to what somebody waits for.** While a turn with chores is not durable,
  `is_store_behind` keeps the core from doing more of them: their commit would be in front of everybody's
  acknowledgements.

After a failure of the journal nobody knows what is on the disk. The one thing that is certain not to be a lie is to say
nothing more (`on_failed`): what waits is dropped, every socket is cut off, and whoever runs the pump hears of it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from spillway.broker.commands import Command, DiskMeasured, Loaded, Request, SaveLedger, Undelivered
from spillway.broker.decided import Decided
from spillway.broker.disk_room import FULL, LOW, PLENTY, level_of
from spillway.broker.effects import AccessChanged, Answer, Deliver, Dropped, Effect, Load, Report, Restarted
from spillway.model import limits
from spillway.model.access import AccessRule
from spillway.model.budget import Account
from spillway.model.errors import BrokerError, ConnectionForced
from spillway.model.quotas import NO_LIMIT
from spillway.model.records import Rows, Turn
from spillway.server.clock import Clock, Timer
from spillway.server.numbers import Numbers
from spillway.store.journal import Journal

log = logging.getLogger(__name__)

EARLY_EFFECTS_MAX: Final = 64  # of one turn: those of a larger one go together, in one write
TICK_MS: Final = 1_000  # heartbeats, tokens, disk space: looked at this often, for all peers in one go


class Core(Protocol):
    """What the pump asks of `broker.namespace.Namespace`."""

    is_store_behind: bool  # what it has last done by itself is not durable yet: no more of it

    def apply(self, commands: list[Command], now_ms: int) -> Decided: ...
    def skipped_numbers(self, now_ms: int) -> Turn: ...
    def next_due_ms(self) -> int: ...
    def has_counted(self) -> bool: ...
    @property
    def held_bytes(self) -> int: ...


class PumpedPeer(Protocol):
    """What the pump asks of `dialect.peer.Peer`."""

    @property
    def has_commands(self) -> bool: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_closing(self) -> bool: ...
    @property
    def is_authorised(self) -> bool: ...
    @property
    def frames_count(self) -> int: ...
    @property
    def frames_weight(self) -> int: ...
    @property
    def account(self) -> Account: ...
    @property
    def has_unread(self) -> bool: ...
    @property
    def unread_bytes(self) -> int: ...
    @property
    def is_overasked(self) -> bool: ...
    def receive(self, data: bytes, now_ms: int, frames_max: int = ...) -> None: ...
    def pop_commands(self, count_max: int, bytes_max: int) -> list[Command]: ...

    dispatching_at: int  # where `dispatch_run` is

    def is_attached(self, number: int) -> bool: ...
    def dispatch(self, effect: Effect, now_ms: int) -> bool: ...
    def dispatch_run(self, effects: list[Effect], at: int, now_ms: int, refused: list[Effect]) -> int: ...
    def drain_output(self) -> list[bytes]: ...
    def set_writable(self, is_writable: bool, now_ms: int) -> None: ...
    def next_due_ms(self) -> int: ...
    def tick(self, now_ms: int) -> None: ...
    def review(self, now_ms: int) -> None: ...
    def last_words(self) -> None: ...
    def lost(self) -> None: ...
    def close(self, error: BrokerError | None) -> None: ...
    def refuse(self, error: BrokerError) -> None: ...
    def drain_registered(self) -> list[int]: ...
    def drain_unregistered(self) -> list[int]: ...


class Pumped(Protocol):
    """A connection: a peer and the socket it speaks through."""

    @property
    def peer(self) -> PumpedPeer: ...

    held_bytes: int  # read, and not yet taken from the peer

    @property
    def is_lost(self) -> bool:
        """The socket has gone: nothing can be written any more."""

    @property
    def is_slowed(self) -> bool:
        """The client has sent too many frames: what came of it is read later."""

    def write(self, parts: list[bytes]) -> None: ...
    def close_when_written(self) -> None: ...
    def set_reading(self, is_reading: bool) -> None: ...
    def abort(self) -> None: ...
    def fail(self, error: Exception) -> None:
        """A fault of ours in this peer: end this connection and no other."""


class PendingEffects:
    """Effects that may be spoken once the turn with this ticket is durable."""

    def __init__(self, ticket: int, effects: list[Effect]) -> None:
        self.ticket = ticket
        self.effects = effects


class Pump:
    def __init__(
        self,
        name: str,
        core: Core,
        journal: Journal,
        clock: Clock,
        numbers: Numbers,
        loop: asyncio.AbstractEventLoop,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self.core = core
        self.journal = journal
        self.clock = clock
        self.numbers = numbers
        self.loop = loop
        self.on_fatal = on_fatal
        self.connections: dict[Pumped, None] = {}
        self.owners: dict[int, Pumped] = {}  # link or request number -> who asked
        self.asked: dict[int, asyncio.Future[Answer]] = {}  # request number -> who waits inside this process
        self.dirty: dict[Pumped, None] = {}  # has commands or output not yet looked at, in order of arrival
        self.unread: dict[Pumped, None] = {}  # has sent more frames than were read at once, in the order of their turns
        self.frames_left: int = limits.FRAMES_PER_TURN_MAX  # of all peers, until the next turn
        self.own_commands: list[Command] = []  # answers of the store, returned deliveries, requests from inside
        self.waiting: deque[PendingEffects] = deque()
        self.loads_out = 0  # asked of the journal and not answered yet
        self.last_ticket = 0
        self.durable_ticket = 0  # of the last turn that is
        self.chores_ticket = 0  # of the last turn in which the core did something by itself
        self.delivers_early = True
        self.late_ticket = 0  # of the last turn that has deliveries which wait for it
        self.is_scheduled = False
        self.pending_bytes_pause: int = limits.PENDING_BYTES_PAUSE
        self.frames_per_second: int = NO_LIMIT  # of one connection
        self.unauthenticated_frames_per_second: int = limits.UNAUTHENTICATED_FRAMES_PER_SECOND  # of one without a token
        self.held_bytes = 0  # of all connections: read, and not yet decided
        self.is_paused = False  # too much is waiting for the disk: no socket is read
        self.is_held = False
        self.disk_level = PLENTY
        self.free_bytes_told: int = limits.DISK_WATCHED_BYTES  # to the core
        self.is_over = False  # failed or stopped: nothing more is decided
        self.is_failed = False
        self.timer: Timer | None = None
        self.timer_due_ms = 0
        self.ticker: Timer | None = None
        self.waiters: list[asyncio.Future[None]] = []  # told after every turn
        self.on_access_changed: Callable[[str, list[AccessRule]], None] | None = None  # rules that are durable
        self.on_tick: list[Callable[[int], None]] = []  # who else wants to be called once a second
        self.on_turn: list[Callable[[int], None]] = []  # and after every turn

    def start(self) -> None:
        self.journal.start(self, self.post)
        skipped = self.core.skipped_numbers(self.clock.now_ms())
        if not skipped.is_empty():
            self.submit(skipped)
            self.late_ticket = self.last_ticket  # until then a number could be seen twice
        self.tick()

    def post(self, callback: Callable[[], None]) -> None:
        """Hands a call from the journal's thread to the loop's."""
        self.loop.call_soon_threadsafe(callback)

    # -- the line -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have a turn in the next iteration of the loop."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self.loop.call_soon(self.turn)

    def turn(self) -> None:
        self.is_scheduled = False
        if self.is_over:
            return
        now_ms = self.clock.now_ms()
        try:
            self.check_disk()
            self.read_on()
            commands = self.collect_commands()
            if commands or 0 < self.core.next_due_ms() <= now_ms:
                self.remember(self.core.apply(commands, now_ms))
            self.tell_of_turn(now_ms)
            self.flush()
            self.check_bytes()
            self.set_timer(now_ms)
            self.tell_waiters()
        except Exception as error:  # the core or this room broke its own rules: its state cannot be trusted
            self.on_failed(error)

    def tell_of_turn(self, now_ms: int) -> None:
        for callback in self.on_turn:
            try:
                callback(now_ms)
            except Exception as error:  # whatever it looks after, the line goes on
                log.error("namespace=%s a fault of the broker after a turn", self.name, exc_info=error)

    def read(self, connection: Pumped, data: bytes = b"") -> None:
        """What came from a socket, or what is left of that, as far as its share of frames goes; the rest has its turn
        with the others'."""
        peer = connection.peer
        frames_max = 0 if connection in self.unread else self.share_of(peer)  # 0: behind what it has sent before
        if not data and frames_max == 0:
            frames_max = 1  # it has waited for its turn
        frames_before = peer.frames_count
        weight_before = peer.frames_weight
        weight = 1 if peer.is_authorised else limits.UNAUTHENTICATED_FRAME_WEIGHT
        try:
            peer.receive(data, self.clock.real_ms(), frames_max)
        except Exception as error:
            connection.fail(error)
        frames = max(peer.frames_count - frames_before, 1) * weight
        self.frames_left -= max(frames, peer.frames_weight - weight_before)
        if peer.has_unread:
            self.read_later(connection)
        if data:
            self.on_read(connection, len(data))

    def share_of(self, peer: PumpedPeer) -> int:
        """Clients without a token share what is left of a turn; one with a token is always heard a little."""
        if not peer.is_authorised:
            return min(self.frames_left // limits.UNAUTHENTICATED_FRAME_WEIGHT, limits.FRAMES_PER_VISIT_MIN)
        return max(min(self.frames_left, limits.FRAMES_PER_VISIT_MAX), limits.FRAMES_PER_VISIT_MIN)

    def read_later(self, connection: Pumped) -> None:
        self.unread[connection] = None
        connection.set_reading(False)
        self.mark_dirty(connection)

    def read_on(self) -> None:
        """A turn's worth of frames of those who have sent more than was read at once, one peer after the other."""
        self.frames_left = limits.FRAMES_PER_TURN_MAX
        for connection in list(self.unread):
            if self.frames_left <= 0:
                break
            del self.unread[connection]
            if not (connection.is_slowed or connection.is_lost or connection.peer.has_commands):
                self.dirty[connection] = None
                self.read(connection)
            elif connection.peer.has_commands:
                self.unread[connection] = None  # what it has said is decided first

    def collect_commands(self) -> list[Command]:
        commands = self.own_commands
        self.own_commands = []
        for connection in self.dirty:
            peer = connection.peer
            if peer.has_commands:
                try:
                    commands += peer.pop_commands(limits.COMMANDS_PER_TURN_MAX, limits.COMMAND_BYTES_PER_TURN_MAX)
                except Exception as error:
                    connection.fail(error)
                for number in peer.drain_registered():
                    self.owners[number] = connection
        return commands

    def remember(self, decided: Decided) -> None:
        """Submit the turn, ask its loads right behind it, and keep its effects until it is durable."""
        effects = decided.effects
        loads = [effect for effect in effects if type(effect) is Load]
        if loads:
            effects = [effect for effect in effects if type(effect) is not Load]
        needs_ack = decided.turn.needs_ack()
        if (needs_ack or self.waiting) and [effect for effect in effects if type(effect) is Deliver]:
            effects = self.release_early(effects, decided.turn, needs_ack)
        # Three kinds of turns: with records that somebody waits for, with the ledger alone, and with nothing to write.
        if needs_ack:
            self.submit(decided.turn)
            if decided.has_done_chores:
                self.chores_ticket = self.last_ticket
                self.core.is_store_behind = True
        elif not decided.turn.is_empty():
            self.submit_and_forget(decided.turn)
        self.loads_out += len(loads)
        for load in loads:
            self.journal.load(load.query, load.to)
        if effects and self.waiting:
            self.waiting[-1].effects.extend(effects)
        elif effects:
            self.release(effects, self.clock.real_ms())

    def release_early(self, effects: list[Effect], turn: Turn, needs_ack: bool) -> list[Effect]:
        """Of a turn with deliveries that will be durable later, say what may be seen before. Returns what waits.

        It is written at once, before the journal has the turn: its thread would get in each other's way with this one.
        """
        ticket = self.last_ticket + 1 if needs_ack else self.waiting[-1].ticket
        if (
            self.durable_ticket < self.late_ticket
            or len(effects) > EARLY_EFFECTS_MAX
            or not self.delivers_early
            or self.journal.pending_bytes + turn.size_bytes > limits.EARLY_BYTES_MAX
        ):
            self.late_ticket = ticket
            return effects
        early: list[Effect] = []
        late: list[Effect] = []
        for effect in effects:
            is_early = False
            if type(effect) is Deliver:
                owner = self.owners.get(effect.to)
                is_early = effect.lock_token != b"" and owner is not None and owner.peer.is_attached(effect.to)
                if not is_early:
                    self.late_ticket = ticket
            (early if is_early else late).append(effect)
        if early:
            self.release(early, self.clock.real_ms())
            self.flush()
        return late

    def submit(self, turn: Turn) -> None:
        """Submits a turn that somebody waits for, with no effects yet: whatever is said from now on waits for it."""
        self.last_ticket += 1
        self.waiting.append(PendingEffects(self.last_ticket, []))
        self.journal.submit(turn, self.last_ticket)

    def submit_and_forget(self, turn: Turn) -> None:
        """The ledger alone: no effect waits for it, neither of this turn nor of a later one."""
        self.last_ticket += 1
        self.journal.submit(turn, self.last_ticket)

    def on_durable(self, ticket: int) -> None:
        if self.is_over:
            return
        real_ms = self.clock.real_ms()
        self.durable_ticket = ticket
        self.check_store()
        while self.waiting and self.waiting[0].ticket <= ticket:
            self.release(self.waiting.popleft().effects, real_ms)
        self.wake()

    def on_copied(self) -> None:
        self.check_store()
        self.wake()

    def check_store(self) -> None:
        """What the core does by itself goes on when the last of it is on disk, and the store does nothing else."""
        if self.durable_ticket >= self.chores_ticket and not self.journal.is_copying:
            self.core.is_store_behind = False

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        if not self.is_over:
            self.loads_out -= 1
            self.own_commands.append(Loaded(ticket, rows))
            self.wake()

    def release(self, effects: list[Effect], real_ms: int) -> None:
        """Speak. A link that has gone meanwhile: back to the core."""
        at = 0
        while at < len(effects):
            effect = effects[at]
            connection = self.owners.get(effect.to)
            if connection is None:
                self.answer_inside(effect)
                at += 1
            else:
                self.dirty[connection] = None
                at = self.dispatch(connection, effects, at, real_ms)

    def dispatch(self, connection: Pumped, effects: list[Effect], at: int, real_ms: int) -> int:
        """Hand effects to a peer: that at `at`, and those behind it that are for the same. Returns where it stopped."""
        peer = connection.peer
        refused: list[Effect] = []
        try:
            upto = peer.dispatch_run(effects, at, real_ms, refused)
            if upto == at:  # a rare one
                upto += 1
                if not peer.dispatch(effects[at], real_ms):
                    refused.append(effects[at])
        except Exception as error:
            connection.fail(error)
            upto = peer.dispatching_at + 1
            refused.append(effects[upto - 1])
        for effect in refused:
            self.requeue(effect, connection)
        return upto

    def answer_inside(self, effect: Effect) -> None:
        """An effect for nobody on a socket: for a caller in this process, the operator, or a link that has gone."""
        if isinstance(effect, Answer):
            future = self.asked.pop(effect.to, None)
            if future is not None and not future.done():
                future.set_result(effect)
        elif isinstance(effect, Report):
            log.log(logging.ERROR if effect.is_alarm else logging.INFO, "namespace=%s %s", self.name, effect.text)
        elif isinstance(effect, Restarted):
            self.close_all(effect.text)
        elif isinstance(effect, AccessChanged):
            if self.on_access_changed is not None:
                self.on_access_changed(effect.scope, effect.rules)
        else:
            self.requeue(effect, None)

    def requeue(self, effect: Effect, connection: Pumped | None) -> None:
        """An effect could not be dispatched: back to the core, or it was the end of the connection."""
        if isinstance(effect, Deliver) and effect.lock_token:
            self.own_commands.append(Undelivered(effect.path, effect.lock_token))
            self.wake()
        elif isinstance(effect, Dropped) and connection is not None:
            connection.write(connection.peer.drain_output())  # what was said before is not unsaid
            connection.abort()

    def close_all(self, text: str) -> None:
        """A fault on purpose: to clients this node restarts."""
        log.warning("namespace=%s every connection is closed by a fault on purpose", self.name)
        for connection in list(self.connections):
            connection.peer.close(ConnectionForced(text))
            connection.write(connection.peer.drain_output())
            connection.close_when_written()  # a node that goes down does not wait for its clients' goodbyes
            self.mark_dirty(connection)

    def flush(self) -> None:
        """One write per dirty connection; who has more commands stays dirty and is not read until they are taken."""
        dirty = self.dirty
        self.dirty = {}
        for connection in dirty:
            try:
                parts = connection.peer.drain_output()
                if parts:
                    connection.write(parts)
                self.after_write(connection)
            except Exception as error:
                connection.fail(error)
        if self.dirty or self.own_commands or self.unread:
            self.wake()

    def after_write(self, connection: Pumped) -> None:
        """What its peer has left behind: links that ended, commands for the next turn, bytes that are held."""
        peer = connection.peer
        for number in peer.drain_unregistered():
            self.owners.pop(number, None)
        if peer.has_commands:
            self.dirty[connection] = None
            connection.set_reading(False)
            return
        # What clients without a token have sent and was not read is little for each of them; others do not wait for it.
        has_unread = peer.has_unread
        is_counted = has_unread and peer.is_authorised and not connection.is_lost
        unread_bytes = peer.unread_bytes if is_counted else 0
        # `held_bytes` is the sum of what connections hold. What a peer holds is known only here, when its commands are
        # taken: until then it counts with every byte that came, read or not.
        self.held_bytes -= connection.held_bytes - unread_bytes
        connection.held_bytes = unread_bytes
        if connection.is_lost:
            self.unread.pop(connection, None)
            self.connections.pop(connection, None)
        else:
            connection.set_reading(self.may_read())
            if peer.is_closed or (has_unread and peer.is_closing):
                connection.close_when_written()

    # -- connections ----------------------------------------------------------------------------------------------

    def add(self, connection: Pumped) -> None:
        self.connections[connection] = None
        connection.set_reading(self.may_read())

    def mark_dirty(self, connection: Pumped) -> None:
        self.dirty[connection] = None
        self.wake()

    def on_read(self, connection: Pumped, size_bytes: int) -> None:
        """So much came from its socket. The loop reads from many sockets, and often, before there is a turn."""
        self.mark_dirty(connection)
        self.held_bytes += size_bytes
        connection.held_bytes += size_bytes
        if connection.held_bytes >= limits.COMMAND_BYTES_PER_TURN_MAX:
            connection.set_reading(False)
        if self.held_bytes >= self.pending_bytes_pause - self.journal.pending_bytes and not self.is_paused:
            self.set_paused(True)

    def check_bytes(self) -> None:
        """What is read and not yet on disk is in memory: no more of it beyond a limit, until half of that is left.

        The core holds what it cannot decide before the store has answered.
        """
        waiting = self.journal.pending_bytes + self.held_bytes + self.core.held_bytes
        if waiting >= self.pending_bytes_pause:
            if not self.is_paused:
                self.set_paused(True)
        elif self.is_paused and waiting <= self.pending_bytes_pause // 2:
            self.set_paused(False)

    def set_paused(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        log.debug("namespace=%s reading %s", self.name, "paused: waiting for the disk" if is_paused else "resumed")
        self.set_all_reading()

    def set_held(self, is_held: bool) -> None:
        """Stop reading all sockets on the way out, and read again for the clients' last words."""
        self.is_held = is_held
        self.set_all_reading()

    def may_read(self) -> bool:
        return not (self.is_paused or self.is_held)

    def set_all_reading(self) -> None:
        may_read = self.may_read()
        for connection in self.connections:
            connection.set_reading(may_read and not connection.peer.has_commands)

    def tell(self, command: Command) -> None:
        """Something the core must know, which it does not answer."""
        self.own_commands.append(command)
        self.wake()

    def review(self, now_ms: int) -> None:
        """Shared access rules have changed: every client keeps what they still allow."""
        for connection in list(self.connections):
            if connection.is_lost:
                continue
            try:
                connection.peer.review(now_ms)
            except Exception as error:
                connection.fail(error)
            self.mark_dirty(connection)

    # -- requests from inside the process ---------------------------------------------------------------------------

    async def ask(self, make_request: Callable[[int], Request]) -> Answer:
        """Put a request to the core and wait for its answer, which comes when it is durable. May be `Failed`."""
        (answer,) = await self.ask_together([make_request])
        return answer

    async def ask_together(self, make_requests: list[Callable[[int], Request]]) -> list[Answer]:
        """Several requests in one turn, in this order, with nothing between them. Each may be `Failed`."""
        asked: dict[int, asyncio.Future[Answer]] = {}
        for make_request in make_requests:
            number = self.numbers.next()
            asked[number] = self.asked[number] = self.loop.create_future()
            request = make_request(number)
            request.is_administrative = True
            self.own_commands.append(request)
        self.wake()
        try:
            return [await future for future in asked.values()]
        finally:
            for number in asked:
                self.asked.pop(number, None)

    # -- time -------------------------------------------------------------------------------------------------------

    def set_timer(self, now_ms: int) -> None:
        """One timer per namespace, at the time of whatever is due next; what is due already gets the next turn."""
        due_ms = self.core.next_due_ms()
        if 0 < due_ms <= now_ms:
            self.wake()
            return
        if due_ms == self.timer_due_ms and self.timer is not None:
            return
        if self.timer is not None:
            self.timer.cancel()
        self.timer_due_ms = due_ms
        self.timer = self.clock.call_at(due_ms, self.on_timer) if due_ms > 0 else None

    def on_timer(self) -> None:
        self.timer = None
        self.wake()

    def tick(self) -> None:
        """Once a second, whatever is coarse enough for it: one walk over all peers instead of a timer each."""
        if self.is_over:
            return
        now_ms = self.clock.now_ms()
        real_ms = self.clock.real_ms()
        self.ticker = self.clock.call_at(now_ms + TICK_MS, self.tick)
        for callback in self.on_tick:
            callback(now_ms)
        for connection in list(self.connections):
            try:
                due_ms = connection.peer.next_due_ms()
                if 0 < due_ms <= real_ms and not connection.is_lost:
                    self.mark_dirty(connection)
                    connection.peer.tick(real_ms)
            except Exception as error:
                connection.fail(error)
        if self.check_disk() or self.is_paused:  # whoever holds senders back may have forgotten to say that it is over
            self.wake()
        if self.core.has_counted():
            self.own_commands.append(SaveLedger())
            self.wake()
        if 0 < self.core.next_due_ms() <= now_ms:  # a timer that the leaning clock let slip
            self.wake()

    def pass_time(self) -> None:
        """The clock was moved: timers were set for the time it had before.

        A group without records is remembered for the time it carries: a restart does not go back behind it, even if
        nothing else happens until then.
        """
        for timer in (self.timer, self.ticker):
            if timer is not None:
                timer.cancel()
        self.timer = None
        turn = Turn(self.clock.now_ms())
        turn.add([])
        self.submit(turn)
        self.tick()
        self.wake()

    def check_disk(self) -> bool:
        """Before every turn: the core knows how much may be written in it. Whether there is news for it.

        A client can fill the reserve faster than once a second; with plenty of space the core need not know how much.
        """
        free_bytes = min(self.journal.free_bytes, limits.DISK_WATCHED_BYTES)
        if free_bytes == self.free_bytes_told:
            return False
        self.free_bytes_told = free_bytes
        self.own_commands.insert(0, DiskMeasured(free_bytes))
        level = level_of(free_bytes)
        if level != self.disk_level:
            self.disk_level = level
            log.warning("namespace=%s %s", self.name, DISK_TEXTS[level])
        return True

    # -- ends -------------------------------------------------------------------------------------------------------

    def on_failed(self, error: BaseException) -> None:
        """What was submitted may or may not be on disk: say nothing more to anybody, end the process, never retry."""
        if self.is_over:
            return
        self.is_over = True
        self.is_failed = True
        self.waiting.clear()
        for connection in list(self.connections):
            connection.abort()
        self.on_fatal(error)

    def is_idle(self) -> bool:
        """Everything taken from the sockets so far is decided, durable and spoken."""
        is_heard = not (self.dirty or self.unread or self.own_commands or self.is_scheduled)
        return is_heard and not (self.waiting or self.core.held_bytes)

    def is_at_rest(self) -> bool:
        """Idle, and whatever is due by now has happened too."""
        return self.is_idle() and self.loads_out == 0 and not 0 < self.core.next_due_ms() <= self.clock.now_ms()

    def is_deserted(self) -> bool:
        return not self.connections

    def tell_waiters(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Return once the condition holds after a turn, or False when the time is up."""
        deadline_s = self.loop.time() + timeout_s
        while not condition():
            waiter: asyncio.Future[None] = self.loop.create_future()
            self.waiters.append(waiter)
            await asyncio.wait((waiter,), timeout=deadline_s - self.loop.time())
            if not waiter.done():
                return False
        return True

    def stop(self) -> None:
        """No more turns. The journal may be closed after this."""
        if not self.is_over and self.core.has_counted():
            self.submit_and_forget(self.core.apply([SaveLedger()], self.clock.now_ms()).turn)
        self.is_over = True
        for timer in (self.timer, self.ticker):
            if timer is not None:
                timer.cancel()
        self.timer = self.ticker = None


DISK_TEXTS: Final = {
    PLENTY: "there is disk space again",
    LOW: (
        f"less than {limits.DISK_RESERVE_BYTES // limits.MIB} MB of disk space left: nothing that clients want to add "
        "is taken until there is more"
    ),
    FULL: (
        f"less than {limits.DISK_FULL_BYTES // limits.MIB} MB of disk space left: messages are received and deleted, "
        "and nothing else is written until there is more"
    ),
}
