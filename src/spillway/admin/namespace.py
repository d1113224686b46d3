"""What the server hands in of the namespace that is administered. Nothing here needs HTTP or XML to be imported."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from spillway.broker.commands import Request
from spillway.broker.effects import Answer


class Pump(Protocol):
    """What is asked of the namespace's pump."""

    def ask(self, make_request: Callable[[int], Request]) -> Awaitable[Answer]: ...
    def ask_together(self, make_requests: list[Callable[[int], Request]]) -> Awaitable[list[Answer]]: ...


@dataclass(frozen=True)
class AdministeredNamespace:
    name: str
    pump: Pump
    # Token, path as decoded, path and query as sent -> why not, or None: the token is good and has the right Manage.
    authorise: Callable[[str, str, str], str | None]
    now_ms: Callable[[], int]
    real_ms: Callable[[], int]  # the same, as if nobody had moved the clock
    tracking_text: Callable[[str, int], str]
    created_ms: int
    is_key_known: Callable[[], bool]  # the emulator's key is good here, and everybody knows it
    facts: Callable[[], dict[str, object]]  # what `status` shows besides name, version and time
    is_clock_movable: bool
    # Moves the clock by ms; True once what is due by then has happened and is durable. `BrokerError` if it cannot.
    advance: Callable[[int], Awaitable[bool]]
    is_counted: bool = False  # requests count against the operations that the namespace may have a second
