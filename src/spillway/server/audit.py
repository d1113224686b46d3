"""The audit lines of a namespace: who was refused, who changed what, and from where.

One logger, `spillway.audit`, so that they can be kept apart. A line is `refused` or `done`, then fields. What a client
made up is quoted and cut, a rule's name is shown only if there is such a rule (whoever swaps name and key in a
connection string sends the key as the name), and a flood writes a bounded number of lines and how many it left out.
"""

import json
import logging
from typing import Final

from spillway.dialect.rights import AccessBook
from spillway.server.clock import Clock

log = logging.getLogger("spillway.audit")

# A client with a wrong key comes again and again; its user needs a line, the disk of the log no more than some.
REFUSALS_BURST: Final = 50
REFUSALS_PER_S: Final = 5
# Administrators are few and known: what they did is left out only when it would fill the disk.
CHANGES_BURST: Final = 5_000
CHANGES_PER_S: Final = 200
SHOWN_CHARS_MAX: Final = 200
NAMES_MAX: Final = 5


class Allowance:
    """So many lines at once, and so many a second from then on."""

    def __init__(self, burst: int, per_s: int, now_ms: int) -> None:
        self.burst = burst
        self.per_s = per_s
        self.left = float(burst)
        self.at_ms = now_ms
        self.left_out = 0  # lines not written since the last one that was

    def try_acquire(self, now_ms: int) -> bool:
        self.left = min(self.burst, self.left + (now_ms - self.at_ms) * self.per_s / 1000)
        self.at_ms = now_ms
        if self.left < 1:
            self.left_out += 1
            return False
        self.left -= 1
        return True


class AuditLog:
    def __init__(self, namespace: str, book: AccessBook, clock: Clock) -> None:
        self.namespace = namespace
        self.book = book
        self.clock = clock
        self.refusals = Allowance(REFUSALS_BURST, REFUSALS_PER_S, clock.real_ms())
        self.changes = Allowance(CHANGES_BURST, CHANGES_PER_S, clock.real_ms())

    def refused(self, where: str, what: str, rule: str, path: str, why: str) -> None:
        if self.refusals.try_acquire(self.clock.real_ms()):
            self.write(logging.WARNING, self.refusals, "refused", where, what, self.known(rule), path, why)

    def known(self, names: str) -> str:
        """The names that some rule has; one word for each that none has."""
        if not names:
            return ""
        few = names.split(",", NAMES_MAX)[:NAMES_MAX]
        return ",".join(name if self.book.knows(name) else "unknown" for name in few)

    def done(self, where: str, what: str, rule: str, path: str, change: str = "") -> None:
        if self.changes.try_acquire(self.clock.real_ms()):
            self.write(logging.INFO, self.changes, "done", where, what, rule, path, change)

    def write(
        self, level: int, allowance: Allowance, verdict: str, where: str, what: str, rule: str, path: str, text: str
    ) -> None:
        fields = {"namespace": self.namespace, "what": what, "rule": rule, "client": where, "path": path, "text": text}
        shown = " ".join(f"{name}={quoted(value)}" for name, value in fields.items() if value)
        if allowance.left_out:
            shown += f" ({allowance.left_out} more before this one were not written)"
            allowance.left_out = 0
        log.log(level, "%s %s", verdict, shown)


def quoted(value: str) -> str:
    """A text on one line, whatever a client put into it; as it is where nothing in it can mislead."""
    text = value if len(value) <= SHOWN_CHARS_MAX else value[:SHOWN_CHARS_MAX] + "…"
    is_plain = text.isascii() and all(char.isalnum() or char in "-_.:,/$" for char in text)
    return text if is_plain else json.dumps(text)


class ClientAudit:
    """What one client is told about; it knows where that is."""

    def __init__(self, log: AuditLog, where: str) -> None:
        self.log = log
        self.where = where

    def refused(self, what: str, rule: str, path: str, why: str) -> None:
        self.log.refused(self.where, what, rule, path, why)

    def done(self, what: str, rule: str, path: str) -> None:
        self.log.done(self.where, what, rule, path)
