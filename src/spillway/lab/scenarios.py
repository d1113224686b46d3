"""The scenarios of the lab: what goes wrong, and how it is mended again. One class each.

A fault begins when a fifth of the messages are safe, and lasts until half are and a good third of all has found
another way.
"""

import abc
import time
from typing import Any, ClassVar, Final, Literal, Protocol

from spillway.client.faults import Fault, RemoteFaults
from spillway.lab.firewall import PortBlackhole as Rules
from spillway.lab.guard import Guard
from spillway.lab.histories import BEGINS, MENDED, Tail
from spillway.lab.processes import LabBroker, LabError

# A primary that does not answer takes 0.6 of a call's time. The rest must do to connect to the secondary for the first
# time, on a machine on which everybody is busy.
SILENT_TIMEOUT_S: Final = 15.0
DIVERTED_SHARE: Final = 0.3  # of all messages, that must at least have been diverted


class Ground(Protocol):
    """Where a scenario plays: what it may do something to."""

    primary: LabBroker
    secondary: LabBroker
    guard: Guard
    tail: Tail
    path: str  # of the queue that is sent to

    @property
    def messages(self) -> int:
        """How many are sent in all."""

    @property
    def backlog_paths(self) -> list[str]: ...

    def fault(self, what: str) -> None:
        """A fault begins, or is mended, in the midst of a scenario."""

    def note(self, text: str) -> None:
        """Say something to people, in the report too."""


class Scenario(abc.ABC):
    """`begin` and `end` do and undo it; `watch` is called all the while, for what happens in between."""

    name: ClassVar[str] = ""
    about: ClassVar[str] = ""
    pending: ClassVar[Literal["raise", "hold"]] = "hold"  # held callers are to hear no error at all
    interval_s: ClassVar[float] = 1.0
    diverts: ClassVar[bool] = True  # else nothing must be
    lasts_s: ClassVar[float] = 0.0  # if it does not divert
    operation_timeout_s: ClassVar[float] = 10.0

    @abc.abstractmethod
    def begin(self, lab: Ground) -> None: ...

    def watch(self, lab: Ground) -> None:
        """While it lasts; most have nothing to do then."""
        return

    def is_complete(self) -> bool:
        """Whether all of it has happened."""
        return True

    @abc.abstractmethod
    def end(self, lab: Ground) -> None: ...


class Kill(Scenario):
    name = "kill"
    about = "the primary is killed with kill -9, and started again later"

    def begin(self, lab: Ground) -> None:
        lab.primary.kill()

    def end(self, lab: Ground) -> None:
        lab.primary.start()


class Freeze(Scenario):
    name = "freeze"
    about = "the primary stops answering, its connections stay open"
    operation_timeout_s = SILENT_TIMEOUT_S

    def begin(self, lab: Ground) -> None:
        lab.primary.freeze()

    def end(self, lab: Ground) -> None:
        lab.primary.thaw()


class Refuse(Scenario):
    name = "refuse"
    about = "the primary is shut down in order: connections are refused"

    def begin(self, lab: Ground) -> None:
        lab.primary.stop()

    def end(self, lab: Ground) -> None:
        lab.primary.start()


class Blackhole(Scenario):
    name = "blackhole"
    about = "packets to and from the primary vanish"
    operation_timeout_s = SILENT_TIMEOUT_S

    def begin(self, lab: Ground) -> None:
        self.rules = Rules(lab.primary.port, lab.guard)
        self.is_frozen = not self.rules.dig()
        if self.is_frozen:
            lab.note("there is no firewall that may be used here: the primary is frozen instead")
            lab.primary.freeze()

    def end(self, lab: Ground) -> None:
        if self.is_frozen:
            lab.primary.thaw()
        else:
            self.rules.fill()


class Busy(Scenario):
    name = "busy"
    about = "the primary is throttled: server busy, which is waited for and never failed over"
    diverts = False
    lasts_s = 15.0
    operation_timeout_s = 60.0  # a busy entity is tried again after ten seconds, and after twenty

    def begin(self, lab: Ground) -> None:
        RemoteFaults(lab.primary.connection_string).add(Fault("server-busy", lab.path, ["send"]))

    def end(self, lab: Ground) -> None:
        RemoteFaults(lab.primary.connection_string).clear()


class DisabledEntity(Scenario):
    name = "disabled-entity"
    about = "the queue is disabled for sending by an administrator, and enabled again"

    def begin(self, lab: Ground) -> None:
        set_status(lab.primary, [lab.path], "SendDisabled")

    def end(self, lab: Ground) -> None:
        set_status(lab.primary, [lab.path], "Active")


def set_status(broker: LabBroker, paths: list[str], status: str) -> None:
    from azure.servicebus.management import ServiceBusAdministrationClient

    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=broker.ca_file
    ) as client:
        for path in paths:
            queue: Any = client.get_queue(path)
            queue.status = status
            client.update_queue(queue)


class BacklogQueueFails(Kill):
    name = "backlog-queue-fails"
    about = "the primary is killed, and half of the backlog queues are disabled meanwhile"

    def begin(self, lab: Ground) -> None:
        super().begin(lab)  # first: the other takes a second, in which all would still be sent to the primary
        self.disabled = lab.backlog_paths[: len(lab.backlog_paths) // 2]
        set_status(lab.secondary, self.disabled, "SendDisabled")

    def end(self, lab: Ground) -> None:
        set_status(lab.secondary, self.disabled, "Active")
        super().end(lab)


class Flapping(Scenario):
    name = "flapping"
    about = "the primary stops answering for ten seconds and is back for three, again and again"
    interval_s = 0.0  # so that a call which waits for the primary, for 6 s, is diverted while it is still away
    away_s: ClassVar[float] = 10.0
    back_s: ClassVar[float] = 3.0

    def begin(self, lab: Ground) -> None:
        lab.primary.freeze()
        self.is_frozen = True
        self.times = 1
        self.turn_s = time.monotonic() + self.away_s

    def watch(self, lab: Ground) -> None:
        if time.monotonic() < self.turn_s:
            return
        self.is_frozen = not self.is_frozen
        if self.is_frozen:
            lab.fault(BEGINS)
            lab.primary.freeze()
            self.times += 1
        else:
            lab.primary.thaw()
            lab.fault(MENDED)
        self.turn_s = time.monotonic() + (self.away_s if self.is_frozen else self.back_s)

    def is_complete(self) -> bool:
        return self.times >= 2

    def end(self, lab: Ground) -> None:
        lab.primary.thaw()


class BothDown(Scenario):
    name = "both-down"
    about = "the primary is killed, then the secondary too for a while: senders hear an error and send again"
    pending = "raise"
    interval_s = 0.0
    alone_share: ClassVar[float] = 0.1  # of all messages, that the secondary takes before it goes down too
    down_s: ClassVar[float] = 4.0

    def begin(self, lab: Ground) -> None:
        lab.primary.kill()
        self.down_until_s: float | None = None
        self.is_back = False

    def watch(self, lab: Ground) -> None:
        if self.is_back:
            return
        if self.down_until_s is None:
            if lab.tail.counts["diverted"] >= lab.messages * self.alone_share:
                lab.note("the secondary is killed too")
                lab.secondary.kill()
                self.down_until_s = time.monotonic() + self.down_s
        elif time.monotonic() >= self.down_until_s:
            lab.secondary.start()
            lab.note("the secondary is started again")
            self.is_back = True

    def is_complete(self) -> bool:
        return self.is_back

    def end(self, lab: Ground) -> None:
        if not self.is_back:
            raise LabError("all messages were sent before the secondary was down too: send more of them")
        lab.primary.start()


SCENARIOS: Final[dict[str, type[Scenario]]] = {
    each.name: each
    for each in (Kill, Freeze, Refuse, Blackhole, Busy, DisabledEntity, BacklogQueueFails, Flapping, BothDown)
}


def scenario_of(name: str) -> Scenario:
    if name not in SCENARIOS:
        raise LabError(f"there is no scenario '{name}'; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]()
