"""Faults that are injected, and whether one hits an operation. What then happens is in `faulting`.

Nothing here is remembered: a broker that starts has no faults. Chance comes from the seed of each fault, so a run can
be played again.
"""

from typing import Final

from spillway.broker.lane import ReceiverLink
from spillway.model import limits
from spillway.model.entity import SUBSCRIPTIONS, entity_key
from spillway.model.errors import BrokerError, QuotaExceeded, entity_not_found, error_of
from spillway.model.faults import (
    CONDITIONS,
    DETACH,
    DISABLED,
    ENDED,
    EVERYWHERE,
    HIDDEN_KIND,
    INJECTED,
    LOCK_LOST,
    OPERATIONS,
    QUOTA,
    RECEIVE,
    RESTART,
    SERVER_BUSY,
    SLOW,
    SPENT,
    TIMEOUT_REFUSED,
    Fault,
)
from spillway.model.message import NEVER

DELIVER: Final = "deliver"  # where faults that delay deliveries are found; the others of `receive` strike earlier
_MASK: Final = 0xFFFFFFFFFFFFFFFF
_NONE: Final[tuple[str, ...]] = ()

_TEXTS: Final[dict[str, str]] = {
    SERVER_BUSY: "The broker is too busy. Wait 10 seconds, then try again.",
    TIMEOUT_REFUSED: "The operation did not complete within the allotted time. Try again.",
    DETACH: "The link was ended by the broker. Attach again.",
    LOCK_LOST: "The lock supplied is invalid. Either the lock expired, or the message has already been removed.",
    QUOTA: "The maximum size of the entity has been reached. Receive messages, or raise its MaxSizeInMegabytes.",
    RESTART: "The broker restarts and cannot process the request yet. Try again.",
}


class Dice:
    """Numbers from 0 up to 1 that look random and follow from a seed (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self.state = seed & _MASK

    def roll(self) -> float:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / 9007199254740992.0  # 53 bits


class InjectedFault:
    def __init__(self, number: int, fault: Fault, namespace: str, now_ms: int) -> None:
        self.number = number
        self.fault = fault
        self.kind = fault.kind
        self.namespace = namespace
        self.state: str = INJECTED
        self.tried = 0
        self.hit = 0
        self.ends_ms = now_ms + fault.duration_ms if fault.duration_ms else NEVER
        # How late answers are; 0 for kinds that do something else.
        self.delay_ms = fault.delay_ms if fault.kind in (SLOW, RESTART) else 0
        self.muted: dict[int, ReceiverLink] = {}  # receivers that are handed nothing because of it, by link number
        self._dice = Dice(fault.seed)
        self._is_everywhere = fault.path == EVERYWHERE
        self._key = entity_key(fault.path)
        self._subscriptions = self._key + SUBSCRIPTIONS.lower()
        self._parts = self._key + "/$"

    def covers(self, key: str) -> bool:
        """The entity itself, its subscriptions, dead letters."""
        return (
            self._is_everywhere
            or key == self._key
            or key.startswith(self._parts)
            or key.startswith(self._subscriptions)
        )

    def is_felt(self) -> bool:
        """It can still hit, or somebody still suffers from it."""
        return self.state == INJECTED or len(self.muted) > 0

    def matches(self) -> bool:
        """Whether the fault hits the operation at hand; the operation is counted."""
        fault = self.fault
        self.tried += 1
        if self.tried <= fault.after or (fault.probability < 1.0 and self._dice.roll() >= fault.probability):
            return False
        self.hit += 1
        if self.hit == fault.count:
            self.state = SPENT
        return True

    def error_for(self, path: str) -> BrokerError:
        fault = self.fault
        condition = fault.condition or CONDITIONS[fault.kind]
        if fault.text:
            return error_of(condition, fault.text)
        text = _TEXTS.get(fault.kind, "Refused.")
        if condition == "amqp:not-found":
            text = entity_not_found(self.namespace, path).description
        elif fault.kind == DISABLED:
            text = f"Messaging entity '{path}' is currently disabled."
        return error_of(condition, f"{text} (Fault {self.number}, planted on purpose.)")


class Faults:
    """All faults of a namespace, by number, and by operation those that can still hit."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.by_number: dict[int, InjectedFault] = {}
        self.by_operation: dict[str, list[InjectedFault]] = {}
        self.hiding: list[InjectedFault] = []  # looked at for every message that is taken in
        self.last_number = 0
        self.next_end_ms: int = NEVER  # of all that have not ended
        self._sort()

    def inject(self, fault: Fault, now_ms: int) -> InjectedFault:
        """Raises `QuotaExceeded`."""
        if len([injected for injected in self.by_number.values() if injected.state == INJECTED]) >= limits.FAULTS_MAX:
            raise QuotaExceeded(
                f"The namespace '{self.namespace}' has {limits.FAULTS_MAX} faults planted, the most it may have. "
                "Remove some."
            )
        self._evict_old()
        self.last_number += 1
        injected = InjectedFault(self.last_number, fault, self.namespace, now_ms)
        self.by_number[injected.number] = injected
        self._enter(injected)
        return injected

    def _evict_old(self) -> None:
        if len(self.by_number) < limits.FAULTS_REMEMBERED_MAX:
            return
        for number, injected in list(self.by_number.items()):
            if len(self.by_number) < limits.FAULTS_REMEMBERED_MAX:
                return
            if injected.state != INJECTED and not injected.muted:
                del self.by_number[number]

    def remove(self, numbers: list[int]) -> list[InjectedFault]:
        removed = [self.by_number.pop(number) for number in numbers]
        self._sort()
        return removed

    def expire(self, now_ms: int) -> list[InjectedFault]:
        """Faults whose time is up by now end, and are returned."""
        ended: list[InjectedFault] = []
        if self.next_end_ms == NEVER or self.next_end_ms > now_ms:
            return ended
        for injected in self.by_number.values():
            if injected.state != ENDED and injected.ends_ms != NEVER and injected.ends_ms <= now_ms:
                injected.state = ENDED
                ended.append(injected)
        self._sort()
        return ended

    def _note_end(self, injected: InjectedFault) -> None:
        if injected.ends_ms != NEVER and (self.next_end_ms == NEVER or injected.ends_ms < self.next_end_ms):
            self.next_end_ms = injected.ends_ms

    def _sort(self) -> None:
        self.by_operation = {operation: [] for operation in (*OPERATIONS, DELIVER)}
        self.hiding = []
        self.next_end_ms = NEVER
        for injected in self.by_number.values():
            if injected.state == INJECTED:
                self._enter(injected)
            elif injected.state == SPENT:
                self._note_end(injected)  # somebody may still suffer from it

    def _enter(self, injected: InjectedFault) -> None:
        self._note_end(injected)
        if injected.kind == HIDDEN_KIND:
            self.hiding.append(injected)
            return
        for operation in injected.fault.operations:
            is_late = operation == RECEIVE and injected.delay_ms > 0
            self.by_operation[DELIVER if is_late else operation].append(injected)

    def are_felt(self) -> bool:
        for injected in self.by_number.values():  # noqa: SIM110  (a plain loop is the faster one, compiled)
            if injected.is_felt():
                return True
        return False

    def find(self, path: str, operation: str, unfit: tuple[str, ...] = _NONE) -> InjectedFault | None:
        """The first one that strikes this operation. Kinds that are `unfit` do not even try."""
        found = self.by_operation[operation]
        if not found:
            return None
        key = entity_key(path)
        for injected in found:
            if injected.kind not in unfit and injected.covers(key) and injected.matches():
                if injected.state == SPENT:
                    self._sort()
                return injected
        return None

    def hidden_until_ms(self, path: str, now_ms: int) -> int:
        """When a message that comes now appears in the entity; NEVER: it is not hidden."""
        key = entity_key(path)
        for injected in self.hiding:
            if injected.covers(key) and injected.matches():
                if injected.state == SPENT:
                    self._sort()
                return now_ms + injected.fault.delay_ms
        return NEVER


NO_FAULTS: Final = Faults("")
