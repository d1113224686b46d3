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
from spillway.dialect.audit import Audit
from spillway.dialect.errors import Tracker, tracked_text
from spillway.dialect.links import (
    HELD_REPLY_BYTES_MAX,
    HELD_REPLY_BYTES_STRANGER_MAX,
    PeerLink,
    ReplyLink,
    RequestLink,
)
from spillway.dialect.outbox import Outbox
from spillway.dialect.requests import RequestMessage, decode_request, encode_response
from spillway.dialect.rights import claimed_rule
from spillway.dialect.standing import Standing
from spillway.model.errors import BrokerError, NotAllowed, ServerBusy

REQUEST_CREDIT: Final = 100
REQUESTS_MAX: Final = 1_000  # under way at once on one connection
REQUESTS_UNREAD_MAX: Final = 8  # under way while the client does not read: each may answer with a megabyte
BROWSING_MAX: Final = 4  # requests with large answers with the core at once: each may have megabytes
BROWSE_LATER_MAX: Final = 200  # and those that wait for them


class Ids(Protocol):
    """Link and request numbers, unique in the process."""

    def next(self) -> int: ...


class PendingRequest(management.Pending):
    """A request to the core, and the link its answer goes to."""

    def __init__(self, operation: str, correlation_id: object, path: str, omits_body: bool, reply: ReplyLink) -> None:
        super().__init__(operation, correlation_id, path, omits_body)
        self.reply = reply


class Nodes:
    def __init__(self, standing: Standing, outbox: Outbox, ids: Ids, tracker: Tracker, audit: Audit) -> None:
        self.standing = standing
        self.outbox = outbox
        self.ids = ids
        self.tracker = tracker
        self.audit = audit
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
        self.holding.pop(reply.number, None)

    def forget_requests(self) -> None:
        """Nobody is there to hear their answers."""
        self.outbox.forgotten += list(self.requests)
        self.requests.clear()
        self.browse_later.clear()

    def set_writable(self, is_writable: bool) -> None:
        self.is_writable = is_writable
        self._browse()

    # -- requests ---------------------------------------------------------------------------------------------------

    def on_request(self, node: RequestLink, event: TransferReceived, now_ms: int) -> None:
        """`BrokerError` if it cannot even be answered: then the transfer is what is refused."""
        link = event.link
        if link.credit_left <= REQUEST_CREDIT // 2:
            link.grant(REQUEST_CREDIT)
        request = decode_request(event.payload)
        reply = self._find_reply(node, request.reply_to)
        if not event.settled:
            link.session.settle(event.delivery_id, ACCEPTED)
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
            self.standing.put_token(put.token, put.audience, now_ms)
        except BrokerError as error:
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
        except BrokerError as error:
            self._reply_failure(reply, operation, request.message_id, error, node.scope, now_ms)
            return
        omits_body = management.read_omits_body(request.body)
        self.requests[number] = PendingRequest(operation, request.message_id, node.path, omits_body, reply)
        self.outbox.registered.append(number)
        if management.is_large(operation):
            self.browse_later.append(command)
            self._browse()
        else:
            self.outbox.commands.append(command)

    def _check_rights(self, node: RequestLink, operation: str, now_ms: int) -> None:
        rights = management.rights_for(operation)
        denied = self.standing.denial(node.scope, rights, now_ms)
        if denied is not None:
            self.audit.refused(operation, self.standing.rule_names(), node.scope, denied.description)
            raise denied
        if operation in management.AUDITED:
            self.audit.done(operation, self.standing.rule_for(node.scope, rights, now_ms), node.path)

    def _check_room(self) -> None:
        requests_max = REQUESTS_MAX if self.is_writable else REQUESTS_UNREAD_MAX
        if len(self.requests) >= requests_max or len(self.browse_later) >= BROWSE_LATER_MAX:
            raise ServerBusy(
                "Too many requests of this connection are waiting for their answers to be read. Try later."
            )

    def _browse(self) -> None:
        """A few requests with large answers at a time, and none while the client does not read."""
        while self.browse_later and self.browsing_count < BROWSING_MAX and self.is_writable:
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
        self.outbox.forgotten.append(answer.to)
        if management.is_large(pending.operation):
            self.browsing_count -= 1
            self._browse()
        if isinstance(answer, Swallowed):
            return True
        if isinstance(answer, Failed):
            return self._reply_failure(
                pending.reply, pending.operation, pending.correlation_id, answer.error, pending.path, now_ms
            )
        response = management.response_to(pending, answer)
        properties = management.status_properties(response.status)
        return self._reply(pending.reply, encode_response(pending.correlation_id, properties, response.body))

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
            is_known = self.standing.is_authorised
            if held_bytes > (HELD_REPLY_BYTES_MAX if is_known else HELD_REPLY_BYTES_STRANGER_MAX):
                self.overfull.append(reply)
        return True

    def send_held(self) -> None:
        for reply in list(self.holding.values()):
            reply.send_held()
            if not reply.held:
                del self.holding[reply.number]


def _reply_key(link: PeerLink) -> str:
    """A request is answered in its own session, from the node it was sent to."""
    return f"{link.link.session.local_channel}:{link.address.node}:{link.address.key}"
