"""`$cbs` and `$management` of one connection: requests come in over one link, their answers go out over another.

Tokens are judged here. Requests to an entity become commands, and wait here for what the core answers.
"""

from collections import deque
from typing import Final, Protocol

from spillway.amqp.events import TransferReceived
from spillway.amqp.performatives import ACCEPTED
from spillway.broker.commands import Request
from spillway.broker.effects import Answer, Failed, Swallowed
from spillway.dialect import cbs, management
from spillway.dialect.addresses import CBS, strip_authority
from spillway.dialect.attaching import MissingEntities
from spillway.dialect.audit import Audit
from spillway.dialect.auth_state import AuthState
from spillway.dialect.errors import Tracker, tracked_text
from spillway.dialect.links import (
    HELD_REPLY_BYTES_MAX,
    HELD_REPLY_BYTES_UNAUTHENTICATED_MAX,
    PeerLink,
    ReplyLink,
    RequestLink,
)
from spillway.dialect.outbox import Outbox
from spillway.dialect.requests import RequestMessage, decode_request, encode_response
from spillway.dialect.rights import claimed_rule
from spillway.model.errors import BrokerError, EntityNotFound, NotAllowed, ServerBusy, Unauthorized

REQUEST_BYTES: Final = 1_000  # what a request takes in memory until it is answered, besides what it asks for
REQUESTS_MAX: Final = 1_000  # under way at once on one connection
REQUESTS_UNREAD_MAX: Final = 8  # under way while the client does not read: each may answer with a megabyte
BROWSING_MAX: Final = 2  # requests with large answers with the core at once: each may have megabytes
BROWSE_LATER_MAX: Final = 100  # and those that wait for them


class Ids(Protocol):
    """Link and request numbers, unique in the process."""

    def next(self) -> int: ...


class PendingRequest(management.Pending):
    """A request to the core, and the link its answer goes to."""

    def __init__(self, operation: str, correlation_id: object, path: str, omits_body: bool, reply: ReplyLink) -> None:
        super().__init__(operation, correlation_id, path, omits_body)
        self.reply = reply
        self.held_bytes = 0  # charged for it
        self.is_large = False


class Nodes:
    def __init__(
        self,
        auth_state: AuthState,
        outbox: Outbox,
        ids: Ids,
        tracker: Tracker,
        audit: Audit,
        missing: MissingEntities,
    ) -> None:
        self.auth_state = auth_state
        self.account = auth_state.account
        self.outbox = outbox
        self.ids = ids
        self.tracker = tracker
        self.audit = audit
        self.missing = missing
        self.bad_tokens_count = 0  # put since the last good one
        self.is_writable = True  # the client reads what we say
        self.requests: dict[int, PendingRequest] = {}
        self.replies: dict[str, list[ReplyLink]] = {}  # by session and node
        self.holding: dict[int, ReplyLink] = {}  # answers wait there for credit or the session's window
        self.overfull: list[ReplyLink] = []  # whose client takes no answers: to be ended
        self.browsing_count = 0  # requests with the core whose answers are large
        self.browse_later: deque[Request] = deque()  # such requests that wait for the others' answers

    # -- links ------------------------------------------------------------------------------------------------------

    def add_reply(self, reply: ReplyLink) -> None:
        self.replies.setdefault(_reply_key(reply), []).append(reply)

    def remove_reply(self, reply: ReplyLink) -> None:
        key = _reply_key(reply)
        self.replies[key].remove(reply)
        if not self.replies[key]:
            del self.replies[key]
        if self.holding.pop(reply.number, None) is not None:
            self._browse()
        self.account.charge(-reply.paid_bytes)
        reply.discard_held()

    def abandon_requests(self) -> None:
        """Nobody is there to hear their answers."""
        self.outbox.unregistered += list(self.requests)
        for pending in self.requests.values():
            self.account.charge(-pending.held_bytes)
        self.requests.clear()
        self.browse_later.clear()

    def set_writable(self, is_writable: bool) -> None:
        self.is_writable = is_writable
        self._browse()

    # -- requests ---------------------------------------------------------------------------------------------------

    def on_request(self, node: RequestLink, event: TransferReceived, now_ms: int) -> None:
        """`BrokerError` if it cannot even be answered: then the transfer is what is refused."""
        link = event.link
        node.top_up()
        request = decode_request(event.payload)
        reply = self._find_reply(node, request.reply_to)
        if not event.settled:
            link.session.settle(event.delivery_id, ACCEPTED)
            link.session.flush_runs()  # before its answer: uamqp takes one for a request it does not know otherwise
        if node.address.node == CBS:
            self._put_token(request, reply, now_ms)
        else:
            self._manage(node, request, reply, now_ms)

    def _find_reply(self, node: RequestLink, reply_to: str | None) -> ReplyLink:
        """By session and address; Python's `$cbs` requests have no reply-to, JavaScript's are a link's name."""
        found = self.replies.get(_reply_key(node))
        if not found:
            raise NotAllowed(f"Attach a receiver from '{node.shown_path}' in the same session before sending requests.")
        if reply_to is not None:
            for reply in reversed(found):
                if reply.answers_to(reply_to):
                    return reply
        return found[-1]

    def _put_token(self, request: RequestMessage, reply: ReplyLink, now_ms: int) -> None:
        code = cbs.ACCEPTED
        text = "Accepted"
        put: cbs.PutToken | None = None
        try:
            put = cbs.read_put_token(request)
            self.auth_state.put_token(put.token, put.audience, now_ms)
            self.bad_tokens_count = 0
            if put.address.path:
                self.missing.check(put.address)  # the token is good, and what it is for is not there (docs/adr/0005)
        except EntityNotFound as absent:
            code = absent.status_code
            text = tracked_text(absent.description, self.tracker, "$cbs", now_ms)
        except BrokerError as error:
            if isinstance(error, Unauthorized):
                self.bad_tokens_count += 1
            code = error.status_code
            text = tracked_text(error.description, self.tracker, "$cbs", now_ms)
            name = "" if put is None else claimed_rule(put.token)
            audience = "" if put is None else strip_authority(put.audience)
            self.audit.refused("put-token", name, audience, error.description)
        self._reply(reply, encode_response(request.message_id, cbs.status_properties(code, text), None))

    def _manage(self, node: RequestLink, request: RequestMessage, reply: ReplyLink, now_ms: int) -> None:
        operation = ""
        try:
            operation = request.text("operation")
            self._check_rights(node, operation, now_ms)
            self._check_room()
            number = self.ids.next()
            command = management.read_command(operation, number, node.path, request.body, self.tracker)
            if node.address.transfer_of:
                self._send_response(reply, request.message_id, management.response_of_nothing(operation, node.path))
                return
        except BrokerError as error:
            self._reply_failure(reply, operation, request.message_id, error, node.scope, now_ms)
            return
        omits_body = management.read_omits_body(request.body)
        pending = PendingRequest(operation, request.message_id, node.path, omits_body, reply)
        pending.is_large = management.is_large(command)
        pending.held_bytes = REQUEST_BYTES + id_bytes(request.message_id) + management.weight_of(command)
        self.account.charge(pending.held_bytes)
        self.requests[number] = pending
        self.outbox.registered.append(number)
        if pending.is_large:
            self.browse_later.append(command)
            self._browse()
        else:
            self.outbox.commands.append(command)

    def _check_rights(self, node: RequestLink, operation: str, now_ms: int) -> None:
        rights = management.rights_for(operation)
        denied = self.auth_state.denial(node.scope, rights, now_ms)
        if denied is not None:
            self.audit.refused(operation, self.auth_state.rule_names(), node.scope, denied.description)
            raise denied
        if operation in management.AUDITED:
            self.audit.done(operation, self.auth_state.rule_for(node.scope, rights, now_ms), node.path)

    @property
    def is_overasked(self) -> bool:
        """As many requests wait as may: more are refused."""
        requests_max = REQUESTS_MAX if self.is_writable else REQUESTS_UNREAD_MAX
        return len(self.requests) >= requests_max or len(self.browse_later) >= BROWSE_LATER_MAX

    def _check_room(self) -> None:
        if self.is_overasked:
            raise ServerBusy(
                "Too many requests of this connection are waiting for their answers to be read. Try later."
            )

    def _browse(self) -> None:
        """A few requests with large answers at a time, and none while the client would not take the answer."""
        while self.browse_later and self.browsing_count < BROWSING_MAX and self.is_writable and not self.holding:
            pending = self.requests.get(self.browse_later[0].request_id)
            if pending is not None and pending.reply.link.is_open and not pending.reply.may_send():
                return
            self.browsing_count += 1
            self.outbox.commands.append(self.browse_later.popleft())

    def reply_of(self, number: int) -> ReplyLink | None:
        """Where the answer to a request would go."""
        pending = self.requests.get(number)
        return None if pending is None else pending.reply

    # -- answers ----------------------------------------------------------------------------------------------------

    def answer(self, answer: Answer, now_ms: int) -> bool:
        """Say what the core answered. False: nobody asked, or is there to hear it."""
        pending = self.requests.pop(answer.to, None)
        if pending is None:
            return False
        self.outbox.unregistered.append(answer.to)
        self.account.charge(-pending.held_bytes)
        is_sent = self._send_answer(pending, answer, now_ms)
        if pending.is_large:
            self.browsing_count -= 1
            self._browse()
        return is_sent

    def _send_answer(self, pending: PendingRequest, answer: Answer, now_ms: int) -> bool:
        if isinstance(answer, Swallowed):
            return True
        if isinstance(answer, Failed):
            return self._reply_failure(
                pending.reply, pending.operation, pending.correlation_id, answer.error, pending.path, now_ms
            )
        return self._send_response(pending.reply, pending.correlation_id, management.response_to(pending, answer))

    def _send_response(self, reply: ReplyLink, correlation_id: object, response: management.ManagementResponse) -> bool:
        properties = management.status_properties(response.status)
        return self._reply(reply, encode_response(correlation_id, properties, response.body))

    def _reply_failure(
        self, reply: ReplyLink, operation: str, correlation_id: object, error: BrokerError, path: str, now_ms: int
    ) -> bool:
        text = tracked_text(error.description, self.tracker, path, now_ms)
        properties = management.error_properties(error, text)
        return self._reply(reply, encode_response(correlation_id, properties, management.failure_body(operation)))

    def _reply(self, reply: ReplyLink, payload: bytes) -> bool:
        """Say an answer, now or when the client takes it. One that takes none loses the link."""
        if not reply.reply(payload):
            return False
        if reply.held:
            self.holding[reply.number] = reply
            held_bytes = -len(payload)  # one answer may be larger than all that may wait
            for other in self.holding.values():
                held_bytes += other.held_bytes
            is_known = self.auth_state.is_authorised
            if held_bytes > (HELD_REPLY_BYTES_MAX if is_known else HELD_REPLY_BYTES_UNAUTHENTICATED_MAX):
                self.overfull.append(reply)
            self._pay(reply)
        return True

    def _pay(self, reply: ReplyLink) -> None:
        self.account.charge(reply.held_bytes - reply.paid_bytes)
        reply.paid_bytes = reply.held_bytes

    def send_held(self) -> None:
        for reply in list(self.holding.values()):
            reply.send_held()
            self._pay(reply)
            if not reply.held:
                del self.holding[reply.number]
        self._browse()


def _reply_key(link: PeerLink) -> str:
    """A request is answered in its own session, from the node it was sent to."""
    return f"{link.link.session.local_channel}:{link.address.node}:{link.address.key}"


def id_bytes(message_id: object) -> int:
    """What the id of a request takes, which is kept for its answer."""
    if isinstance(message_id, str):
        return len(message_id) if message_id.isascii() else 4 * len(message_id)
    return len(message_id) if isinstance(message_id, bytes) else 0
