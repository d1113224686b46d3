"""A whole namespace on a thread of this process: real sockets, real peers, real core, a clock that can be moved.

Being in the same process, a test can make a queue with settings of its own, plant a fault, let time pass without
waiting for it, and see the frames that were spoken. The SDKs notice none of it: they come through the port.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from spillway.broker.commands import (
    CreateEntity,
    DeleteEntity,
    InjectFault,
    ListFaults,
    RemoveFaults,
    UpdateEntity,
)
from spillway.broker.effects import FaultsListed
from spillway.broker.queue import Queue
from spillway.model.entity import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    EntitySettings,
    entity_key,
    settings_from_json,
    subscription_path,
)
from spillway.model.errors import BrokerError
from spillway.model.faults import REFUSE, Fault, FaultReport
from spillway.model.quotas import Quotas
from spillway.model.rules import Rule
from spillway.pytest_plugin.hosting import HostedNamespace
from spillway.server.clock import Clock, MovableClock
from spillway.server.namespace_server import GOODBYE_S
from spillway.server.pump import PumpedPeer
from spillway.server.tls import ensure_certificates
from spillway.store.journal import Journal
from tests.wire.tap import Tap, TappedPeer

NAMESPACE = "wire"
LOOK_AGAIN_S = 0.005
LOOK_S = 15.0
T = TypeVar("T")


class LiveBroker(HostedNamespace):
    """One namespace. Everything but `connection_string` happens on its own thread, on behalf of the caller."""

    def __init__(
        self,
        directory: Path,
        journal: Journal | None = None,
        make_clock: Callable[[int], Clock] = MovableClock,
        quotas: Quotas | None = None,
    ) -> None:
        self.quotas = quotas or Quotas()
        super().__init__(NAMESPACE, ensure_certificates(directory, "localhost"), journal, make_clock, self.quotas)
        self.directory = directory
        self._names = itertools.count(1)
        self._taps: list[Tap] = []
        self.start()
        self.server.acceptor.make_peer = self._make_peer

    def _make_peer(self, is_plain_allowed: bool, where: str) -> PumpedPeer:
        peer = self.server.make_peer(is_plain_allowed, where)
        if not self._taps:
            return peer
        return cast(PumpedPeer, TappedPeer(peer, self._taps[-1]))

    def close(self, goodbye_s: float = GOODBYE_S) -> None:
        super().close(goodbye_s)
        assert self.failures == []

    # -- what a test does to it ------------------------------------------------------------------------------------

    def queue(
        self,
        *,
        lock_s: float = 60,
        max_delivery_count: int = 10,
        default_ttl_s: float = 0,
        dead_letter_on_expiry: bool = False,
        max_size_mb: int = 1024,
        requires_session: bool = False,
        duplicate_window_s: float = 0,
        is_partitioned: bool = False,
    ) -> str:
        """A queue that no other test uses."""
        settings = EntitySettings()
        settings.lock_duration_ms = int(lock_s * 1000)
        settings.max_delivery_count = max_delivery_count
        settings.default_ttl_ms = int(default_ttl_s * 1000)
        settings.dead_letter_on_expiry = dead_letter_on_expiry
        settings.max_size_mb = max_size_mb
        settings.requires_session = requires_session
        settings.is_partitioned = is_partitioned
        detect_duplicates(settings, duplicate_window_s)
        name = f"q{next(self._names)}"
        self.ask(lambda number: CreateEntity(number, QUEUE, name, settings))
        return name

    def topic(self, *, default_ttl_s: float = 0, duplicate_window_s: float = 0) -> str:
        """A topic that no other test uses."""
        settings = EntitySettings()
        settings.default_ttl_ms = int(default_ttl_s * 1000)
        detect_duplicates(settings, duplicate_window_s)
        name = f"t{next(self._names)}"
        self.ask(lambda number: CreateEntity(number, TOPIC, name, settings))
        return name

    def subscription(
        self, topic: str, name: str, *rules: Rule, max_delivery_count: int = 10, requires_session: bool = False
    ) -> str:
        """With these rules, or the one that wants everything; its path."""
        settings = EntitySettings()
        settings.max_delivery_count = max_delivery_count
        settings.requires_session = requires_session
        settings.rules = list(rules)
        path = subscription_path(topic, name)
        self.ask(lambda number: CreateEntity(number, SUBSCRIPTION, path, settings))
        return path

    def change(self, path: str, **settings: Any) -> None:
        """These settings of an entity get new values, as by an administrator."""

        async def changed() -> EntitySettings:
            entity = self.server.core.directory.find(path)
            assert entity is not None
            twin = settings_from_json(entity.settings.to_json())
            for name, value in settings.items():
                assert hasattr(twin, name), name
                setattr(twin, name, value)
            return twin

        wanted = self.run(changed())
        self.ask(lambda number: UpdateEntity(number, path, wanted))

    def delete(self, queue: str) -> None:
        self.ask(lambda number: DeleteEntity(number, queue))

    def plant(self, queue: str, operation: str, error: BrokerError | None) -> None:
        """From now on `operation` is refused with `error`; None takes the fault away."""
        for report in self.faults_planted():
            if report.fault.path == queue and report.fault.operations == (operation,):
                self.remove_faults(report.number)
        if error is not None:
            self.fault(REFUSE, queue, [operation], error.condition, error.description)

    def fault(self, *what: Any, **options: Any) -> int:
        """Plant a fault, in the words of `Fault`; its number."""
        fault = Fault(*what, **options)
        answer = self.ask(lambda number: InjectFault(number, fault))
        assert isinstance(answer, FaultsListed)
        return answer.reports[0].number

    def remove_faults(self, fault_number: int = 0) -> None:
        """That one, or all."""
        self.ask(lambda number: RemoveFaults(number, fault_number))

    def faults_planted(self) -> list[FaultReport]:
        answer = self.ask(lambda number: ListFaults(number, ""))
        assert isinstance(answer, FaultsListed)
        return answer.reports

    def advance(self, seconds: float) -> None:
        """Let time pass at once, and what is due by then happen."""
        self.advance_ms(int(seconds * 1000))

    @contextlib.contextmanager
    def tap(self) -> Iterator[Tap]:
        """Listen in on the connections that are made meanwhile."""
        tap = Tap()
        self._taps.append(tap)
        try:
            yield tap
        finally:
            self._taps.remove(tap)

    def until_detached(self, queue: str) -> None:
        """Every link that the broker has ended is known to its client to be ended."""

        def are_ended() -> bool:
            for connection in self.server.pump.connections:
                for session in cast(Any, connection.peer).connection.sessions.values():
                    for link in session.links.values():
                        if queue in link.name and link.is_detached:
                            return False
            return True

        self.wait(are_ended)

    def bodies(self, queue: str) -> list[str]:
        return [message.body.decode() for message in self.peek(queue)]

    # -- what a test looks at --------------------------------------------------------------------------------------

    def see(self, queue: str, look: Callable[[Queue], T]) -> T:
        """Ask the core itself, between two of its turns."""

        async def looked() -> T:
            return look(self.server.core.directory.queues[entity_key(queue)])

        return self.run(looked())

    def until(self, queue: str, condition: Callable[[Queue], bool]) -> None:
        found = self.see(queue, lambda found: found)
        self.wait(lambda: condition(found))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Sockets take real time: look again until it is so."""

        async def came_to_be() -> bool:
            for _ in range(int(LOOK_S / LOOK_AGAIN_S)):
                if condition():
                    return True
                await asyncio.sleep(LOOK_AGAIN_S)
            return False

        assert self.run(came_to_be()), "it never came to be"

    def active_count(self, queue: str) -> int:
        """Active messages, locked ones included."""
        return self.see(queue, lambda found: found.counters.active)

    def locked_count(self, queue: str) -> int:
        return self.see(queue, lambda found: len(found.lane.locks.by_token))


def detect_duplicates(settings: EntitySettings, window_s: float) -> None:
    """Not at all if there is no window."""
    if window_s > 0:
        settings.requires_duplicate_detection = True
        settings.duplicate_window_ms = int(window_s * 1000)
