"""How a pairing is set up: the options, with the parameters, order and defaults that are promised (contract A3, A4)."""

import datetime
import random
from typing import Final, Literal, Protocol

from spillway.paired.failures import FailoverPolicy
from spillway.paired.manager import NamespaceManager
from spillway.paired.namespace import FactoryNamespace
from spillway.paired.parameters import choice, count, duration, entity_path, flag, instance

BACKLOG_QUEUES: Final = 10
BACKLOG_QUEUES_MAX: Final = 1_000
ZERO: Final = datetime.timedelta(0)
INTERVAL: Final = datetime.timedelta(minutes=1)
INTERVAL_MAX: Final = datetime.timedelta(minutes=60)
PING_INTERVAL: Final = datetime.timedelta(minutes=1)
PING_INTERVAL_MIN: Final = datetime.timedelta(seconds=1)
PING_INTERVAL_MAX: Final = datetime.timedelta(minutes=30)
COOL_DOWN: Final = datetime.timedelta(minutes=1)
LONG_POLL: Final = datetime.timedelta(minutes=15)  # contract F9
LONG_POLL_MIN: Final = datetime.timedelta(seconds=1)


class PairingState(Protocol):
    """What options know of the pairing that was made of them."""

    is_closed: bool

    @property
    def backlog_queue_count(self) -> int: ...

    def mark_path_healthy(self, path: str) -> None: ...


class PairedNamespaceOptions:
    """The base of all kinds of pairing. There is one: `SendAvailabilityPairedNamespaceOptions`."""


class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Sends survive an outage of the primary: they go to backlog queues of a secondary namespace.

    `secondary_namespace_manager` makes the backlog queues, `messaging_factory` sends to them (and receives from them,
    if `enable_syphon`); both are of the secondary. Pairing changes nothing in options: those of a try that failed, or
    of a factory that was closed, can be used again.
    """

    def __init__(
        self,
        secondary_namespace_manager: NamespaceManager,
        messaging_factory: FactoryNamespace,
        backlog_queue_count: int = BACKLOG_QUEUES,
        failover_interval: datetime.timedelta = INTERVAL,
        enable_syphon: bool = False,
        *,
        ping_primary_interval: datetime.timedelta = PING_INTERVAL,
        pending: Literal["raise", "hold"] = "raise",
        ttl: Literal["restart", "remaining"] = "restart",
        policy: FailoverPolicy | None = None,
        backlog_cool_down: datetime.timedelta = COOL_DOWN,
        syphon_long_poll: datetime.timedelta = LONG_POLL,
        chance: random.Random | None = None,
    ) -> None:
        self.secondary_namespace_manager: Final = instance(
            "secondary_namespace_manager",
            secondary_namespace_manager,
            NamespaceManager,
            "a NamespaceManager of the secondary namespace",
        )
        self.messaging_factory: Final = instance(
            "messaging_factory", messaging_factory, FactoryNamespace, "a MessagingFactory of the secondary namespace"
        )
        self.asked_queue_count: Final = count("backlog_queue_count", backlog_queue_count, 1, BACKLOG_QUEUES_MAX)
        self.failover_interval: Final = duration("failover_interval", failover_interval, ZERO, INTERVAL_MAX)
        self.enable_syphon: Final = flag("enable_syphon", enable_syphon)
        self.pending: Final[str] = choice("pending", pending, ("raise", "hold"))
        self.ttl: Final[Literal["restart", "remaining"]] = choice("ttl", ttl, ("restart", "remaining"))
        self.policy: Final = FailoverPolicy() if policy is None else _policy(policy)
        self.backlog_cool_down: Final = duration("backlog_cool_down", backlog_cool_down, ZERO, INTERVAL_MAX)
        self.syphon_long_poll: Final = duration("syphon_long_poll", syphon_long_poll, LONG_POLL_MIN, LONG_POLL)
        self.chance: Final = random.Random() if chance is None else _chance(chance)
        self.ping_primary_interval = ping_primary_interval
        self.pairing: PairingState | None = None  # the last that was made of them
        self.is_being_paired = False

    def __setattr__(self, name: str, value: object) -> None:
        """Only what may be set later is taken later: whatever is read once would be set in vain."""
        if name in self.__dict__ and name not in _SETTABLE:
            raise AttributeError(f"{name} cannot be set any more: make new options")
        super().__setattr__(name, value)

    @property
    def backlog_queue_count(self) -> int:
        """How many backlog queues there are (contract A18); before anything is paired, how many are asked for."""
        return self.asked_queue_count if self.pairing is None else self.pairing.backlog_queue_count

    @property
    def ping_primary_interval(self) -> datetime.timedelta:
        """How often an entity that is away is pinged. Taken over from the next ping on."""
        return self._ping_primary_interval

    @ping_primary_interval.setter
    def ping_primary_interval(self, value: datetime.timedelta) -> None:
        self._ping_primary_interval = duration("ping_primary_interval", value, PING_INTERVAL_MIN, PING_INTERVAL_MAX)

    @property
    def is_in_use(self) -> bool:
        """Whether a factory is paired with them, or being paired, that has not been closed."""
        return self.is_being_paired or (self.pairing is not None and not self.pairing.is_closed)

    def mark_path_healthy(self, path: str) -> None:
        """Send to this entity of the primary again, whatever the last failures said."""
        checked = entity_path("path", path)
        if self.pairing is None:
            raise ValueError(f"path: '{checked}' cannot be marked healthy before the namespaces are paired")
        self.pairing.mark_path_healthy(checked)


_SETTABLE: Final = frozenset({"pairing", "is_being_paired", "_ping_primary_interval"})


def _policy(policy: object) -> FailoverPolicy:
    return instance("policy", policy, FailoverPolicy, "a FailoverPolicy or None")


def _chance(chance: object) -> random.Random:
    return instance("chance", chance, random.Random, "a random.Random or None")
