"""What the server hands in of the namespace that is administered. Nothing here needs HTTP or XML to be imported."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from spillway.broker.commands import Request
from spillway.broker.effects import Answer
from spillway.model.budget import Budget
from spillway.model.ledger import LedgerRow


class Pump(Protocol):
    """What is asked of the namespace's pump."""

    def ask(self, make_request: Callable[[int], Request]) -> Awaitable[Answer]: ...
    def ask_together(self, make_requests: list[Callable[[int], Request]]) -> Awaitable[list[Answer]]: ...


class TokenVerdict(Protocol):
    """Whether a request may be answered."""

    @property
    def problem(self) -> str | None:
        """What to answer instead; None if it may."""

    @property
    def rule(self) -> str:
        """The shared access rule whose key signed it."""

    @property
    def is_good(self) -> bool:
        """The token is good; if there is a problem nevertheless, the right is missing."""


class Gate(Protocol):
    def judge(self, token: str, path: str, sent: str, host: str, where: str) -> TokenVerdict:
        """Whether the token is good and has the right Manage on `path`, decoded; `sent` is path and query as they came,
        `where` the client's address."""

    def may_send(self, tokens: list[str], path: str, host: str, where: str) -> bool:
        """Whether one of the tokens has the right Send on `path`; `host` is what the client calls the namespace."""


class SealedDays(Protocol):
    def rows(self, day: int) -> Iterator[LedgerRow]:
        """Rows of a day in their order; nothing if there is no such day. ValueError: what is there cannot be read."""


class Audit(Protocol):
    def done(self, where: str, what: str, rule: str, path: str, change: str = "") -> None: ...


@dataclass(frozen=True)
class AdministeredNamespace:
    name: str
    pump: Pump
    gate: Gate
    audit: Audit
    now_ms: Callable[[], int]
    real_ms: Callable[[], int]  # the same, as if nobody had moved the clock
    tracking_text: Callable[[str, int], str]
    created_ms: int
    is_key_known: Callable[[], bool]  # the emulator's key is good here, and everybody knows it
    facts: Callable[[], dict[str, object]]  # what `status` shows besides name, version and time
    counts: Callable[[], dict[str, object]]  # and of each entity
    is_clock_movable: bool
    # Moves the clock by ms; True once what is due by then has happened and is durable. `BrokerError` if it cannot.
    advance: Callable[[int], Awaitable[bool]]
    sealed_days: SealedDays  # of the ledger
    budget: Budget  # for what is held of requests and answers
    allowed_hosts: frozenset[str] = frozenset()  # names of this broker beside those that no web site can have
