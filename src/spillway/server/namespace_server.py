"""One namespace being served: its journal, its core, its pump and its port, put together and taken apart in order."""

import asyncio
import json
import logging
import os
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from spillway.broker.commands import AddRule, CreateEntity, RemoveRule, Request, UpdateEntity
from spillway.broker.describing import describe, kind_of
from spillway.broker.effects import Failed
from spillway.broker.entity import Entity
from spillway.broker.namespace import Namespace
from spillway.broker.topic import Subscription
from spillway.dialect.peer import Peer, PeerOptions
from spillway.dialect.properties import EncodedAccess
from spillway.dialect.rights import AccessRule, Rights
from spillway.model import limits
from spillway.model.access import NAMESPACE_SCOPE, access_changes
from spillway.model.budget import Account, Budget, connection_bytes_max, namespace_budget, process_budget
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, settings_from_json
from spillway.model.errors import ArgumentError, EntityAlreadyExists, NotAllowed
from spillway.model.quotas import Quotas
from spillway.model.rules import Rule
from spillway.server.audit import AuditLog, ClientAudit
from spillway.server.clock import BrokerClock, Clock, MovableClock, Timer
from spillway.server.connection import ClientConnection
from spillway.server.listener import Acceptor, Http, Listener, bind
from spillway.server.numbers import Numbers, Tracking
from spillway.server.preauth import PreauthLimiter
from spillway.server.pump import Pump
from spillway.server.throttling import ThrottleWatch
from spillway.store.journal import Journal

log = logging.getLogger(__name__)

FINISH_S: Final = 10.0  # for what was taken from the sockets to become durable
COUNTED_MAX: Final = 1_000  # entities whose counts one answer has
REST_S: Final = 30.0  # for what is due after the clock was moved
GOODBYE_S: Final = 2.0  # for clients to read our close and answer it
RELIEVED_BYTES_MIN: Final = 1 * limits.MIB  # for whom less is held is not what has filled the memory
REVIEW_EVERY_MS: Final = 200  # grants are looked at again when rules change: at once, but not for each of a thousand
FIXED_CLOCK_TEXT: Final = (
    "The clock of this namespace cannot be moved: start the broker with --movable-clock, or with --dev."
)


@dataclass(frozen=True)
class ServerOptions:
    """Read once at the edge, handed down."""

    name: str
    host: str = "localhost"
    port: int = 5672
    also_ports: tuple[int, ...] = ()
    is_clear_text_allowed: bool = False  # from other machines
    quotas: Quotas = field(default_factory=Quotas)
    delivers_early: bool = True  # to a waiting receiver, before the send is on the disk


class NamespaceServer:
    """`on_fatal` is called when nothing can be promised any more; it does not return to serving."""

    def __init__(
        self,
        options: ServerOptions,
        journal: Journal,
        rights: Rights,
        tls: ssl.SSLContext | None,
        on_fatal: Callable[[BaseException], None],
        http: Http | None = None,
        make_clock: Callable[[int], Clock] = BrokerClock,
        budget: Budget | None = None,
    ) -> None:
        """Reads what is remembered. Raises what the journal raises if that cannot be trusted."""
        self.options = options
        self.journal = journal
        self.rights = rights
        self.loop = asyncio.get_running_loop()
        self.numbers = Numbers()
        self.tracking = Tracking(options.name)
        catalogue = journal.recover()
        self.clock = make_clock(catalogue.clock_ms)
        self.created_ms = catalogue.created_ms or self.clock.now_ms()
        quotas = options.quotas
        self.budget = budget or namespace_budget(process_budget(quotas), 1)
        self.core = Namespace(options.name, catalogue, os.urandom(8), EncodedAccess(), quotas)
        for scope, rules in self.core.directory.access_rules().items():
            rights.book.put(scope, rules)
        self.audit = AuditLog(options.name, rights.book, self.clock)
        self.pump = Pump(options.name, self.core, journal, self.clock, self.numbers, self.loop, on_fatal)
        self.pump.on_access_changed = rights.book.put
        self.pump.pending_bytes_pause = quotas.pending_bytes_pause()
        self.pump.frames_per_second = quotas.frames_per_second
        self.pump.delivers_early = options.delivers_early
        self.preauth = PreauthLimiter(quotas.connections_without_token)
        self.acceptor = Acceptor(
            self.pump, self.preauth, self.make_peer, tls, http, options.is_clear_text_allowed, quotas.connections
        )
        self.acceptor.connects_per_second = quotas.connects_per_second
        self.listeners: list[Listener] = []
        self.reviewed_revision = rights.book.revision
        self.reviewed_ms = 0
        self.review_timer: Timer | None = None
        self.watch = ThrottleWatch(options.name, self.core.throttle, self.pump.tell, relieve=self.relieve)
        self._refresh_wall(0)
        self.pump.on_tick += [self._refresh_wall, self._sweep_pending, self._weigh, self.watch.poll]
        self.pump.on_turn.append(self.check_rules)

    def make_peer(self, is_plain_allowed: bool, where: str = "") -> Peer:
        account = Account(self.budget, connection_bytes_max(self.budget))
        options = PeerOptions(self.options.name, self.options.quotas, ClientAudit(self.audit, where), account)
        return Peer(
            options, self.core, self.rights, self.numbers, self.tracking, is_plain_allowed, self.clock.real_ms()
        )

    def _refresh_wall(self, now_ms: int) -> None:
        """Tokens end by the machine's clock, also when somebody has set it."""
        self.rights.wall_ahead_ms = self.clock.wall_ms() - self.clock.real_ms()

    def _sweep_pending(self, now_ms: int) -> None:
        self.preauth.sweep(self.clock.real_ms())
        self.acceptor.sweep(self.clock.real_ms())

    def _weigh(self, now_ms: int) -> None:
        for connection in self.pump.connections:
            if isinstance(connection, ClientConnection):
                connection.weigh()

    def relieve(self, excess_bytes: int) -> None:
        """The process is near its limit: if it is clients for which it holds much, the largest go until it is half."""
        budget = self.budget
        budget.make_room(max(budget.bytes_max // 2, budget.bytes_used - excess_bytes), None, RELIEVED_BYTES_MIN)

    @property
    def port(self) -> int:
        return self.listeners[0].port

    @property
    def entity_names(self) -> list[str]:
        """Queues and topics as they were written when they were made."""
        entities = self.core.directory.by_id.values()
        return sorted(entity.path for entity in entities if kind_of(entity) in (QUEUE, TOPIC))

    def facts(self) -> dict[str, object]:
        """What an operator is shown of it, in numbers that are kept anyway."""
        kinds = Counter(kind_of(entity) for entity in self.core.directory.by_id.values())
        return {
            "queues": kinds[QUEUE],
            "topics": kinds[TOPIC],
            "subscriptions": kinds[SUBSCRIPTION],
            "messages": sum(entity.counters.total for entity in self.core.directory.by_id.values()),
            "connections": len(self.pump.connections),
            "is_disk_nearly_full": self.core.throttle.disk.is_low,
            "is_disk_full": self.core.throttle.disk.is_full,
            "refused_connections": self.acceptor.refused_count,
            "held_bytes": self.budget.bytes_used,
            "ended_for_memory": self.budget.ended_count,
            "refused_as_busy": dict(self.core.throttle.refused),
            "rows_set_apart": self.journal.set_apart_count,
            "incidents": self.core.incidents.count,
            "set_apart": [
                {"path": apart.path, "since_ms": apart.since_ms, "reason": apart.reason}
                for apart in self.core.incidents.families()
            ],
        }

    def counts(self) -> dict[str, object]:
        """What its entities hold, the first of them by name."""
        found = [
            entity for entity in self.core.directory.by_id.values() if kind_of(entity) in (QUEUE, TOPIC, SUBSCRIPTION)
        ]
        found.sort(key=lambda entity: entity.path.lower())
        shown = [describe(entity) for entity in found[:COUNTED_MAX]]
        entities = [
            {
                "path": each.path,
                "kind": each.kind,
                "active": each.counters.active,
                "scheduled": each.counters.scheduled,
                "deferred": each.counters.deferred,
                "dead_letters": each.dead_letter_count,
            }
            for each in shown
        ]
        return {"entities": entities, "left_out": len(found) - len(shown)}

    # -- shared access rules ----------------------------------------------------------------------------------------

    def set_rules(self, rules: list[AccessRule], who: str) -> None:
        """The namespace itself has these rules from now on. `who` is the rule, or whatever else, that wanted it so."""
        for change in access_changes(self.rights.book.of(NAMESPACE_SCOPE), rules):
            self.audit.done("", "access rules", who, "", change)
        self.rights.book.put(NAMESPACE_SCOPE, rules)
        self.pump.wake()

    def check_rules(self, now_ms: int) -> None:
        """After every turn: did somebody lose a right in it?"""
        if self.rights.book.revision == self.reviewed_revision or self.review_timer is not None:
            return
        if now_ms >= self.reviewed_ms + REVIEW_EVERY_MS:
            self.review()
        else:
            self.review_timer = self.clock.call_at(self.reviewed_ms + REVIEW_EVERY_MS, self.review)

    def review(self) -> None:
        self.review_timer = None
        self.reviewed_ms = self.clock.now_ms()
        self.reviewed_revision = self.rights.book.revision
        self.pump.review(self.clock.real_ms())

    def start(self) -> None:
        """Begin to decide and to remember; nobody can connect yet."""
        self.pump.start()

    def listen(self) -> None:
        """Let clients in. Raises OSError if a port is taken."""
        for port in (self.options.port, *self.options.also_ports):
            self.listeners.append(Listener(self.acceptor, bind(self.options.host, port), self.loop))
        for listener in self.listeners:
            listener.start()

    async def ensure_entity(self, kind: str, path: str, settings: EntitySettings | None) -> None:
        """An entity that is missing is made. One that is there keeps its messages, and is changed to what is given.

        Settings without rules say nothing about a subscription's rules: those it has stay.
        """
        found = self.core.directory.find(path)
        if found is None and self.core.exists(path):
            raise self.core.directory.not_found(path)  # out of service: nobody knows what it holds
        if found is None:
            wanted = EntitySettings() if settings is None else _copy_of(settings)
            requests: list[Callable[[int], Request]] = [lambda number: CreateEntity(number, kind, path, wanted)]
        elif kind_of(found) != kind:
            raise EntityAlreadyExists(f"'{found.path}' is a {kind_of(found)} already.")
        else:
            requests = [] if settings is None else self._changes(found, settings)
        if not requests:
            return
        for answer in await self.pump.ask_together(requests):
            if isinstance(answer, Failed):
                raise answer.error

    def _changes(self, found: Entity, settings: EntitySettings) -> list[Callable[[int], Request]]:
        """Rules change in one turn: no message is published between one that goes and the one that takes its place."""
        path = found.path
        requests: list[Callable[[int], Request]] = []
        wanted = _copy_of(settings)
        wanted.retain_unconfigured_of(found.settings)
        rules, wanted.rules = wanted.rules, []
        if found.settings.to_json_without_rules() != wanted.to_json_without_rules():
            requests.append(lambda number: UpdateEntity(number, path, wanted))
        if not isinstance(found, Subscription) or not rules:
            return requests
        asked = {_text_of(rule) for rule in rules}
        kept: set[str] = set()
        for rule in found.settings.rules:
            text = _text_of(rule)
            if text in asked and not rule.problem:
                kept.add(text)
            else:
                requests.append(partial(_remove_rule, path, rule.name))
        requests += [partial(_add_rule, path, rule) for rule in rules if _text_of(rule) not in kept]
        return requests

    @property
    def is_clock_movable(self) -> bool:
        return isinstance(self.clock, MovableClock)

    async def advance(self, by_ms: int) -> bool:
        """Let time pass at once. Returns when what is due by then has happened and is durable.

        False if that takes too long, which is so only while others keep the namespace busy. The time has passed then
        all the same.
        """
        clock = self.clock
        if not isinstance(clock, MovableClock):
            raise NotAllowed(FIXED_CLOCK_TEXT)
        if by_ms < 0 or clock.now_ms() + by_ms > limits.CLOCK_MS_MAX:
            raise ArgumentError("The clock is moved ahead only, and not beyond the year 2100.")
        clock.advance(by_ms)
        log.info("namespace=%s the clock was moved by %.3f s", self.options.name, by_ms / 1000)
        self.pump.pass_time()
        return await self.pump.until(self.pump.is_at_rest, REST_S)

    async def stop(self, goodbye_s: float = GOODBYE_S) -> None:
        """Accept nobody, finish what was begun, say goodbye, and only then let go of the store."""
        for listener in self.listeners:
            listener.stop()
        self.preauth.clear_silent()
        if not self.pump.is_over:
            await self.finish(goodbye_s)
        if self.review_timer is not None:
            self.review_timer.cancel()
        self.pump.stop()
        self.journal.close()

    @property
    def is_failed(self) -> bool:
        """The store of the namespace has failed: nothing of it is served any more."""
        return self.pump.is_failed

    def abandon(self) -> None:
        """After its store has failed: nobody is let in any more. Those that were in are cut off already."""
        for listener in self.listeners:
            listener.stop()
        self.listeners.clear()
        self.preauth.clear_silent()

    async def finish(self, goodbye_s: float) -> None:
        self.pump.set_held(True)
        if not await self.pump.until(self.pump.is_idle, FINISH_S):
            log.warning(
                "namespace=%s the disk is slow: clients are closed before everything is answered", self.options.name
            )
        await self.say_goodbye(goodbye_s)

    async def say_goodbye(self, goodbye_s: float = GOODBYE_S) -> None:
        """`amqp:connection:forced` to everyone; who does not answer in time is cut off."""
        for connection in list(self.pump.connections):
            connection.peer.close(None)
            self.pump.mark_dirty(connection)
        self.pump.set_held(False)
        await self.pump.until(self.pump.is_deserted, goodbye_s)
        for connection in list(self.pump.connections):
            connection.abort()
        await asyncio.sleep(0)


def _copy_of(settings: EntitySettings) -> EntitySettings:
    """The core keeps what it is given, and changes it."""
    return settings_from_json(settings.to_json())


def _text_of(rule: Rule) -> str:
    """All but when it was made."""
    return json.dumps({**rule.to_plain(), "created_ms": 0}, sort_keys=True)


def _remove_rule(path: str, name: str, number: int) -> Request:
    return RemoveRule(number, path, name)


def _add_rule(path: str, rule: Rule, number: int) -> Request:
    return AddRule(number, path, rule)
