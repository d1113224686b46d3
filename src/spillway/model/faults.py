"""Faults on purpose: what can be asked for. Plain data; `broker/faults.py` decides when one hits.

A fault has a kind, a place (one entity and what is below it, or the whole namespace) and operations. Not every kind can
befall every operation: `reason_against` says why not, and such a fault cannot be made.
"""

from typing import Final

from spillway.model import limits
from spillway.model.entity import DEAD_LETTER_SUFFIX, entity_key, name_problem, split_subscription
from spillway.model.entity import subscription_name_problem as _subscription_problem
from spillway.model.errors import ArgumentError
from spillway.model.texts import text_problem

SEND: Final = "send"
RECEIVE: Final = "receive"
SETTLE: Final = "settle"
ATTACH: Final = "attach"
MANAGEMENT: Final = "management"
ADMINISTRATION: Final = "administration"
OPERATIONS: Final = (SEND, RECEIVE, SETTLE, ATTACH, MANAGEMENT, ADMINISTRATION)

SERVER_BUSY: Final = "server-busy"
TIMEOUT: Final = "timeout"
TIMEOUT_REFUSED: Final = "timeout-refused"
REFUSE: Final = "refuse"
DETACH: Final = "detach"
DROP: Final = "drop"
SLOW: Final = "slow"
LOCK_LOST: Final = "lock-lost"
QUOTA: Final = "quota"
DISABLED: Final = "disabled"
HIDDEN_KIND: Final = "hidden"
RESTART: Final = "restart"
KINDS: Final = (
    SERVER_BUSY,
    TIMEOUT,
    TIMEOUT_REFUSED,
    REFUSE,
    DETACH,
    DROP,
    SLOW,
    LOCK_LOST,
    QUOTA,
    DISABLED,
    HIDDEN_KIND,
    RESTART,
)

EVERYWHERE: Final = "*"  # as a path: the whole namespace

# Which AMQP condition a kind refuses with, unless another may be and is given.
CONDITIONS: Final[dict[str, str]] = {
    SERVER_BUSY: "com.microsoft:server-busy",
    TIMEOUT_REFUSED: "com.microsoft:timeout",
    DETACH: "amqp:link:detach-forced",
    LOCK_LOST: "com.microsoft:message-lock-lost",
    QUOTA: "amqp:resource-limit-exceeded",
    DISABLED: "com.microsoft:entity-disabled",
    RESTART: "amqp:internal-error",
}
_CONDITION_GIVEN: Final = (REFUSE, DETACH, RESTART)
_DELAYS: Final = (SLOW, HIDDEN_KIND, RESTART)
_SAYS_NOTHING: Final = (TIMEOUT, DROP, SLOW, HIDDEN_KIND)

_NO_LOCK: Final = "it is about locks on messages, and this holds none"
_MAKES_ROOM: Final = "taking messages out makes room: no quota refuses it"
_HIDES: Final = "it hides what is sent: plant it on send"
_SENSELESS: Final[dict[str, dict[str, str]]] = {
    DETACH: {ADMINISTRATION: "HTTP has no links"},
    LOCK_LOST: {
        SEND: _NO_LOCK,
        RECEIVE: "a delivery makes a lock of its own: plant it on settle",
        ATTACH: _NO_LOCK,
        ADMINISTRATION: _NO_LOCK,
    },
    QUOTA: {RECEIVE: _MAKES_ROOM, SETTLE: _MAKES_ROOM},
    DISABLED: {ADMINISTRATION: "a disabled entity can be administered, or it could never be enabled again"},
    HIDDEN_KIND: {RECEIVE: _HIDES, SETTLE: _HIDES, ATTACH: _HIDES, MANAGEMENT: _HIDES, ADMINISTRATION: _HIDES},
}


def reason_against(kind: str, operation: str) -> str:
    """Why a fault of this kind cannot befall this operation; "" if it can."""
    return _SENSELESS.get(kind, {}).get(operation, "")


def operations_of(kind: str) -> tuple[str, ...]:
    """All operations that a fault of this kind can befall."""
    return tuple([operation for operation in OPERATIONS if not reason_against(kind, operation)])


class Fault:
    """What shall go wrong. Raises `ArgumentError` if that makes no sense.

    `path`: an entity, which includes what is below it (subscriptions, dead letters), or "*".
    `operations`: some of OPERATIONS; none named: all that the kind can befall.
    `condition`, `text`: what a refusal says.
    `delay_ms`: how late (slow), for how long (hidden), how slow after the restart (restart; 0: refused instead).
    `probability`, `seed`: of those operations that it could befall; the same seed makes the same choices.
    `after`, `count`: the first ones pass; it befalls so many and is spent (0: no end).
    `duration_ms`: it ends by itself, by the broker's clock (0: it does not).
    """

    def __init__(
        self,
        kind: str,
        path: str = EVERYWHERE,
        operations: tuple[str, ...] | list[str] = (),
        condition: str = "",
        text: str = "",
        delay_ms: int = 0,
        probability: float = 1.0,
        seed: int = 0,
        after: int = 0,
        count: int = 0,
        duration_ms: int = 0,
    ) -> None:
        self.kind = kind
        self.path = path
        self.condition = condition
        self.text = text
        self.delay_ms = delay_ms
        self.probability = probability
        self.seed = seed
        self.after = after
        self.count = count
        self.duration_ms = duration_ms
        if kind not in KINDS:
            raise ArgumentError(f"'{_shortened(kind)}' is no kind of fault; there are {', '.join(KINDS)}.")
        self.operations: tuple[str, ...] = tuple(operations) or operations_of(kind)
        self._check_operations()
        problem = path_problem(path)
        if problem is not None:
            raise ArgumentError(f"'{_shortened(path)}' is no place for a fault: {problem}.")
        self._check_words()
        self._check_numbers()

    def _check_operations(self) -> None:
        for operation in self.operations:
            if operation not in OPERATIONS:
                raise ArgumentError(f"'{_shortened(operation)}' is no operation; there are {', '.join(OPERATIONS)}.")
            reason = reason_against(self.kind, operation)
            if reason:
                raise ArgumentError(f"A fault '{self.kind}' cannot befall {operation}: {reason}.")
        if len(set(self.operations)) < len(self.operations):
            raise ArgumentError("An operation is named twice.")

    def _check_words(self) -> None:
        kind = self.kind
        if self.condition and kind not in _CONDITION_GIVEN:
            raise ArgumentError(f"'condition' is for {', '.join(_CONDITION_GIVEN)}, not for '{kind}'.")
        if kind == REFUSE and not self.condition:
            raise ArgumentError("'condition' is missing: with what to refuse, such as com.microsoft:server-busy.")
        if self.condition:
            problem = condition_problem(self.condition)
            if problem is not None:
                raise ArgumentError(f"'condition' cannot be '{_shortened(self.condition)}': {problem}.")
        if self.text and kind in _SAYS_NOTHING:
            raise ArgumentError(f"'text' is for faults that refuse; '{kind}' says nothing.")
        problem = text_problem(self.text)
        if problem is not None:
            raise ArgumentError(f"'text' is no text: {problem}.")
        if len(self.text) > limits.FAULT_TEXT_CHARS_MAX:
            raise ArgumentError(
                f"'text' has at most {limits.FAULT_TEXT_CHARS_MAX} characters, this one has {len(self.text)}."
            )
        if kind == RESTART and self.condition and self.delay_ms:
            raise ArgumentError("After a restart operations are slow ('delay_ms') or refused ('condition'), not both.")

    def _check_numbers(self) -> None:
        kind = self.kind
        if self.delay_ms and kind not in _DELAYS:
            raise ArgumentError(f"'delay_ms' is for {', '.join(_DELAYS)}, not for '{kind}'.")
        if kind in (SLOW, HIDDEN_KIND) and self.delay_ms == 0:
            raise ArgumentError(f"'delay_ms' is missing: for how long '{kind}' is.")
        if kind == RESTART and self.duration_ms == 0:
            raise ArgumentError("'duration_ms' is missing: for how long operations suffer after the restart.")
        if kind == RESTART and (self.after or self.count or self.probability != 1.0):
            raise ArgumentError("A restart befalls everything: it takes no 'after', 'count' or 'probability'.")
        _check_range("delay_ms", self.delay_ms, limits.FAULT_DELAY_MS_MAX)
        _check_range("duration_ms", self.duration_ms, limits.FAULT_DURATION_MS_MAX)
        _check_range("after", self.after, limits.FAULT_COUNT_MAX)
        _check_range("count", self.count, limits.FAULT_COUNT_MAX)
        _check_range("seed", self.seed, limits.FAULT_SEED_MAX)
        if not 0.0 < self.probability <= 1.0:
            raise ArgumentError(f"'probability' is above 0 and at most 1, not {self.probability}.")

    def to_plain(self) -> dict[str, object]:
        """As JSON says it."""
        return {
            "kind": self.kind,
            "path": self.path,
            "operations": list(self.operations),
            "condition": self.condition or CONDITIONS.get(self.kind, ""),
            "text": self.text,
            "delay_ms": self.delay_ms,
            "probability": self.probability,
            "seed": self.seed,
            "after": self.after,
            "count": self.count,
            "duration_ms": self.duration_ms,
        }


_TEXTS: Final = ("kind", "path", "condition", "text")
_NUMBERS: Final = ("delay_ms", "seed", "after", "count", "duration_ms")
KEYS: Final = (*_TEXTS, "operations", "probability", *_NUMBERS)


def fault_from_plain(values: dict[str, object]) -> Fault:
    """A fault as JSON asked for it. Raises `ArgumentError` that names what is wrong and what is allowed."""
    for name in values:
        if name not in KEYS:
            raise ArgumentError(f"A fault has no '{_shortened(name)}'; it has {', '.join(KEYS)}.")
    if "kind" not in values:
        raise ArgumentError(f"'kind' is missing: one of {', '.join(KINDS)}.")
    kind = _text(values, "kind", "")
    condition = _text(values, "condition", "")
    if condition == CONDITIONS.get(kind):
        condition = ""  # what it has anyway, as it was shown
    return Fault(
        kind,
        _text(values, "path", EVERYWHERE),
        _names(values, "operations"),
        condition,
        _text(values, "text", ""),
        _number(values, "delay_ms"),
        _fraction(values, "probability"),
        _number(values, "seed"),
        _number(values, "after"),
        _number(values, "count"),
        _number(values, "duration_ms"),
    )


INJECTED: Final = "planted"
SPENT: Final = "spent"  # it has befallen as many as it should
ENDED: Final = "ended"  # its time is up


class FaultReport:
    """A fault that was planted, and how it fares. `tried`: operations that it could befall; `hit`: those it did."""

    def __init__(
        self, number: int, fault: Fault, state: str, tried: int, hit: int, ends_ms: int, entity_exists: bool
    ) -> None:
        self.number = number
        self.fault = fault
        self.state = state
        self.tried = tried
        self.hit = hit
        self.ends_ms = ends_ms  # by the broker's clock; 0: when it is removed
        self.entity_exists = entity_exists

    def to_plain(self) -> dict[str, object]:
        values: dict[str, object] = {"number": self.number, "state": self.state, "tried": self.tried, "hit": self.hit}
        values["ends_ms"] = self.ends_ms
        values["entity_exists"] = self.entity_exists
        values.update(self.fault.to_plain())
        return values


def report_from_plain(values: dict[str, object]) -> FaultReport:
    """The inverse of `FaultReport.to_plain`, for who asks a broker over HTTP."""
    own = ("number", "state", "tried", "hit", "ends_ms", "entity_exists")
    return FaultReport(
        _number(values, "number"),
        fault_from_plain({name: value for name, value in values.items() if name not in own}),
        _text(values, "state", INJECTED),
        _number(values, "tried"),
        _number(values, "hit"),
        _number(values, "ends_ms"),
        values.get("entity_exists") is True,
    )


def path_problem(path: str) -> str | None:
    """What is wrong with the place of a fault, or None. The entity need not be there yet."""
    if path == EVERYWHERE:
        return None
    if entity_key(path).endswith(DEAD_LETTER_SUFFIX.lower()):
        path = path.strip("/")[: -len(DEAD_LETTER_SUFFIX)]
    problem = _subscription_problem(path) if split_subscription(path)[0] else name_problem(path.strip("/"))
    return None if problem is None else f"it is '{EVERYWHERE}' or the path of an entity, and {problem}"


def condition_problem(condition: str) -> str | None:
    """What is wrong with the name of an AMQP error, or None. Any name may be said, known to the SDKs or not."""
    if len(condition) > limits.CONDITION_CHARS_MAX:
        return f"it has at most {limits.CONDITION_CHARS_MAX} characters"
    for char in condition:
        if not "!" <= char <= "~":
            return "it has ASCII characters without blanks only"
    return None


def _check_range(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise ArgumentError(f"'{name}' is from 0 to {most}, not {value}.")


def _text(values: dict[str, object], name: str, default: str) -> str:
    value = values.get(name, default)
    if not isinstance(value, str):
        raise ArgumentError(f"'{name}' must be a string.")
    return value


def _number(values: dict[str, object], name: str) -> int:
    value = values.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError(f"'{name}' must be a whole number.")
    return value


def _fraction(values: dict[str, object], name: str) -> float:
    value = values.get(name, 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentError(f"'{name}' must be a number.")
    try:
        return float(value)
    except OverflowError:
        raise ArgumentError(f"'{name}' is above 0 and at most 1.") from None


def _names(values: dict[str, object], name: str) -> list[str]:
    value = values.get(name, [])
    if not isinstance(value, list):
        raise ArgumentError(f"'{name}' must be a list of strings.")
    names: list[str] = []
    for item in value:
        if not isinstance(item, str):
            raise ArgumentError(f"'{name}' must be a list of strings.")
        names.append(item)
    return names


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
