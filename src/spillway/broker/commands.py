"""Commands: what can be asked of the broker. Links and requests are opaque numbers, unique in the process."""

from typing import Final

from spillway.model import limits
from spillway.model.entity import EntitySettings
from spillway.model.errors import BrokerError
from spillway.model.faults import Fault
from spillway.model.message import Message
from spillway.model.records import Rows
from spillway.model.rules import Rule
from spillway.model.settlement import Settlement

# What a client did with its credit (`Credit.asks`), for the ledger.
NOT_ASKED: Final = 0
ASKS_MORE: Final = 1  # it granted more than before
ASKS_AGAIN: Final = 2  # it granted what it had granted, or less: another call begins
ASKS_NOTHING: Final = 3  # it took back what was left


ITEM_BYTES: Final = 256  # what a message, lock token or number that a command brings weighs besides: it is work


class Command:
    """`size_bytes` is what it weighs against the bytes a peer may bring into one turn: its bytes, or the work of it."""

    def __init__(self) -> None:
        self.size_bytes = 0


class SessionWish:
    """Which message session a receiver wants: the named one, or (None) the next free one with messages.

    For the next one it waits as long as `timeout_ms`.
    """

    def __init__(self, session_id: str | None, timeout_ms: int) -> None:
        self.session_id = session_id
        self.timeout_ms = timeout_ms


# -- over links -------------------------------------------------------------------------------------------------


class AttachSender(Command):
    """A client wants to send to `path`. Answered by `Attached` or `Refused`."""

    def __init__(self, link_id: int, path: str) -> None:
        super().__init__()
        self.link_id = link_id
        self.path = path


class AttachReceiver(Command):
    """A client wants to receive from `path`; `deletes` is ReceiveAndDelete, else PeekLock. `Attached` or `Refused`."""

    def __init__(self, link_id: int, path: str, deletes: bool, session: SessionWish | None = None) -> None:
        super().__init__()
        self.link_id = link_id
        self.path = path
        self.deletes = deletes
        self.session = session


class DetachLink(Command):
    """The link is gone, in order or not. Its locks live on to their end (contract H13).

    Not answered, unless an error is given: by `Detached` with it, behind the answers to all that was sent before.
    """

    def __init__(self, link_id: int, error: BrokerError | None = None) -> None:
        super().__init__()
        self.link_id = link_id
        self.error = error


class Send(Command):
    """One message or a batch, stored all or not at all. Answered by `SendSettled`, unless it came pre-settled."""

    def __init__(
        self, link_id: int, delivery_id: int, messages: list[Message], is_settled: bool, size_bytes: int
    ) -> None:
        super().__init__()
        self.link_id = link_id
        self.delivery_id = delivery_id
        self.messages = messages
        self.is_settled = is_settled
        self.size_bytes = size_bytes + len(messages) * ITEM_BYTES


class Credit(Command):
    """This link may be handed `limit` deliveries in all, counted since it was attached; `drains` asks for `Drained`.

    `asks` says what the client has done for it; NOT_ASKED: nothing, the limit is moved by us. `number` counts what the
    core was told of this link: `Drained` says up to which of them it was decided.
    """

    def __init__(self, link_id: int, limit: int, drains: bool, asks: int = NOT_ASKED, number: int = 0) -> None:
        super().__init__()
        self.link_id = link_id
        self.limit = limit
        self.drains = drains
        self.asks = asks
        self.number = number


class Settle(Command):
    """Settle one delivery of this link. Answered by `Settled`, unless the client has settled already."""

    def __init__(
        self, link_id: int, delivery_id: int, lock_token: bytes, settlement: Settlement, is_settled: bool
    ) -> None:
        super().__init__()
        self.link_id = link_id
        self.delivery_id = delivery_id
        self.lock_token = lock_token
        self.settlement = settlement
        self.is_settled = is_settled
        if settlement.properties is not None:
            self.size_bytes = settlement.changed_bytes()


class Undelivered(Command):
    """A `Deliver` effect found its link gone: unlock, do not count the delivery. Never answered."""

    def __init__(self, path: str, lock_token: bytes) -> None:
        super().__init__()
        self.path = path
        self.lock_token = lock_token


# -- requests, answered by `Answer` with the same request_id ------------------------------------------------------


class Request(Command):
    def __init__(self, request_id: int, path: str) -> None:
        super().__init__()
        self.request_id = request_id
        self.path = path
        self.is_administrative = False  # from who runs the namespace, not from one of its clients


class RenewLocks(Request):
    """Answered by `Renewed`: the new ends, in the order asked. All or none."""

    def __init__(self, request_id: int, path: str, lock_tokens: list[bytes], session_id: str | None = None) -> None:
        super().__init__(request_id, path)
        self.lock_tokens = lock_tokens
        self.session_id = session_id
        self.size_bytes = len(lock_tokens) * ITEM_BYTES


class Peek(Request):
    """Browse from a sequence number on, any state. Answered by `Messages`."""

    def __init__(
        self, request_id: int, path: str, from_sequence_number: int, count: int, session_id: str | None = None
    ) -> None:
        super().__init__(request_id, path)
        self.from_sequence_number = from_sequence_number
        self.count = count
        self.session_id = session_id


class Schedule(Request):
    """Messages that carry their due time. All or none. Answered by `Scheduled`."""

    def __init__(self, request_id: int, path: str, messages: list[Message], size_bytes: int) -> None:
        super().__init__(request_id, path)
        self.messages = messages
        self.messages_bytes = size_bytes
        self.size_bytes = size_bytes + len(messages) * ITEM_BYTES


class CancelScheduled(Request):
    """Cancels all of these scheduled messages or none. Answered by `Done`."""

    def __init__(self, request_id: int, path: str, sequence_numbers: list[int]) -> None:
        super().__init__(request_id, path)
        self.sequence_numbers = sequence_numbers
        self.size_bytes = len(sequence_numbers) * ITEM_BYTES


class ReceiveDeferred(Request):
    """Receives all of these deferred messages or none. Answered by `Messages`, with lock tokens unless `deletes`."""

    def __init__(
        self,
        request_id: int,
        path: str,
        sequence_numbers: list[int],
        deletes: bool,
        session_id: str | None = None,
    ) -> None:
        super().__init__(request_id, path)
        self.sequence_numbers = sequence_numbers
        self.deletes = deletes
        self.session_id = session_id
        self.size_bytes = len(sequence_numbers) * ITEM_BYTES


class UpdateDisposition(Request):
    """Settle by lock token, without a link. All or none. Answered by `Done`."""

    def __init__(
        self,
        request_id: int,
        path: str,
        lock_tokens: list[bytes],
        settlement: Settlement,
        session_id: str | None = None,
    ) -> None:
        super().__init__(request_id, path)
        self.lock_tokens = lock_tokens
        self.settlement = settlement
        self.session_id = session_id
        self.size_bytes = len(lock_tokens) * (ITEM_BYTES + settlement.changed_bytes())


class BatchDelete(Request):
    """Delete up to `count` unlocked active messages enqueued before `before_ms`, oldest first. `Deleted`."""

    def __init__(self, request_id: int, path: str, count: int, before_ms: int) -> None:
        super().__init__(request_id, path)
        self.count = count
        self.before_ms = before_ms


class SessionRequest(Request):
    """About one message session, whose lock somebody must hold."""

    def __init__(self, request_id: int, path: str, session_id: str) -> None:
        super().__init__(request_id, path)
        self.session_id = session_id


class RenewSession(SessionRequest):
    """Answered by `Renewed` with one end."""


class GetSessionState(SessionRequest):
    """Answered by `SessionState`."""


class SetSessionState(SessionRequest):
    """Sets the state of a session; None clears it. Answered by `Done`."""

    def __init__(self, request_id: int, path: str, session_id: str, state: bytes | None) -> None:
        super().__init__(request_id, path, session_id)
        self.state = state


class ListSessions(Request):
    """Sessions by name: their state changed since `since_ms`, or (NEVER) they have messages or a state. Answered by
    `SessionNames`."""

    def __init__(self, request_id: int, path: str, since_ms: int, skip: int, top: int) -> None:
        super().__init__(request_id, path)
        self.since_ms = since_ms
        self.skip = skip
        self.top = top


class CreateEntity(Request):
    """A queue, topic or subscription. Answered by `Done`, or `EntityAlreadyExists`."""

    def __init__(self, request_id: int, kind: str, path: str, settings: EntitySettings) -> None:
        super().__init__(request_id, path)
        self.kind = kind
        self.settings = settings


class UpdateEntity(Request):
    """New settings; every lock of the entity is dropped (contract H16), its rules stay. Answered by `Done`."""

    def __init__(self, request_id: int, path: str, settings: EntitySettings) -> None:
        super().__init__(request_id, path)
        self.settings = settings


class AddRule(Request):
    """Adds a rule to a subscription. Answered by `Done`."""

    def __init__(self, request_id: int, path: str, rule: Rule) -> None:
        super().__init__(request_id, path)
        self.rule = rule
        self.size_bytes = rule.compile_steps() * limits.RULE_STEP_BYTES


class RemoveRule(Request):
    """Answered by `Done`."""

    def __init__(self, request_id: int, path: str, name: str) -> None:
        super().__init__(request_id, path)
        self.name = name
        self.size_bytes = limits.RULE_STEPS * limits.RULE_STEP_BYTES


class ListRules(Request):
    """Answered by `Rules`, by name; with a name, that one alone if there is one."""

    def __init__(self, request_id: int, path: str, skip: int, top: int, name: str | None = None) -> None:
        super().__init__(request_id, path)
        self.skip = skip
        self.top = top
        self.name = name


class DeleteEntity(Request):
    """The entity, all that belongs to it and all messages; attached links are detached. Answered by `Done`."""


class Describe(Request):
    """Answered by `Descriptions` with one in it."""


class ListEntities(Request):
    """Entities of a kind, by name; of subscriptions, those of the topic `path`. Answered by `Descriptions`."""

    def __init__(self, request_id: int, kind: str, path: str, skip: int, top: int) -> None:
        super().__init__(request_id, path)
        self.kind = kind
        self.skip = skip
        self.top = top


class Administer(Request):
    """May an administrator's request about `path` go on? "": about no single entity. It is counted as an operation.

    Answered by `Done`, by `Failed` while the namespace is busy, or as a fault wants it: `Failed`, `Swallowed`,
    `Dropped`.
    """


class InjectFault(Request):
    """Something goes wrong on purpose from now on. Answered by `FaultsListed` with one in it."""

    def __init__(self, request_id: int, fault: Fault) -> None:
        super().__init__(request_id, fault.path)
        self.fault = fault


class RemoveFaults(Request):
    """The one with this number, or (0) all of them. Answered by `FaultsListed` with those that were removed."""

    def __init__(self, request_id: int, number: int) -> None:
        super().__init__(request_id, "")
        self.number = number


class ListFaults(Request):
    """Asks for all faults, in the order they were injected. Answered by `FaultsListed`."""


class Meter(Request):
    """Count one operation of this kind at the entity `path`, at `otherwise` if there is none. Answered by `Done`."""

    def __init__(self, request_id: int, path: str, kind: int, otherwise: str) -> None:
        super().__init__(request_id, path)
        self.kind = kind
        self.otherwise = otherwise


class ReadLedger(Request):
    """Rows of the ledger that are in no sealed day, up to this moment; see `LoadLedger`. Answered by `LedgerPage`."""

    def __init__(self, request_id: int, since: int, until: int, after: tuple[int, str, int], count: int) -> None:
        super().__init__(request_id, "")
        self.since = since
        self.until = until
        self.after = after
        self.count = count


# -- from the pump ---------------------------------------------------------------------------------------------


class Loaded(Command):
    """The store's answer to the effect `Load` with the same number."""

    def __init__(self, load_id: int, rows: Rows) -> None:
        super().__init__()
        self.load_id = load_id
        self.rows = rows


class SaveLedger(Command):
    """A second has passed: remember what was counted, though there may be nothing else to remember."""


class DiskMeasured(Command):
    """The disk has room for so much, what is on its way to it already taken off."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__()
        self.free_bytes = free_bytes


class MemoryMeasured(Command):
    """What the process has in memory now."""

    def __init__(self, bytes_used: int) -> None:
        super().__init__()
        self.bytes_used = bytes_used
