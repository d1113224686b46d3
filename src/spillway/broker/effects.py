"""Effects: what the broker wants said or done. Spoken only once the turn that decided it is durable; `Load` at once."""

from spillway.model.access import AccessRule
from spillway.model.entity import EntitySettings
from spillway.model.errors import BrokerError
from spillway.model.faults import FaultReport
from spillway.model.ledger import LedgerRow
from spillway.model.message import StoredMessage
from spillway.model.records import Counters, Query
from spillway.model.rules import Rule


class Effect:
    """Something to say to the link or request with the number `to`."""

    def __init__(self, to: int) -> None:
        self.to = to


class Attached(Effect):
    """The link may be used; where sessions are required, it holds this one until then."""

    def __init__(self, to: int, session_id: str | None = None, locked_until_ms: int = 0) -> None:
        super().__init__(to)
        self.session_id = session_id
        self.locked_until_ms = locked_until_ms


class Refused(Effect):
    def __init__(self, to: int, error: BrokerError) -> None:
        super().__init__(to)
        self.error = error


class Detached(Effect):
    """The broker ends the link: its entity was deleted, or a fault says so."""

    def __init__(self, to: int, error: BrokerError) -> None:
        super().__init__(to)
        self.error = error


class SendSettled(Effect):
    """The send is stored (`error` is None) or refused."""

    def __init__(self, to: int, delivery_id: int, error: BrokerError | None) -> None:
        super().__init__(to)
        self.delivery_id = delivery_id
        self.error = error


class Paced(Effect):
    """The sender gets no new credit while it `is_held`; see pace.py."""

    def __init__(self, to: int, is_held: bool) -> None:
        super().__init__(to)
        self.is_held = is_held


class Deliver(Effect):
    """Hand this message to the link. No lock token: it is deleted already (ReceiveAndDelete)."""

    def __init__(self, to: int, path: str, stored: StoredMessage, lock_token: bytes, locked_until_ms: int) -> None:
        super().__init__(to)
        self.path = path
        self.stored = stored
        self.lock_token = lock_token
        self.locked_until_ms = locked_until_ms


class Drained(Effect):
    """Nothing more for the credit that this link gave with drain. `number` is that of the last `Credit` it heeds."""

    def __init__(self, to: int, number: int) -> None:
        super().__init__(to)
        self.number = number


class SettlementAnswered(Effect):
    """The settlement stands (`error` is None) or could not be applied. `kind` is the one the client asked for."""

    def __init__(self, to: int, delivery_id: int, kind: int, error: BrokerError | None) -> None:
        super().__init__(to)
        self.delivery_id = delivery_id
        self.kind = kind
        self.error = error


class Answer(Effect):
    """The answer to a request; one of the kinds below."""


class Failed(Answer):
    def __init__(self, to: int, error: BrokerError) -> None:
        super().__init__(to)
        self.error = error


class Done(Answer):
    """The request was done; there is nothing else to say."""


class Renewed(Answer):
    def __init__(self, to: int, locked_until_ms: list[int]) -> None:
        super().__init__(to)
        self.locked_until_ms = locked_until_ms


class Messages(Answer):
    """Messages browsed or received by number; `lock_tokens` are parallel, or empty when nothing was locked."""

    def __init__(self, to: int, messages: list[StoredMessage], lock_tokens: list[bytes], locked_until_ms: int) -> None:
        super().__init__(to)
        self.messages = messages
        self.lock_tokens = lock_tokens
        self.locked_until_ms = locked_until_ms


class Scheduled(Answer):
    def __init__(self, to: int, sequence_numbers: list[int]) -> None:
        super().__init__(to)
        self.sequence_numbers = sequence_numbers


class Deleted(Answer):
    def __init__(self, to: int, count: int) -> None:
        super().__init__(to)
        self.count = count


class SessionState(Answer):
    """The state of a session as it was last set; None: it has none."""

    def __init__(self, to: int, state: bytes | None) -> None:
        super().__init__(to)
        self.state = state


class SessionNames(Answer):
    def __init__(self, to: int, names: list[str]) -> None:
        super().__init__(to)
        self.names = names


class Rules(Answer):
    def __init__(self, to: int, rules: list[Rule]) -> None:
        super().__init__(to)
        self.rules = rules


class Description:
    """An entity as an administrator sees it. The settings are the entity's own: copy them before a change."""

    def __init__(self, kind: str, path: str, settings: EntitySettings, counters: Counters) -> None:
        self.kind = kind
        self.path = path
        self.settings = settings
        self.counters = counters  # a copy
        self.dead_letter_count = 0
        self.size_bytes = 0  # with everything below it
        self.subscription_count = 0
        self.sql_filter_count = 0  # of a topic: all rules but those with a correlation filter
        self.correlation_filter_count = 0


class Descriptions(Answer):
    """`has_more`: there are others behind these."""

    def __init__(self, to: int, descriptions: list[Description], has_more: bool) -> None:
        super().__init__(to)
        self.descriptions = descriptions
        self.has_more = has_more


class Swallowed(Answer):
    """No answer, on purpose: whoever asked hears nothing, and the request is forgotten."""


class Dropped(Answer):
    """No answer either: the connection of this link or request is cut, without a word."""


class FaultsListed(Answer):
    def __init__(self, to: int, reports: list[FaultReport]) -> None:
        super().__init__(to)
        self.reports = reports


class Restarted(Effect):
    """Every connection of the namespace is closed, as by a node that restarts."""

    def __init__(self, text: str) -> None:
        super().__init__(0)
        self.text = text


class LedgerPage(Answer):
    """Rows of the ledger; those before the minute `sealed_before` are in sealed days. Damaged ones are left out.

    `after`: where the next page goes on, None if this was the last.
    """

    def __init__(
        self,
        to: int,
        rows: list[LedgerRow],
        after: tuple[int, str, int] | None,
        sealed_before: int,
        damaged_count: int,
    ) -> None:
        super().__init__(to)
        self.rows = rows
        self.after = after
        self.sealed_before = sealed_before
        self.damaged_count = damaged_count


class Load(Effect):
    """Ask the store; to be submitted right behind the turn that decided it. `to` is the load's own number."""

    def __init__(self, load_id: int, query: Query) -> None:
        super().__init__(load_id)
        self.query = query


class AccessChanged(Effect):
    """An entity has these shared access rules from now on, and no others. Not for a link: for whoever checks rights."""

    def __init__(self, scope: str, rules: list[AccessRule]) -> None:
        super().__init__(0)
        self.scope = scope
        self.rules = rules


class Report(Effect):
    """Something an operator must hear of: a corrupt row, for one. Or may want to know of, if it is no alarm."""

    def __init__(self, text: str, is_alarm: bool = True) -> None:
        super().__init__(0)
        self.text = text
        self.is_alarm = is_alarm
