"""A namespace without sockets: commands in, effects out, loads answered by a journal at once. It can crash."""

from collections.abc import Callable

from spillway.broker.commands import Command, Loaded
from spillway.broker.effects import Effect, Load, Report
from spillway.broker.namespace import Namespace
from spillway.model.message import NEVER, NO_TTL, Message
from spillway.model.quotas import Quotas
from spillway.model.records import Rows
from spillway.store.memory import MemoryJournal


class CoreHarness:
    """Plays the pump: remembers every turn, answers every load, and hands back what was said."""

    def __init__(self, now_ms: int = 1_000_000, quotas: Quotas | None = None) -> None:
        self.journal = self.make_journal()
        self.quotas = quotas
        self.now_ms = now_ms
        self.lives = 0
        self.ticket = 0
        self.answers: list[Command] = []
        self.allows_incidents = False  # else a fault that the core contains is the test's failure
        self.namespace = self._live()

    def _live(self) -> Namespace:
        self.lives += 1
        namespace = self.make_namespace(self.lives.to_bytes(8, "big"))
        if self.lives == 1:
            self.journal.start(self, _at_once)
        return namespace

    def make_journal(self) -> MemoryJournal:
        return MemoryJournal()

    def make_namespace(self, seed: bytes) -> Namespace:
        return Namespace("test", self.journal.recover(), seed, None, self.quotas)

    def restart(self) -> None:
        """A crash: locks and windows are gone, what was remembered is not."""
        self.answers.clear()
        self.namespace = self._live()

    def apply(self, *commands: Command) -> list[Effect]:
        """What was said, in order, once every load that it led to was answered."""
        said: list[Effect] = []
        todo = list(commands)
        while True:
            decided = self.namespace.apply(todo, self.now_ms)
            if self.namespace.incidents.count and not self.allows_incidents:
                raise AssertionError([effect.text for effect in decided.effects if isinstance(effect, Report)])
            self.ticket += 1
            if not decided.turn.is_empty():
                self.journal.submit(decided.turn, self.ticket)
            for effect in decided.effects:
                if isinstance(effect, Load):
                    self.journal.load(effect.query, effect.to)
                else:
                    said.append(effect)
            todo = self.answers
            self.answers = []
            if not todo and not self._is_due():
                return said

    def _is_due(self) -> bool:
        due_ms = self.namespace.next_due_ms()
        return due_ms != 0 and due_ms <= self.now_ms

    def step(self, ms: int) -> list[Effect]:
        """Let time pass."""
        self.now_ms += ms
        return self.apply()

    # -- Listener ----------------------------------------------------------------------------------------------

    def on_durable(self, ticket: int) -> None:
        pass

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        self.answers.append(Loaded(ticket, rows))

    def on_copied(self) -> None:
        pass

    def on_failed(self, error: BaseException) -> None:
        raise error


def _at_once(run: Callable[[], None]) -> None:
    run()


def message(
    body: bytes = b"hello",
    *,
    ttl_ms: int = NO_TTL,
    scheduled_ms: int = NEVER,
    message_id: str = "m",
    is_ping: bool = False,
    session_id: str | None = None,
) -> Message:
    """A message as the dialect would admit it, with a body the core never looks at."""
    made = Message(body)
    made.ttl_ms = ttl_ms
    made.scheduled_ms = scheduled_ms
    made.message_id = message_id
    made.is_ping = is_ping
    made.session_id = session_id
    return made
