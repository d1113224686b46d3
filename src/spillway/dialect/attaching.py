"""What a client wants with a link: an entity, its `$management` node, or `$cbs` (docs/wire.md, "Links")."""

from typing import Final, Protocol

from spillway.amqp.link import Link
from spillway.amqp.performatives import SND_SETTLED, Coordinator, Source, Target
from spillway.amqp.types import Described, Int, Symbol
from spillway.broker.commands import AttachReceiver, AttachSender, Command, SessionWish
from spillway.broker.effects import Attached
from spillway.dialect import cbs, management
from spillway.dialect.addresses import CBS, ENTITY, Address, parse_address, shown, strip_authority
from spillway.dialect.annotations import (
    ENTITY_TYPE,
    ENTITY_TYPE_QUEUE,
    ENTITY_TYPE_SUBSCRIPTION,
    ENTITY_TYPE_TOPIC,
    LOCKED_UNTIL_UTC,
    SESSION_FILTER,
    TIMEOUT,
)
from spillway.dialect.errors import Tracker
from spillway.dialect.links import EmptyReceiver, PeerLink, ReplyLink, RequestLink
from spillway.dialect.outbox import Outbox
from spillway.dialect.receiving import ClientReceiver, ReceiverGroup
from spillway.dialect.rights import ANY, LISTEN, SEND
from spillway.dialect.sending import ClientSender
from spillway.model import limits
from spillway.model.entity import DEAD_LETTER_SUFFIX, dead_letter_path, split_subscription
from spillway.model.errors import ArgumentError, NotAllowed, NotImplementedHere, entity_not_found

SESSION_WAIT_MS_DEFAULT: Final = 60_000
SESSION_WAIT_MS_MAX: Final = 24 * 3_600_000
REPLY_ADDRESS_CHARS_MAX: Final = 1_024  # kept for as long as the link lives
HOST_CHARS_MAX: Final = 255  # of a DNS name
# .NET counts 100 ns since the year 1.
TICKS_PER_MS: Final = 10_000
TICKS_AT_1970: Final = 621_355_968_000_000_000


class Directory(Protocol):
    """A read-only view of the namespace."""

    def exists(self, path: str) -> bool: ...


class Opening:
    """A link that may be opened if `link.rights` are held: in the core by `command`, or here when there is none."""

    def __init__(self, link: PeerLink, command: Command | None) -> None:
        self.link = link
        self.command = command


class MissingEntities:
    """Refuses what is not there. `host` is what the client calls us, and error texts call us the same."""

    def __init__(self, host: str, directory: Directory) -> None:
        self.host = host
        self.directory = directory

    def called(self, host: str | None) -> None:
        """The client says whom it has connected to."""
        if host and len(host) <= HOST_CHARS_MAX and host.isascii() and host.isprintable():
            self.host = host

    def check(self, address: Address) -> None:
        # Topics have no dead letters.
        path = dead_letter_path(address.transfer_of) if address.transfer_of else address.path
        if address.node != CBS and not self.directory.exists(path):
            raise entity_not_found(self.host, shown(address.path))

    def entity_type(self, link: PeerLink) -> int:
        """What the answer to an attach calls the entity (docs/wire.md, "Client receivers")."""
        address = link.address
        if split_subscription(address.path)[0]:
            return ENTITY_TYPE_SUBSCRIPTION
        if address.node == CBS or isinstance(link, ClientReceiver) or address.key.endswith(DEAD_LETTER_SUFFIX.lower()):
            return ENTITY_TYPE_QUEUE
        # Nobody receives from a topic, so it has no dead-letter queue.
        has_dead_letters = self.directory.exists(dead_letter_path(address.path))
        return ENTITY_TYPE_QUEUE if has_dead_letters else ENTITY_TYPE_TOPIC


class Attaching:
    """Opens the links that a client asks for, gives each what it needs, and answers their attaches."""

    def __init__(self, missing: MissingEntities, tracker: Tracker, outbox: Outbox, receivers: ReceiverGroup) -> None:
        self.missing = missing
        self.tracker = tracker
        self.outbox = outbox
        self.receivers = receivers

    def open_link(self, link: Link, number: int) -> Opening:
        """`BrokerError` if it is nothing we know. Whether the client may have it is for the caller to ask."""
        attach = link.attach
        assert attach is not None, "a requested link has its attach"
        if link.is_sender:
            return self._open_receiver(link, number, attach.source, attach.target)
        target = attach.target
        if isinstance(target, Coordinator):
            raise NotImplementedHere("Transactions are not supported: this broker has no coordinator.")
        if not isinstance(target, Target):
            raise ArgumentError("A sender needs a target: the address of a queue or topic.")
        address = _address_of(target.address, target.dynamic)
        if address.node == ENTITY and address.transfer_of:
            raise NotAllowed(f"'{shown(address.path)}' is a dead-letter queue: it is received from, never sent to.")
        if address.node == ENTITY:
            sender = ClientSender(number, link, address, SEND, self.tracker, self.outbox)
            return Opening(sender, AttachSender(number, address.path))
        self.missing.check(address)
        return Opening(RequestLink(number, link, address, _rights_on(address), self.tracker), None)

    def _open_receiver(self, link: Link, number: int, source: Source | None, target: object) -> Opening:
        if source is None:
            raise ArgumentError("A receiver needs a source: the address of a queue or subscription.")
        address = _address_of(source.address, source.dynamic)
        if address.node == ENTITY and address.transfer_of:
            source.filter = None
            return Opening(EmptyReceiver(number, link, address, LISTEN, self.tracker), None)
        if address.node == ENTITY:
            assert link.attach is not None, "a requested link has its attach"
            deletes = link.attach.snd_settle_mode == SND_SETTLED  # this alone tells the modes apart
            receiver = ClientReceiver(number, link, address, LISTEN, self.tracker, self.receivers, deletes)
            session = _read_session(source, link.attach.properties, receiver)
            return Opening(receiver, AttachReceiver(number, address.path, deletes, session))
        self.missing.check(address)
        target_address = target.address if isinstance(target, Target) else None
        if target_address is not None and len(target_address) > REPLY_ADDRESS_CHARS_MAX:
            raise ArgumentError(f"The target of a link for answers has at most {REPLY_ADDRESS_CHARS_MAX} characters.")
        rights = _rights_on(address)
        reply = ReplyLink(number, link, address, rights, self.tracker, target_address, shown(source.address or ""))
        return Opening(reply, None)

    def accept(self, user: PeerLink, effect: Attached | None = None) -> None:
        """Source and target are repeated as they came: Python compares addresses, and drops a link without them."""
        link = user.link
        attach = link.attach
        assert attach is not None, "a requested link has its attach"
        source = attach.source or Source()
        properties: dict[object, object] = {Symbol(ENTITY_TYPE): Int(self.missing.entity_type(user))}
        if effect is not None and effect.session_id is not None:
            # Which session it got, whatever it asked for, and until when (docs/wire.md, "Session receivers").
            assert isinstance(user, ClientReceiver), "sessions are received"
            source.filter = {Symbol(SESSION_FILTER): user.session_filter(effect.session_id)}
            properties[Symbol(LOCKED_UNTIL_UTC)] = effect.locked_until_ms * TICKS_PER_MS + TICKS_AT_1970
        link.accept(source, attach.target or Target(), properties, _message_bytes_max(user))
        link.release_attach()
        user.on_accepted()


def _rights_on(node: Address) -> int:
    return 0 if node.node == CBS else ANY


def _message_bytes_max(user: PeerLink) -> int:
    """What the answer to an attach says of the size of messages; 0: nothing."""
    if isinstance(user, ReplyLink):
        return 0
    if isinstance(user, RequestLink):
        return cbs.REQUEST_BYTES_MAX if user.address.node == CBS else management.REQUEST_BYTES_MAX
    return limits.MESSAGE_BYTES_MAX


def _address_of(address: str | None, dynamic: bool) -> Address:
    if dynamic:
        raise NotImplementedHere("Dynamic nodes are not supported: give the address of an entity.")
    if not address:
        raise ArgumentError("The address of a link must not be empty: give the name of an entity.")
    return parse_address(address)


def _read_session(
    source: Source, properties: dict[object, object] | None, receiver: ClientReceiver
) -> SessionWish | None:
    """Which session is wanted, if any. Only what is honoured may be repeated in the answer: other filters are not."""
    filters = source.filter
    source.filter = None
    if filters is None or SESSION_FILTER not in filters:
        return None
    wanted = filters[SESSION_FILTER]
    if isinstance(wanted, Described):
        receiver.session_descriptor = wanted.descriptor  # Go's form; it reads the answer in no other
        wanted = wanted.value
    if wanted is not None and not isinstance(wanted, str):
        raise ArgumentError("The session filter must be a string, or null for the next session that has messages.")
    if wanted is not None and len(wanted) > limits.SESSION_ID_CHARS_MAX:
        raise ArgumentError(f"A session id has at most {limits.SESSION_ID_CHARS_MAX} characters.")
    timeout_ms = None if properties is None else properties.get(TIMEOUT)
    if not isinstance(timeout_ms, int) or isinstance(timeout_ms, bool) or timeout_ms < 0:
        timeout_ms = SESSION_WAIT_MS_DEFAULT
    return SessionWish(None if wanted is None else str(wanted), min(int(timeout_ms), SESSION_WAIT_MS_MAX))


def shown_address(link: Link) -> str:
    """What the client asked for, for an error text."""
    attach = link.attach
    if attach is None:
        return ""
    if link.is_sender:
        return "" if attach.source is None else strip_authority(attach.source.address or "")
    target = attach.target
    return strip_authority(target.address or "") if isinstance(target, Target) else ""
