"""One client: what its connection tells becomes commands, what the broker wants said becomes frames.

The peer owns the AMQP connection and everything that is Service Bus about it. It finds whom an event or an effect is
for: messages, credit and settlements are the links' (`sending`, `receiving`), rights are in `auth_state`, requests in
`nodes`. It decides nothing about messages. A fault of ours inside it is raised after the connection was closed in
order, for the owner to log; a client's fault never is.
"""

from typing import TYPE_CHECKING, Final

from spillway.amqp.connection import ALL_FRAMES, Connection, ConnectionOptions
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    DispositionReceived,
    FlowReceived,
    LinkDetached,
    SaslRequested,
    SessionEnded,
    TransferAborted,
    TransferReceived,
    TransferTooLarge,
)
from spillway.amqp.link import Link
from spillway.amqp.performatives import RELEASED, Received
from spillway.broker.commands import Command
from spillway.broker.effects import (
    Answer,
    Attached,
    Deliver,
    Detached,
    Drained,
    Dropped,
    Effect,
    Paced,
    Refused,
    SendSettled,
    SettlementAnswered,
    Swallowed,
)
from spillway.dialect import sasl
from spillway.dialect.addresses import CBS, shown
from spillway.dialect.attaching import Attaching, Directory, MissingEntities, shown_address
from spillway.dialect.audit import Audit, NoAudit
from spillway.dialect.auth_state import AuthState
from spillway.dialect.errors import Tracker, amqp_error
from spillway.dialect.links import IncomingLink, PeerLink, ReplyLink, RequestLink
from spillway.dialect.nodes import Ids, Nodes
from spillway.dialect.outbox import Outbox
from spillway.dialect.outcomes import settlement_of
from spillway.dialect.receiving import ClientReceiver, ReceiverGroup
from spillway.dialect.rights import Rights
from spillway.dialect.sending import ClientSender
from spillway.model import limits
from spillway.model.budget import Account, lone_account
from spillway.model.errors import (
    BrokerError,
    ConnectionForced,
    InternalError,
    QuotaExceeded,
    Unauthorized,
)
from spillway.model.quotas import Quotas
from spillway.model.settlement import Settlement

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int where it is not compiled

INCOMING_WINDOW: Final = (1 << 31) - 1  # Python counts its transfers in its own way: never let it see an end


class PeerOptions:
    """`namespace` is what error texts call us: `sb://<namespace>/<entity>`."""

    def __init__(
        self,
        namespace: str,
        quotas: Quotas | None = None,
        audit: Audit | None = None,
        account: Account | None = None,
    ) -> None:
        self.namespace = namespace
        self.account = account
        self.container_id = namespace
        self.quotas = quotas or Quotas()
        self.audit: Audit = NoAudit() if audit is None else audit


class Peer:
    def __init__(
        self,
        options: PeerOptions,
        directory: Directory,
        rights: Rights,
        ids: Ids,
        tracker: Tracker,
        is_clear_text_allowed_for_plain: bool,
        now_ms: int,
    ) -> None:
        self.options = options
        self.ids = ids
        self.tracker = tracker
        self.is_plain_allowed = is_clear_text_allowed_for_plain
        self.account = options.account or lone_account()
        self.account.charge(limits.CONNECTION_BYTES)
        self.connection = Connection(_connection_options(options), True, now_ms, self.account)
        self.missing = MissingEntities(options.namespace, directory)
        self.now_ms = now_ms
        self.ends_ms = 0  # too many bad tokens were put: when the connection is closed for it
        self.auth_state = AuthState(rights, self.connection, options.quotas, self.account)
        self.outbox = Outbox()
        self.receivers = ReceiverGroup(self.outbox, self.account)
        self.attaching = Attaching(self.missing, tracker, self.outbox, self.receivers)
        self.audit = options.audit
        self.nodes = Nodes(self.auth_state, self.outbox, ids, tracker, options.audit, self.missing)
        self.is_socket_gone = False  # its socket has gone: nobody would hear an answer
        self.refusal: BrokerError | None = None  # why it cannot stay: what it hears when it asks for a link
        self.links: dict[int, PeerLink] = {}
        self.dispatching_at = 0  # in what `dispatch_run` was handed

    # -- what the pump asks -----------------------------------------------------------------------------------------

    @property
    def has_commands(self) -> bool:
        return len(self.outbox.commands) > 0

    @property
    def is_closed(self) -> bool:
        return self.connection.is_closed

    @property
    def is_closing(self) -> bool:
        """Closed, or told so: nothing that comes is for us."""
        return self.connection.is_closing

    @property
    def is_authorised(self) -> bool:
        return self.auth_state.is_authorised

    @property
    def frames_count(self) -> int:
        """How many frames the client has sent."""
        return self.connection.frames_count

    @property
    def frames_weight(self) -> int:
        """The same by the work that they ask for."""
        return self.connection.frames_weight

    @property
    def has_unread(self) -> bool:
        """Frames were received and not read: `receive` goes on with them, also without more data."""
        return self.connection.is_cut

    @property
    def is_overasked(self) -> bool:
        """It asks for more than it takes the answers of: what it sends is refused, and read slowly."""
        return self.nodes.is_overasked

    @property
    def is_writable(self) -> bool:
        """The client reads what is written to it."""
        return self.receivers.is_writable

    @property
    def unread_bytes(self) -> int:
        return self.connection.bytes_kept

    def receive(self, data: bytes, now_ms: int, frames_max: int = ALL_FRAMES) -> None:
        """At most `frames_max` frames are read; the rest is kept, and read on with when no bytes come."""
        self.now_ms = now_ms
        try:
            if self.auth_state.next_expiry_ms and self.auth_state.has_expired(now_ms):
                self._expire_tokens(now_ms)
            self.connection.receive(data, now_ms, frames_max)
            self._handle_events(now_ms)
            if self.receivers.window_bound:
                self.receivers.advertise_window_bound()
            if self.nodes.holding or self.nodes.browse_later:
                self.nodes.send_held()
        except Exception:
            self._break()
            raise

    def pop_commands(self, count_max: int, bytes_max: int) -> list[Command]:
        return self.outbox.pop_commands(count_max, bytes_max)

    def is_attached(self, number: int) -> bool:
        """The client was told that the link is there, and neither side has ended it."""
        user = self.links.get(number)
        return user is not None and user.link.is_open

    def dispatch(self, effect: Effect, now_ms: int) -> bool:
        """Say it. False: the link or request is gone, or the client has taken back the credit for a delivery."""
        self.now_ms = now_ms
        try:
            if self.auth_state.next_expiry_ms and self.auth_state.has_expired(now_ms):
                self._expire_tokens(now_ms)
            user = self.links.get(effect.to)
            if user is None:
                return self._dispatch_to_request(effect, now_ms)
            if isinstance(effect, Deliver):
                assert isinstance(user, ClientReceiver), "deliveries go to receivers"
                return user.deliver(effect)
            if isinstance(effect, SendSettled):
                assert isinstance(user, ClientSender), "sends are senders'"
                user.answer(effect, now_ms)
                return True
            if isinstance(effect, SettlementAnswered):
                assert isinstance(user, ClientReceiver), "settlements are receivers'"
                user.echo(effect, now_ms)
                return True
            return self._dispatch_to_link(user, effect, now_ms)
        except Exception:
            self._break()
            raise

    def dispatch_run(self, effects: list[Effect], at: int, now_ms: int, refused: list[Effect]) -> int:
        """Say what each message brings, one after the other from `at` on; those of which `dispatch` would say False
        are added to `refused`.

        Returns where it stopped, which may be where it began: at what is for somebody else, or comes seldom. After an
        exception `dispatching_at` is where it was.
        """
        self.now_ms = now_ms
        self.dispatching_at = at
        if self.auth_state.next_expiry_ms and self.auth_state.has_expired(now_ms):
            return at  # links end first
        index: i64 = at
        end: i64 = len(effects)
        number = -1
        user: PeerLink | None = None
        try:
            while index < end:
                effect = effects[index]
                if effect.to != number:
                    number = effect.to
                    user = self.links.get(number)
                if user is None:
                    break
                self.dispatching_at = index
                if isinstance(effect, Deliver):
                    assert isinstance(user, ClientReceiver), "deliveries go to receivers"
                    if not user.deliver(effect):
                        refused.append(effect)
                elif isinstance(effect, SendSettled):
                    assert isinstance(user, ClientSender), "sends are senders'"
                    user.answer(effect, now_ms)
                elif isinstance(effect, SettlementAnswered):
                    assert isinstance(user, ClientReceiver), "settlements are receivers'"
                    user.echo(effect, now_ms)
                else:
                    break
                index += 1
        except Exception:
            self._break()
            raise
        return index

    def drain_output(self) -> list[bytes]:
        if self.account.is_over and not self.account.is_closed:
            self._close(QuotaExceeded(self.account.why()))
        return self.connection.drain_output()

    def set_writable(self, is_writable: bool, now_ms: int) -> None:
        """While the client does not read, the core sees no credit of its links."""
        if is_writable == self.is_writable:
            return
        self.receivers.is_writable = is_writable
        self.nodes.set_writable(is_writable)
        for link in self.links.values():
            if isinstance(link, ClientReceiver):
                link.on_writable()

    def next_due_ms(self) -> int:
        due_ms = self.connection.next_due_ms()
        for other_ms in (self.auth_state.next_due_ms(), self.ends_ms):
            if other_ms > 0 and (due_ms == 0 or other_ms < due_ms):
                due_ms = other_ms
        return due_ms

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        try:
            self.connection.tick(now_ms)
            self._handle_events(now_ms)
            if self.auth_state.next_expiry_ms and self.auth_state.has_expired(now_ms):
                self._expire_tokens(now_ms)
            if 0 < self.ends_ms <= now_ms:
                self._end_for_bad_tokens()
            if 0 < self.auth_state.unauthorised_until_ms <= now_ms:
                self.auth_state.unauthorised_until_ms = 0
                self._close(Unauthorized("The last token of this connection ran out and was not renewed."))
        except Exception:
            self._break()
            raise

    def review(self, now_ms: int) -> None:
        """Shared access rules have changed: what they no longer allow ends here and now."""
        self.now_ms = now_ms
        try:
            self.auth_state.review(now_ms)
            self._end_unauthorised("The shared access rule or key of this link has changed or gone. ", now_ms)
        except Exception:
            self._break()
            raise

    def last_words(self) -> None:
        """The socket has gone, and what it brought is about to be read. Sends and settlements count; who asks for
        something cannot be answered any more, and is not asked for."""
        self.is_socket_gone = True

    def lost(self) -> None:
        """The socket has gone."""
        self._unregister_all()
        self._release()

    def close(self, error: BrokerError | None) -> None:
        """End in order: the client is told why and connects again."""
        self._close(error or ConnectionForced("The broker is shutting down. Connect again."))

    def refuse(self, error: BrokerError) -> None:
        """It cannot stay. It is told so when it asks for a link: the SDKs show their users no close of a connection."""
        self.refusal = error

    def drain_registered(self) -> list[int]:
        return self.outbox.drain_registered()

    def drain_unregistered(self) -> list[int]:
        return self.outbox.drain_unregistered()

    # -- events of the connection -------------------------------------------------------------------------------------

    def _handle_events(self, now_ms: int) -> None:
        """Handling an event can bring new ones: an accepted link tells of the credit that came before."""
        events = self.connection.drain_events()
        while events:
            for event in events:
                self._on_event(event, now_ms)
            events = self.connection.drain_events()

    def _on_event(self, event: ConnectionEvent, now_ms: int) -> None:
        if isinstance(event, TransferReceived):
            user = event.link.user
            if isinstance(user, ClientSender):
                user.on_transfer(event, now_ms)
            elif isinstance(user, RequestLink):
                self._on_request(user, event, now_ms)
        elif isinstance(event, DispositionReceived):
            self._on_disposition(event, now_ms)
        elif isinstance(event, FlowReceived):
            user = event.link.user
            if isinstance(user, PeerLink) and event.link.is_open:
                user.on_credit(event.credit, event.drain)
        elif isinstance(event, AttachRequested):
            self._on_attach(event.link, now_ms)
        elif isinstance(event, LinkDetached):
            self._unregister_link(event.link)
        elif isinstance(event, SessionEnded):
            for link in list(event.session.links.values()):
                self._unregister_link(link)
        elif isinstance(event, TransferTooLarge):
            user = event.link.user
            if isinstance(user, IncomingLink):
                user.on_too_large(event, now_ms)
        elif isinstance(event, TransferAborted):
            user = event.link.user
            if isinstance(user, IncomingLink):
                user.top_up()  # what was not a message has used up credit too
        elif isinstance(event, ConnectionOpened):
            self.missing.called(event.open.hostname)
            # What it says of itself is not for us, and not for us to keep.
            event.open.properties = None
            event.open.offered_capabilities = event.open.desired_capabilities = None
            event.open.outgoing_locales = event.open.incoming_locales = None
            event.open.container_id = ""
            event.open.hostname = None
        elif isinstance(event, SaslRequested):
            self._on_sasl(event)
        elif isinstance(event, ConnectionClosed):
            self._unregister_all()
            self._release()

    def _on_sasl(self, event: SaslRequested) -> None:
        verdict = sasl.judge(event.mechanism, event.response, self.auth_state.rights, self.is_plain_allowed)
        for grant in verdict.grants:
            self.auth_state.allow(grant)
        if verdict.code != sasl.OK:
            self.audit.refused("sasl", verdict.name, "", f"SASL {shown(event.mechanism)} failed")
        self.connection.sasl_done(verdict.code)

    # -- settlements ------------------------------------------------------------------------------------------------

    def _on_disposition(self, event: DispositionReceived, now_ms: int) -> None:
        state = event.state
        settlement: Settlement | None = None
        refusal: BrokerError | None = None
        if state is None or isinstance(state, Received):
            if not event.settled:
                return
            state = RELEASED  # settled without an outcome: given back, the one thing that loses nothing
        try:
            settlement = settlement_of(state)
        except BrokerError as error:
            refusal = error
        for delivery in event.deliveries:
            user = delivery.link.user
            if not isinstance(user, ClientReceiver):
                continue
            if settlement is not None:
                user.settle(delivery, settlement, event.settled)
            elif refusal is not None and not event.settled:
                user.refuse_settlement(delivery, refusal, now_ms)

    # -- links ----------------------------------------------------------------------------------------------------

    def _on_attach(self, link: Link, now_ms: int) -> None:
        if link.is_detached:
            return  # attached and detached in one breath: events come behind what the connection knows already
        try:
            opening = self.attaching.open_link(link, self.ids.next())
            user = opening.link
            if self.refusal is not None and user.address.node != CBS:
                raise self.refusal
            self._check_rights(user, now_ms)
            self.missing.check(user.address)  # the core would say the same, but does not know what we are called
        except BrokerError as error:
            link.refuse(amqp_error(error, self.tracker, shown_address(link), now_ms))
            link.release_attach()
            return
        link.user = user
        self.links[user.number] = user
        if opening.command is not None:
            self.outbox.registered.append(user.number)
            self.outbox.commands.append(opening.command)
        else:  # a link to `$cbs`, `$management` or where nothing ever is ends here, not in the core
            if isinstance(user, ReplyLink):
                self.nodes.add_reply(user)
            self.attaching.accept(user)

    def _check_rights(self, user: PeerLink, now_ms: int) -> None:
        if user.rights == 0:
            assert user.address.node == CBS, "everything but $cbs needs a right"
            return
        denied = self.auth_state.denial(user.scope, user.rights, now_ms)
        if denied is not None:
            self.audit.refused("attach", self.auth_state.rule_names(), user.scope, denied.description)
            raise denied

    def _unregister_link(self, link: Link) -> None:
        """The link has ended. It refers no longer to what was kept for it: that is freed now, not when garbage is next
        collected."""
        user = link.user
        link.user = None
        if not isinstance(user, PeerLink) or user.number not in self.links:
            return
        del self.links[user.number]
        if isinstance(user, ReplyLink):
            self.nodes.remove_reply(user)
        else:
            user.leave()

    def _end_link(self, user: PeerLink, error: BrokerError, now_ms: int) -> None:
        user.link.detach(user.amqp_error(error, now_ms))
        self._unregister_link(user.link)

    def _unregister_all(self) -> None:
        for user in list(self.links.values()):
            self._unregister_link(user.link)
        self.nodes.abandon_requests()

    # -- requests ---------------------------------------------------------------------------------------------------

    def _on_request(self, node: RequestLink, event: TransferReceived, now_ms: int) -> None:
        if self.is_socket_gone:
            return
        try:
            self.nodes.on_request(node, event, now_ms)
        except BrokerError as error:
            node.reject(event.delivery_id, event.settled, error, now_ms)
        self._end_overfull(now_ms)
        if self.nodes.bad_tokens_count >= limits.BAD_TOKENS_MAX and self.ends_ms == 0:
            self.ends_ms = now_ms + limits.BAD_TOKENS_GRACE_MS

    def _end_for_bad_tokens(self) -> None:
        self.ends_ms = 0
        if not self.is_authorised and not self.is_closing:
            text = f"{self.nodes.bad_tokens_count} tokens were put to this connection and none was good."
            self.audit.refused("connection", "", "", text)
            self._close(Unauthorized(text))

    def _answer(self, answer: Answer, now_ms: int) -> bool:
        is_sent = self.nodes.answer(answer, now_ms)
        self._end_overfull(now_ms)
        return is_sent

    def _end_overfull(self, now_ms: int) -> None:
        while self.nodes.overfull:
            text = "Too many answers wait for credit on this link: grant some before asking for more."
            self._end_link(self.nodes.overfull.pop(), QuotaExceeded(text), now_ms)

    # -- effects ----------------------------------------------------------------------------------------------------

    def _dispatch_to_link(self, user: PeerLink, effect: Effect, now_ms: int) -> bool:
        """What concerns the link itself, not one of its messages."""
        if isinstance(effect, Drained):
            assert isinstance(user, ClientReceiver), "credit is drained from receivers"
            user.drained(effect.number)
        elif isinstance(effect, Paced):
            assert isinstance(user, ClientSender), "senders are paced"
            user.pace(effect.is_held)
        elif isinstance(effect, Attached):
            self.attaching.accept(user, effect)
            self._handle_events(now_ms)
        elif isinstance(effect, Refused):
            user.link.refuse(user.amqp_error(effect.error, now_ms))
            user.link.release_attach()
            self._unregister_link(user.link)
        elif isinstance(effect, Detached):
            if isinstance(user, ClientSender) and user.ending is None:
                user.begin_to_end(effect.error)
            else:
                self._end_link(user, effect.error, now_ms)
        else:
            assert isinstance(effect, Dropped), f"{type(effect).__name__} is not for a link"
            return False  # the socket is not ours to cut
        return True

    def _dispatch_to_request(self, effect: Effect, now_ms: int) -> bool:
        if isinstance(effect, Detached):
            return self._end_node(effect, now_ms)
        return isinstance(effect, Answer) and not isinstance(effect, Dropped) and self._answer(effect, now_ms)

    def _end_node(self, effect: Detached, now_ms: int) -> bool:
        """Instead of an answer to a request, both links to the node end, and whatever was asked over them."""
        reply = self.nodes.reply_of(effect.to)
        if reply is None:
            return False
        self.nodes.answer(Swallowed(effect.to), now_ms)
        for user in list(self.links.values()):
            if isinstance(user, (RequestLink, ReplyLink)) and user.is_beside(reply):
                self._end_link(user, effect.error, now_ms)
        return True

    # -- ends -------------------------------------------------------------------------------------------------------

    def _expire_tokens(self, now_ms: int) -> None:
        """Links live as long as their token: nothing is said on them after it ran out."""
        self.auth_state.expire(now_ms)
        self._end_unauthorised("The token of this link has expired. ", now_ms)

    def _end_unauthorised(self, why: str, now_ms: int) -> None:
        for user in list(self.links.values()):
            if user.rights:
                denied = self.auth_state.denial(user.scope, user.rights, now_ms)
                if denied is not None:
                    self._end_link(user, Unauthorized(why + denied.description), now_ms)

    def _close(self, error: BrokerError) -> None:
        self._unregister_all()
        self.connection.close(amqp_error(error, self.tracker, self.options.namespace, self.now_ms))
        self._release()

    def _break(self) -> None:
        """A fault of ours: end this connection and no other. The owner hears of it by the exception."""
        self._unregister_all()
        self.connection.close(AmqpError(InternalError.condition, "The broker met a fault of its own. Connect again."))
        self._release()

    def _release(self) -> None:
        """It is closed: nothing of it is held, though its socket may be there for a while."""
        self.connection.release()
        self.auth_state.release()
        self.account.close()


def _connection_options(options: PeerOptions) -> ConnectionOptions:
    return ConnectionOptions(
        container_id=options.container_id,
        max_frame_size=limits.FRAME_BYTES_MAX,
        channel_max=limits.CHANNEL_MAX,
        handle_max=limits.HANDLE_MAX,
        idle_timeout_ms=limits.IDLE_TIMEOUT_MS,
        sasl_mechanisms=list(sasl.MECHANISMS),
        incoming_window=INCOMING_WINDOW,
    )
