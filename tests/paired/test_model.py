"""A stateful model of callers, primary, secondary and time: whatever happens, in whatever order, two sentences hold.

*What I was told is safe will be delivered*, and *one bad thing never takes the way around from everybody*. The senders,
pools, watches and rotation of the library run here on stepped time (`virtual.py`): promises about time are exact.
"""

import asyncio
import datetime
import os
import random
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus import ServiceBusMessage
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spillway.model.failures import CONDITIONS, OF_MESSAGE
from spillway.paired import BacklogUnavailableError, Event, NamespaceManager
from spillway.paired import SendAvailabilityPairedNamespaceOptions as Options
from spillway.paired.failover import Route
from spillway.paired.failures import failure_of
from spillway.paired.pairing import Pairing, PairingSlot
from spillway.paired.sender import MessageSender
from tests.paired.virtual import DOWN, FROZEN, UP, Peer, VirtualLoop, detached, namespace_of, refused

PRIMARY, SECONDARY = "primary", "secondary"
TIMEOUT_S = 20.0
LOOK_S = 1.0  # between two looks of a held call
HELD_WELL_S = 3 * LOOK_S
GRACE_S = 1.0  # after its time a call ends within so long
ENTITIES = ("orders", "invoices")
QUEUES = 3
STATES = (UP, DOWN, FROZEN)
OF_MESSAGES = sorted(name for name, (as_refusal, _) in CONDITIONS.items() if as_refusal == OF_MESSAGE)
OTHERS = sorted(set(CONDITIONS) - set(OF_MESSAGES))
SECONDS = st.sampled_from((0.02, 0.3, 1.0, 2.5, 8.0, 25.0, 61.0))
AFTERWARDS = st.sampled_from((0.0, 0.0, 1.5, 25.0))
SMALL, LARGE = "body", "x" * 100_000


@dataclass
class Call:
    """One call of a caller; `ids` are its messages'."""

    path: str
    ids: list[str]
    begin_s: float
    allowed_s: float
    task: "asyncio.Task[None]"
    is_home_well: bool  # the primary and the entity, at every moment so far
    is_away_well: bool  # the secondary and one of its queues
    was_failed_over: bool  # from before it began
    is_excused: bool = False  # busy or gone: waited for, or refused
    is_judged: bool = False
    away_since_s: float | None = None  # since when its entity is failed over, and the secondary well


@dataclass
class World:
    loop: VirtualLoop
    primary: Peer
    secondary: Peer
    slot: PairingSlot
    senders: dict[str, MessageSender]
    pairing: Pairing
    told: list[Any] = field(default_factory=list)


class Callers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.calls: list[Call] = []
        self.count = 0
        self.has_anything_happened = False
        self.blamed: list[str] = []
        self.denied: list[tuple[str, str]] = []  # messages whose callers were told that nothing was sent
        self.ill_s = {PRIMARY: 0.0, SECONDARY: 0.0}  # when each side was last ill, as somebody could notice

    @initialize(
        interval_s=st.sampled_from((0.0, 2.0)), pending=st.sampled_from(("raise", "hold")), seed=st.integers(0, 99)
    )
    def pair(self, interval_s: float, pending: Any, seed: int) -> None:
        self.interval_s = interval_s
        self.is_held = pending == "hold"

        async def make() -> World:
            primary, secondary = Peer(), Peer()
            home = namespace_of(primary, "primary.example.org", TIMEOUT_S)
            away = namespace_of(secondary, "secondary.example.org", TIMEOUT_S)
            manager = NamespaceManager.from_connection_string(
                "Endpoint=sb://secondary.example.org;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
            )
            options = Options(
                manager,
                away,
                QUEUES,
                datetime.timedelta(seconds=interval_s),
                ping_primary_interval=datetime.timedelta(seconds=1),
                pending=pending,
                chance=random.Random(seed),
            )
            slot = PairingSlot()
            pairing = Pairing(home, options, [f"primary/x-servicebus-transfer/{at}" for at in range(QUEUES)])
            slot.pairing = pairing
            senders = {path: MessageSender(home, slot, path) for path in ENTITIES}
            world = World(self.loop, primary, secondary, slot, senders, pairing)
            home.events.callbacks.append(self._on_event)
            await manager.close()
            return world

        self.world = self.loop.run_until_complete(make())
        self.home, self.away = self.world.pairing.primary, self.world.pairing.secondary

    # -- what happens ---------------------------------------------------------------------------------------------

    @rule(path=st.sampled_from(ENTITIES), count=st.sampled_from((1, 1, 6)), seconds=AFTERWARDS)
    def somebody_sends(self, path: str, count: int, seconds: float) -> None:
        for _ in range(count):
            self._send(path, [self._new_id()])
        self.time_passes(seconds)

    @rule(path=st.sampled_from(ENTITIES), count=st.integers(2, 4), seconds=AFTERWARDS)
    def somebody_sends_a_batch(self, path: str, count: int, seconds: float) -> None:
        """The primary takes all or nothing; in the backlog it may need several batches."""
        self._send(path, [self._new_id() for _ in range(count)], LARGE)
        self.time_passes(seconds)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.loop.run_until_complete(self._passing(seconds))

    @rule(state=st.sampled_from(STATES))
    def the_primary_is(self, state: str) -> None:
        self._look()  # as it was until now
        self.world.primary.become(state)
        self._something_happened()

    @rule(state=st.sampled_from(STATES))
    def the_secondary_is(self, state: str) -> None:
        self._look()
        self.world.secondary.become(state)
        self._something_happened()

    @rule(is_primary=st.booleans())
    def one_is_restarted(self, is_primary: bool) -> None:
        """In no time. Who waits for an answer has lost its connection; for all others it is no trouble at all."""
        (self.world.primary if is_primary else self.world.secondary).restart()
        self.has_anything_happened = True
        if any(not call.task.done() for call in self.calls):
            self.ill_s[PRIMARY if is_primary else SECONDARY] = self.loop.time()
            for call in self.calls:
                call.is_home_well = call.is_home_well and not is_primary
                call.is_away_well = call.is_away_well and is_primary

    @rule(path=st.sampled_from((*ENTITIES, "*")), condition=st.sampled_from(OTHERS), is_link=st.booleans())
    def the_primary_refuses(self, path: str, condition: str, is_link: bool) -> None:
        self.world.primary.says[path] = (detached if is_link else refused)(condition)
        self._something_happened()

    @rule(at=st.integers(0, QUEUES - 1), condition=st.sampled_from(OTHERS), is_link=st.booleans())
    def a_backlog_queue_refuses(self, at: int, condition: str, is_link: bool) -> None:
        path = self.world.pairing.rotation.queues[at].path
        self.world.secondary.says[path] = (detached if is_link else refused)(condition)
        self._something_happened()

    @rule(is_primary=st.booleans(), is_secondary=st.booleans())
    def all_is_well_again(self, is_primary: bool, is_secondary: bool) -> None:
        self._look()
        for peer, is_meant in ((self.world.primary, is_primary), (self.world.secondary, is_secondary)):
            if is_meant:
                peer.says.clear()
                peer.become(UP)

    @precondition(lambda self: not self.has_anything_happened)
    @rule(path=st.sampled_from(ENTITIES), condition=st.sampled_from(OF_MESSAGES))
    def a_message_that_nobody_takes(self, path: str, condition: str) -> None:
        """Its caller hears of it, and nobody else."""
        for peer in (self.world.primary, self.world.secondary):
            peer.says["*"] = refused(condition)
        call = self._send(path, [self._new_id()])
        self.calls.remove(call)
        self.loop.run_until_complete(self._passing(5.0))
        for peer in (self.world.primary, self.world.secondary):
            del peer.says["*"]
        error = call.task.exception()
        assert error is not None and failure_of(error).blame is OF_MESSAGE.blame, error
        assert not self.world.told, [event.name for event in self.world.told]

    # -- what holds -----------------------------------------------------------------------------------------------

    @invariant()
    def every_call_that_ended_was_told_the_truth(self) -> None:
        if not hasattr(self, "world"):
            return
        for call in self.calls:
            if call.task.done() and not call.is_judged:
                call.is_judged = True
                self._judge(call)
        self.calls = [call for call in self.calls if not call.is_judged]

    @invariant()
    def nothing_is_noticed_while_all_is_well(self) -> None:
        if hasattr(self, "world") and not self.has_anything_happened:
            assert not self.world.told, [event.name for event in self.world.told]

    @invariant()
    def nobody_is_blamed_for_nothing(self) -> None:
        assert not self.blamed, self.blamed

    def _on_event(self, event: Event) -> None:
        """Nobody is blamed for nothing: not for a bad message, and not for a connection that was dead before."""
        self.world.told.append(event)
        if event.name in ("suspected", "failed-over", "backlog-queue-removed"):
            side = SECONDARY if event.name == "backlog-queue-removed" else PRIMARY
            since_s = min((call.begin_s for call in self.calls if not call.task.done()), default=self.loop.time())
            if self.ill_s[side] < since_s - self.interval_s - GRACE_S:
                self.blamed.append(f"{event.name} of {event.path} for nothing: {event.error!r}")

    def _judge(self, call: Call) -> None:
        error = call.task.exception()
        stored = [self._is_stored(each, call.path) for each in call.ids]
        took_s = self._ended_s(call) - call.begin_s
        assert took_s <= call.allowed_s + GRACE_S, (took_s, error)
        if error is None:
            assert all(stored), "told safe, and nowhere"
            return
        if isinstance(error, BacklogUnavailableError) and not error.is_outcome_unknown:
            self.denied += [(each, call.path) for each in call.ids]
            assert not any(stored), "told that nothing was sent"
        if call.is_excused:
            return
        assert not call.is_home_well or call.was_failed_over, f"its entity was well all the time: {error!r}"
        if self.interval_s == 0 or self.is_held or call.was_failed_over:
            assert not call.is_away_well, f"the secondary was well all the time: {error!r}"
        if self.is_held and isinstance(error, BacklogUnavailableError):
            assert took_s >= call.allowed_s - LOOK_S - GRACE_S, f"it was held, and gave up after {took_s:.1f} s"
        if self.is_held and call.away_since_s is not None:
            well_s = call.begin_s + took_s - call.away_since_s
            assert well_s < HELD_WELL_S, f"it was held, and the secondary well for its last {well_s:.1f} s: {error!r}"

    def teardown(self) -> None:
        """Whoever still waits is answered in its time. Closing takes five seconds at the most, and leaves nothing."""
        if not hasattr(self, "world"):
            self.loop.close()
            return
        self.loop.run_until_complete(self._closing())
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    async def _closing(self) -> None:
        await asyncio.sleep(
            max((call.begin_s + call.allowed_s for call in self.calls), default=0.0) - self.loop.time() + 2
        )
        self._look()
        self.every_call_that_ended_was_told_the_truth()
        assert not self.calls, "a call outlives its time"
        self.all_is_well_again(True, True)
        await asyncio.sleep(GRACE_S)  # what a peer that was frozen had taken in
        assert not [each for each in self.denied if self._is_stored(*each)], "told that nothing was sent"
        begun_s = self.loop.time()
        self.world.pairing.stop()
        await asyncio.gather(self.world.pairing.close(), self.home.close(), self.away.close())
        assert self.loop.time() - begun_s <= 5.0
        assert self.world.primary.open_count == 0 and self.world.secondary.open_count == 0, "connections are left"

    # -- small things ---------------------------------------------------------------------------------------------

    def _new_id(self) -> str:
        self.count += 1
        return f"m{self.count}"

    def _send(self, path: str, ids: list[str], body: str = SMALL) -> Call:
        messages = [ServiceBusMessage(body, message_id=each) for each in ids]
        watch = self.world.pairing.watch(path) if self.world.pairing.watches.get(path) else None
        is_away = watch is not None and watch.machine.route() is not Route.PRIMARY

        async def sending() -> None:
            try:
                await self.world.senders[path].send_messages(messages if len(messages) > 1 else messages[0])
            finally:
                ended[id(asyncio.current_task())] = self.loop.time()

        ended = self.__dict__.setdefault("ended", {})
        call = Call(
            path,
            ids,
            self.loop.time(),
            TIMEOUT_S + (self.interval_s if self.is_held else 0.0),
            self.loop.create_task(sending()),
            self._is_home_well(path),
            self._is_away_well(),
            is_away,
        )
        self.calls.append(call)
        self._look()
        return call

    def _ended_s(self, call: Call) -> float:
        return float(self.__dict__["ended"].pop(id(call.task)))

    async def _passing(self, seconds: float) -> None:
        """In small steps, for whoever fails over or comes back in between."""
        until_s = self.loop.time() + seconds
        while self.loop.time() < until_s:
            await asyncio.sleep(min(0.25, until_s - self.loop.time()))
            self._look()

    def _something_happened(self) -> None:
        self.has_anything_happened = True
        self._look()

    def _look(self) -> None:
        if self.world.primary.state != UP or self.world.primary.says:
            self.ill_s[PRIMARY] = self.loop.time()
        if self.world.secondary.state != UP or self.world.secondary.says:
            self.ill_s[SECONDARY] = self.loop.time()
        for call in self.calls:
            if call.task.done():
                continue
            call.is_home_well = call.is_home_well and self._is_home_well(call.path)
            call.is_away_well = call.is_away_well and self._is_away_well()
            watch = self.world.pairing.watches.get(call.path)
            if watch is None or watch.machine.route() is Route.PRIMARY:
                call.was_failed_over = False
            if watch is None or watch.machine.route() is not Route.BACKLOG or not self._is_away_well():
                call.away_since_s = None
            elif call.away_since_s is None:
                call.away_since_s = self.loop.time()
            is_gone = watch is not None and watch.machine.route() is Route.NOWHERE  # until the next ping
            call.is_excused = call.is_excused or is_gone or self._is_excused(call.path)

    def _is_home_well(self, path: str) -> bool:
        primary = self.world.primary
        return primary.state == UP and not {path, "*"} & set(primary.says)

    def _is_away_well(self) -> bool:
        return self.world.secondary.state == UP and not self.world.secondary.says

    def _is_excused(self, path: str) -> bool:
        """Busy is waited for, ten seconds, which may be more than a call has; who is gone or forbidden is refused, and
        so is what is its caller's by the word of the primary."""
        says = [self.world.primary.says.get(name) for name in (path, "*")]
        failures = [failure_of(error) for error in says if error is not None]
        if any(failure_of(error).is_busy for error in self.world.secondary.says.values()):
            return True
        return any(each.is_busy or each.is_lasting or not each.counts_against_entity for each in failures)

    def _is_stored(self, identity: str, path: str) -> bool:
        return identity in self.world.primary.stored[path] or self.world.secondary.has(identity)


TestCallers = Callers.TestCase
# MODEL_EXAMPLES=5000 pytest tests/paired/test_model.py looks for more, at random.
TestCallers.settings = settings(
    max_examples=int(os.environ.get("MODEL_EXAMPLES", "150")),
    derandomize="MODEL_EXAMPLES" not in os.environ,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
