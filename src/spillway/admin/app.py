"""The administration API as an ASGI application: reads a request, checks who asks, answers in Atom, or in JSON under
`/$spillway/`.

A request is refused before its body is read where that is possible, and what it may cost is bounded: header lines,
path, body. No text made here shows a token.
"""

import asyncio
import json
import logging
from collections import Counter
from email.utils import formatdate
from functools import partial
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from spillway.admin.admission import Admission
from spillway.admin.atom import error_xml
from spillway.admin.control import Control, is_control
from spillway.admin.http_refusals import HttpRefusal, RightMissing, bad_request, of_broker, right_missing
from spillway.admin.namespace import AdministeredNamespace
from spillway.admin.pages import refuse_pages
from spillway.admin.paths import ENTITY, ROOT, decode_path, kind_of, parse_target
from spillway.admin.service import EntityCall, Reply, Service
from spillway.broker.commands import Meter
from spillway.model.errors import BrokerError
from spillway.model.ledger import MANAGEMENT, NAMESPACE_ENTITY

log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 1024 * 1024  # bad input B15; the largest description that an SDK sends has some 50 KB
SWALLOWED_BYTES_MAX: Final = 16 * 1024 * 1024  # of a body that is too large: a client that is cut off hears no reason
HEADERS_MAX: Final = 100
QUERY_BYTES_MAX: Final = 4_096
ERROR: Final = "application/xml; charset=utf-8"
JSON: Final = "application/json"
ONCE: Final = (
    *("authorization", "servicebussupplementaryauthorization", "servicebusdlqsupplementaryauthorization"),
    *("if-match", "content-length", "transfer-encoding", "content-encoding", "host"),
)


class Administration:
    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace
        self.allowed_hosts = namespace.allowed_hosts
        self.service = Service(namespace)
        self.control = Control(namespace)
        self.admission = Admission(namespace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "WebSockets and lifespan are not handed here"
        request = Request(scope, receive)
        try:
            response = await self.respond(request)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the broker stops, and somebody still waited: for a fault on purpose, or a body
            stopping = HttpRefusal(503, "SubCode=50300. The broker is stopping. Send the request again.", closes=True)
            response = self.refusal(request, "", stopping, None)
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        path = ""
        etag = None
        try:
            refuse_head(request)
            self.refuse_pages(request.headers)
            path = decode_path(request.scope["raw_path"])
            query = request.scope["query_string"].decode("ascii", "replace")
            self.authorise(request, path, query)
            target = None if is_control(path) else parse_target(path)
            body = await read_body(request)
            rule = self.authorise(request, path, query)  # again: a body takes its time, and a rule may go meanwhile
            if target is None:
                answer = await self.control.answer(request.method, path, query, body)
                self.note(request, rule, path)
                return json_response(answer, 200)
            await self.admission.admit(request, target.entity_path)
            call = EntityCall(
                request.method,
                target,
                query,
                base_of(request),
                request.headers.get("if-match"),
                body,
                partial(self.may_forward, request),
            )
            etag = await self.service.etag_of(target)
            reply = await self.service.answer(call)
            await self.meter(call)
            self.note(request, rule, path, reply.changes)
            if call.if_match is not None:
                etag = await self.service.etag_of(target)
            return response_of(reply, etag)
        except RightMissing as fault:
            return await self.without_manage(request, path, fault)
        except HttpRefusal as fault:
            return self.refusal(request, path, fault, etag)
        except BrokerError as error:
            return self.refusal(request, path, of_broker(error), etag)
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("a fault of the administration")
            ours = HttpRefusal(500, "SubCode=50000. The broker failed to answer; its log says why.", closes=True)
            return self.refusal(request, path, ours, None)

    def refuse_pages(self, headers: Headers) -> None:
        refuse_pages(headers, self.namespace.is_key_known(), self.allowed_hosts)

    async def meter(self, call: EntityCall) -> None:
        """Count a request in the ledger. What was deleted is charged to the name it had."""
        path = call.target.entity_path or NAMESPACE_ENTITY
        otherwise = path if call.method == "DELETE" else NAMESPACE_ENTITY
        await self.namespace.pump.ask(lambda number: Meter(number, path, MANAGEMENT, otherwise))

    def authorise(self, request: Request, path: str, query: str) -> str:
        """The name of the rule that allows it."""
        token = request.headers.get("authorization", "")
        sent = request.scope["raw_path"].decode("ascii", "replace") + (f"?{query}" if query else "")
        verdict = self.namespace.gate.judge(token, path, sent, host_of(request), where_of(request))
        if verdict.problem is None:
            return verdict.rule
        if not verdict.is_good or is_control(path):
            raise HttpRefusal(401, verdict.problem)
        place = f"sb://{request.headers.get('host', '')[:300]}/{path[:300]}"
        raise right_missing(verdict.problem, request.method, kind_of(path), place)

    async def without_manage(self, request: Request, path: str, fault: RightMissing) -> Response:
        """A request with a good token without Manage gets what the service says: a queue or topic that is not there is
        not there; all else is refused."""
        kind = kind_of(path)
        try:
            if request.method == "GET" and kind in (ROOT, ENTITY):
                await self.admission.admit(request, path)
                if kind == ROOT or await self.service.find(path) is None:
                    return response_of(self.service.nothing(), None)
        except HttpRefusal as busy:
            return self.refusal(request, path, busy, None)
        return self.refusal(request, path, fault, None)

    def may_forward(self, request: Request, header: str, path: str) -> bool:
        """Whether who asks may send to where an entity is to forward to: by its token, or by one in this header."""
        tokens = [request.headers[name] for name in ("authorization", header) if name in request.headers]
        host = host_of(request)
        return self.namespace.gate.may_send(tokens, path, host, where_of(request))

    def note(self, request: Request, rule: str, path: str, changes: tuple[str, ...] = ()) -> None:
        """Note for the audit log what was changed, not what was read."""
        if request.method in ("GET", "HEAD"):
            return
        for change in changes or ("",):
            self.namespace.audit.done(where_of(request), request.method, rule, path, change)

    def refusal(self, request: Request, path: str, fault: HttpRefusal, etag: str | None) -> Response:
        now_ms = self.namespace.now_ms()
        host = request.headers.get("host", "")[:300].partition(":")[0]
        tracking = self.namespace.tracking_text(f"{host}:{path[:300]}", now_ms)
        if is_control(path):
            response = json_response(json.dumps({"error": fault.detail + tracking}) + "\n", fault.status)
        else:
            response = Response(error_xml(fault.status, fault.detail + tracking), fault.status)
            response.headers["Content-Type"] = ERROR
            finish(response, etag)
        if fault.closes:
            response.headers["Connection"] = "close"
        return response


def host_of(request: Request) -> str:
    """What the client calls us."""
    return request.headers.get("host", "")[:300].lower()


def where_of(request: Request) -> str:
    return "" if request.client is None else request.client.host


def refuse_head(request: Request) -> None:
    """What must not be guessed at is refused: whose length counts, whose token, how packed (bad input B16, B22)."""
    if len(request.scope["headers"]) > HEADERS_MAX:
        raise HttpRefusal(431, f"SubCode=43100. A request has at most {HEADERS_MAX} header lines.", closes=True)
    counts = Counter(name.decode("latin-1").lower() for name, _ in request.scope["headers"])
    for name in ONCE:
        if counts[name] > 1:
            raise HttpRefusal(400, f"SubCode=40000. The header '{name}' is there more than once.", closes=True)
    if counts["content-length"] and counts["transfer-encoding"]:
        raise HttpRefusal(
            400, "SubCode=40000. Content-Length and Transfer-Encoding contradict each other.", closes=True
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpRefusal(400, "SubCode=40000. The body must be sent as it is, not compressed.", closes=True)
    if len(request.scope["query_string"]) > QUERY_BYTES_MAX:
        raise bad_request(f"A query has at most {QUERY_BYTES_MAX} bytes.")


async def read_body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    claimed = request.headers.get("content-length", "0")
    is_too_large = int(claimed) > BODY_BYTES_MAX
    if int(claimed) > SWALLOWED_BYTES_MAX:
        raise too_large()
    async for part in request.stream():
        size += len(part)
        if size > SWALLOWED_BYTES_MAX:
            raise too_large()
        if size > BODY_BYTES_MAX:
            is_too_large = True
            parts.clear()
        if not is_too_large:
            parts.append(part)
    if is_too_large:
        raise too_large()
    return b"".join(parts)


def too_large() -> HttpRefusal:
    return HttpRefusal(413, f"SubCode=41300. A body has at most {BODY_BYTES_MAX} bytes.", closes=True)


def base_of(request: Request) -> str:
    """Scheme and host as the client knows them: JavaScript reads names from behind it."""
    return f"{request.url.scheme}://{request.headers.get('host', 'localhost')[:300]}"


def response_of(reply: Reply, etag: str | None) -> Response:
    response = Response(reply.body, reply.status)
    if reply.content_type is not None:
        response.headers["Content-Type"] = reply.content_type
    finish(response, etag)
    return response


def json_response(text: str, status: int) -> Response:
    response = Response(text, status)
    response.headers["Content-Type"] = JSON
    finish(response, None)
    return response


def finish(response: Response, etag: str | None) -> None:
    response.headers["Date"] = formatdate(usegmt=True)
    response.headers["Cache-Control"] = "no-store"
    if etag is not None:
        response.headers["ETag"] = etag
