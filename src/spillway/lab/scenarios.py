"""What goes wrong, and how it is mended again: one class a scenario.

A fault begins when a fifth of the messages are safe and ends when three fifths are, so that a good third of them must
find another way.
"""

import shutil
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spillway.lab.processes import LabError

if TYPE_CHECKING:
    from spillway.lab.run import Lab

DIVERTED_SHARE: Final = 0.3


class Scenario:
    """`begin` and `end` do and undo it; `watch` is called all the while, for what happens in between."""

    name = ""
    about = ""
    pending = "hold"
    interval_s = 1.0
    diverts = True
    operation_timeout_s = 10.0

    def begin(self, lab: "Lab") -> None:
        raise NotImplementedError

    def watch(self, lab: "Lab") -> None:
        """While it lasts."""

    def end(self, lab: "Lab") -> None:
        raise NotImplementedError


class Kill(Scenario):
    name = "kill"
    about = "the primary is killed with kill -9, and started again later"

    def begin(self, lab: "Lab") -> None:
        lab.primary.kill()

    def end(self, lab: "Lab") -> None:
        lab.primary.start()


class Freeze(Scenario):
    name = "freeze"
    about = "the primary stops answering, its connections stay open"
    operation_timeout_s = 5.0

    def begin(self, lab: "Lab") -> None:
        lab.primary.freeze()

    def end(self, lab: "Lab") -> None:
        lab.primary.thaw()


class Refuse(Scenario):
    name = "refuse"
    about = "the primary is shut down in order: connections are refused"

    def begin(self, lab: "Lab") -> None:
        lab.primary.stop()

    def end(self, lab: "Lab") -> None:
        lab.primary.start()


class Blackhole(Scenario):
    name = "blackhole"
    about = "packets to and from the primary vanish (frozen instead where the firewall cannot be used)"
    operation_timeout_s = 5.0

    def __init__(self) -> None:
        self.rules: list[list[str]] = []

    def begin(self, lab: "Lab") -> None:
        port = str(lab.primary.port)
        rules = [
            ["INPUT", "-i", "lo", "-p", "tcp", "--dport", port, "-j", "DROP"],
            ["INPUT", "-i", "lo", "-p", "tcp", "--sport", port, "-j", "DROP"],
        ]
        for rule in rules:
            if not firewall("-I", rule):
                break
            self.rules.append(rule)
        if len(self.rules) < len(rules):
            self.end(lab)
            lab.say("no firewall to use here: the primary is frozen instead")
            lab.primary.freeze()

    def end(self, lab: "Lab") -> None:
        for rule in self.rules:
            firewall("-D", rule)
        self.rules = []
        lab.primary.thaw()


def firewall(action: str, rule: list[str]) -> bool:
    program = shutil.which("iptables")
    if program is None:
        return False
    done = subprocess.run([program, "-w", action, *rule], check=False, capture_output=True)
    return done.returncode == 0


class Busy(Scenario):
    name = "busy"
    about = "the primary is throttled: server busy, which is waited for and never failed over"
    diverts = False
    operation_timeout_s = 60.0

    def begin(self, lab: "Lab") -> None:
        lab.primary.ask("POST", "faults", {"kind": "server-busy", "path": lab.path, "operations": ["send"]})
        self.until_s = time.monotonic() + 12.0

    def end(self, lab: "Lab") -> None:
        lab.primary.ask("DELETE", "faults")


class DisabledEntity(Scenario):
    name = "disabled-entity"
    about = "the queue is disabled for sending by an administrator, and enabled again"

    def begin(self, lab: "Lab") -> None:
        set_status(lab, "SendDisabled")

    def end(self, lab: "Lab") -> None:
        set_status(lab, "Active")


def set_status(lab: "Lab", status: str) -> None:
    lab.administer(lab.primary, lambda client: _set_status(client, lab.path, status))


def _set_status(client: object, path: str, status: str) -> None:
    queue = client.get_queue(path)  # type: ignore[attr-defined]
    queue.status = status
    client.update_queue(queue)  # type: ignore[attr-defined]


class BacklogQueueFails(Kill):
    name = "backlog-queue-fails"
    about = "the primary is killed, and half of the backlog queues are disabled while it is away"

    def __init__(self) -> None:
        self.disabled: list[str] = []

    def begin(self, lab: "Lab") -> None:
        super().begin(lab)
        self.disabled = lab.backlog_paths[: len(lab.backlog_paths) // 2]
        self._set("SendDisabled", lab)

    def end(self, lab: "Lab") -> None:
        self._set("Active", lab)
        super().end(lab)

    def _set(self, status: str, lab: "Lab") -> None:
        for path in self.disabled:
            lab.administer(lab.secondary, _setting(path, status))


def _setting(path: str, status: str) -> Callable[[object], None]:
    return lambda client: _set_status(client, path, status)


class Flapping(Scenario):
    name = "flapping"
    about = "the primary freezes and comes back, two seconds each, again and again"
    operation_timeout_s = 3.0
    interval_s = 0.0
    period_s: Final = 2.0

    def begin(self, lab: "Lab") -> None:
        lab.primary.freeze()
        self.is_frozen = True
        self.turn_s = time.monotonic() + self.period_s

    def watch(self, lab: "Lab") -> None:
        if time.monotonic() < self.turn_s:
            return
        self.turn_s += self.period_s
        self.is_frozen = not self.is_frozen
        (lab.primary.freeze if self.is_frozen else lab.primary.thaw)()

    def end(self, lab: "Lab") -> None:
        lab.primary.thaw()


class BothDown(Scenario):
    name = "both-down"
    about = "the primary is killed, then the secondary too for a while: senders hear that nothing was sent"
    pending = "raise"
    interval_s = 0.0

    def begin(self, lab: "Lab") -> None:
        lab.primary.kill()
        self.phase = 0
        self.next_s = time.monotonic() + 4.0

    def watch(self, lab: "Lab") -> None:
        if self.phase == 0 and time.monotonic() >= self.next_s:
            lab.secondary.kill()
            self.phase, self.next_s = 1, time.monotonic() + 4.0
        elif self.phase == 1 and time.monotonic() >= self.next_s:
            lab.secondary.start()
            self.phase = 2

    def end(self, lab: "Lab") -> None:
        if self.phase == 1:
            lab.secondary.start()
        lab.primary.start()


SCENARIOS: Final[dict[str, type[Scenario]]] = {
    each.name: each
    for each in (Kill, Freeze, Refuse, Blackhole, Busy, DisabledEntity, BacklogQueueFails, Flapping, BothDown)
}


def scenario_of(name: str) -> Scenario:
    if name not in SCENARIOS:
        raise LabError(f"there is no scenario '{name}'; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]()
