"""How a pairing is set up: the documents' class, with its parameters, order and defaults."""

import datetime
import random
from typing import TYPE_CHECKING, Final, Literal

from spillway.paired.policy import FailoverPolicy

if TYPE_CHECKING:
    from spillway.paired.factory import MessagingFactory
    from spillway.paired.manager import NamespaceManager
    from spillway.paired.pairing import Pairing

BACKLOG_QUEUES: Final = 10
BACKLOG_QUEUES_MAX: Final = 1_000
INTERVAL: Final = datetime.timedelta(minutes=1)
INTERVAL_MAX: Final = datetime.timedelta(minutes=60)
PING_INTERVAL: Final = datetime.timedelta(minutes=1)
PING_INTERVAL_MIN: Final = datetime.timedelta(seconds=1)
PING_INTERVAL_MAX: Final = datetime.timedelta(minutes=30)
COOL_DOWN: Final = datetime.timedelta(minutes=1)
LONG_POLL: Final = datetime.timedelta(minutes=15)  # contract F9
LONG_POLL_MIN: Final = datetime.timedelta(seconds=1)


class PairedNamespaceOptions:
    """The base of all kinds of pairing. There is one: `SendAvailabilityPairedNamespaceOptions`."""


class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Sends survive an outage of the primary: they go to backlog queues of a secondary namespace.

    `secondary_namespace_manager` makes the backlog queues, `messaging_factory` sends to them (and receives from them,
    if `enable_syphon`); both are of the secondary. `backlog_queue_count` is, after pairing, how many there are.
    """

    def __init__(
        self,
        secondary_namespace_manager: "NamespaceManager",
        messaging_factory: "MessagingFactory",
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
        from spillway.paired.factory import MessagingFactory
        from spillway.paired.manager import NamespaceManager

        if not isinstance(secondary_namespace_manager, NamespaceManager):
            raise TypeError("secondary_namespace_manager must be a NamespaceManager of the secondary namespace")
        if not isinstance(messaging_factory, MessagingFactory):
            raise TypeError("messaging_factory must be a MessagingFactory of the secondary namespace")
        if isinstance(backlog_queue_count, bool) or not isinstance(backlog_queue_count, int):
            raise TypeError("backlog_queue_count must be an int")
        if not 1 <= backlog_queue_count <= BACKLOG_QUEUES_MAX:
            raise ValueError(f"backlog_queue_count must be 1 to {BACKLOG_QUEUES_MAX}, not {backlog_queue_count}")
        _check("failover_interval", failover_interval, datetime.timedelta(0), INTERVAL_MAX)
        _check("syphon_long_poll", syphon_long_poll, LONG_POLL_MIN, LONG_POLL)
        _check("backlog_cool_down", backlog_cool_down, datetime.timedelta(0), INTERVAL_MAX)
        if pending not in ("raise", "hold"):
            raise ValueError(f"pending must be 'raise' or 'hold', not {pending!r}")
        if ttl not in ("restart", "remaining"):
            raise ValueError(f"ttl must be 'restart' or 'remaining', not {ttl!r}")
        self.secondary_namespace_manager = secondary_namespace_manager
        self.messaging_factory = messaging_factory
        self.backlog_queue_count = backlog_queue_count
        self.failover_interval = failover_interval
        self.enable_syphon = bool(enable_syphon)
        self.pending = pending
        self.ttl = ttl
        self.policy = policy or FailoverPolicy()
        self.backlog_cool_down = backlog_cool_down
        self.syphon_long_poll = syphon_long_poll
        self.chance = chance or random.Random()
        self.pairing: Pairing | None = None  # once paired
        self.missed_backlog_paths: list[str] = []  # neither found nor made while pairing: others may use them
        self._ping_primary_interval = PING_INTERVAL
        self.ping_primary_interval = ping_primary_interval

    @property
    def ping_primary_interval(self) -> datetime.timedelta:
        """How often an entity that is away is pinged. Taken over from the next ping on."""
        return self._ping_primary_interval

    @ping_primary_interval.setter
    def ping_primary_interval(self, value: datetime.timedelta) -> None:
        _check("ping_primary_interval", value, PING_INTERVAL_MIN, PING_INTERVAL_MAX)
        self._ping_primary_interval = value

    def mark_path_healthy(self, path: str) -> None:
        """Send to this entity of the primary again, whatever the last failures said."""
        if self.pairing is None:
            raise ValueError(f"path: '{path}' cannot be marked healthy before the namespaces are paired")
        self.pairing.mark_path_healthy(path)


def _check(name: str, value: datetime.timedelta, least: datetime.timedelta, most: datetime.timedelta) -> None:
    if not isinstance(value, datetime.timedelta):
        raise TypeError(f"{name} must be a timedelta")
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {value}")
