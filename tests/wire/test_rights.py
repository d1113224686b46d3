"""Who may do what, every cell: scope of the rule x rights x operation, through real clients (S1, S16).

The table below is the one of docs/security.md. A cell names the rules that may: those with Send (S), Listen (L), both
(SL) or Manage (M, which has all three); what it does not name is refused. `none` is a rule that exists, with a key that
it never had: it may nothing at all. Several of them come at the same time: the SDK takes half a second to close a link.
"""

import asyncio
import base64
import contextlib
import itertools
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from spillway.amqp.types import Timestamp
from spillway.broker.commands import CreateEntity
from spillway.client import COMPLETED, OutgoingMessage, Unauthorized, connect
from spillway.model.access import LISTEN, MANAGE, NAMESPACE_SCOPE, SEND, AccessRule
from spillway.model.entity import QUEUE, TOPIC, EntitySettings
from tests.admin.client import Client, entry, token
from tests.tools.js import JavaScript, JavaScriptError
from tests.wire.live import LiveBroker
from tests.wire.sdk import JsClient

TABLE = """
| operation | rule of the namespace | of the queue | of another queue | of the topic |
| --- | --- | --- | --- | --- |
| send to the queue | S SL M | S SL M | | |
| schedule a message | S SL M | S SL M | | |
| cancel a scheduled message | S SL M | S SL M | | |
| receive from the queue | L SL M | L SL M | | |
| settle a message | L SL M | L SL M | | |
| peek at messages | L SL M | L SL M | | |
| renew a lock | L SL M | L SL M | | |
| receive from the dead-letter queue | L SL M | L SL M | | |
| accept a session | L SL M | L SL M | | |
| read and set the state of a session | L SL M | L SL M | | |
| list sessions | L SL M | L SL M | | |
| delete messages by batch | L SL M | L SL M | | |
| send to the topic | S SL M | | | S SL M |
| receive from a subscription | L SL M | | | L SL M |
| list rules of a subscription over AMQP | L SL M | | | L SL M |
| add a rule to a subscription over AMQP | L SL M | | | L SL M |
| remove a rule of a subscription over AMQP | L SL M | | | L SL M |
| administration: read the queue | M | M | | |
| administration: change the queue | M | M | | |
| administration: delete the queue | M | M | | |
| administration: let the queue forward to another | M | | | |
| administration: create a queue | M | | | |
| administration: list queues | M | | | |
| administration: make, read, delete a subscription | M | | | M |
| administration: rules of a subscription | M | | | M |
| administration: the namespace | M | | | |
| control API, `/$spillway/` | M | | | |
""".strip()

RIGHTS = {"S": SEND, "L": LISTEN, "SL": SEND | LISTEN, "M": MANAGE, "none": SEND}
SCOPES = ("namespace", "queue", "other", "topic")
ROOT = Path(__file__).resolve().parents[2]
HOUR_MS = 3_600_000
AT_ONCE = 8
REFUSALS = (ServiceBusAuthenticationError, ServiceBusAuthorizationError, Unauthorized, PermissionError)
SEND_TO, SCHEDULE = "send to the queue", "schedule a message"
RECEIVE, PEEK = "receive from the queue", "peek at messages"
OVER_ONE_LINK = (SEND_TO, SCHEDULE, RECEIVE, PEEK)
_numbers = itertools.count(1)


def cells() -> dict[str, dict[str, set[str]]]:
    """By operation and scope: the rules that may."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines()[2:]]
    return {row[0]: {scope: set(cell.split()) for scope, cell in zip(SCOPES, row[1:], strict=True)} for row in rows}


def key_of(scope: str, name: str, is_second: bool = False) -> str:
    return base64.b64encode(f"{scope[:9]:>9} {name:>4} {'2' if is_second else '1'}".encode().rjust(32)).decode()


def rules_of(scope: str) -> list[AccessRule]:
    return [
        AccessRule(name, rights, key_of(scope, name), key_of(scope, name, is_second=True))
        for name, rights in RIGHTS.items()
    ]


class Scene:
    """The entities, each with its rules, and enough in them for everybody who may."""

    def __init__(self, live: LiveBroker) -> None:
        self.live = live
        self.queue, self.sessions, self.changed, self.other = "rights/q", "rights/s", "rights/c", "rights/o"
        self.topic = "rights/t"
        for path in (self.queue, self.sessions, self.changed):
            self.make(QUEUE, path, "queue")
        self.make(QUEUE, self.other, "other")
        self.make(TOPIC, self.topic, "topic")
        live.subscription(self.topic, "sub")
        live.send(self.queue, *[f"m{number}" for number in range(90)])
        live.send(self.topic, *[f"m{number}" for number in range(30)])
        live.run(self.bury(30))
        live.run(self.fill_sessions())

    def make(self, kind: str, path: str, scope: str) -> None:
        self.live.ask(lambda number: CreateEntity(number, kind, path, self.settings(scope, path)))

    def settings(self, scope: str, path: str) -> EntitySettings:
        settings = EntitySettings()
        settings.access_rules = rules_of(scope)
        settings.requires_session = path == self.sessions
        settings.lock_duration_ms = 300_000
        return settings

    async def bury(self, count: int) -> None:
        async with await connect(self.live.connection_string) as connection:
            receiver = await connection.receiver(self.queue)
            found: list[Any] = []
            while len(found) < count:
                found += await receiver.receive(count - len(found), max_wait=5)
            await asyncio.gather(*(receiver.dead_letter(message) for message in found))

    async def fill_sessions(self) -> None:
        async with await connect(self.live.connection_string) as connection:
            sender = await connection.sender(self.sessions)
            for scope, name in itertools.product(SCOPES, RIGHTS):
                await sender.send(OutgoingMessage("m", session_id=f"{scope}-{name}"))

    async def lock_one(self) -> uuid.UUID:
        """A lock that somebody else holds: what a client without Listen might have heard of."""
        async with await connect(self.live.connection_string) as connection:
            (message,) = await (await connection.receiver(self.queue)).receive(1, max_wait=5)
            assert message.lock_token is not None
            return message.lock_token

    async def schedule_one(self) -> int:
        async with await connect(self.live.connection_string) as connection:
            at_ms = int(datetime.now(UTC).timestamp() * 1000) + HOUR_MS
            (number,) = await connection.management(self.queue).schedule([OutgoingMessage("later")], at_ms)
            return number


@pytest.fixture(scope="module")
def scene(live_broker: LiveBroker) -> Iterator[Scene]:
    book = live_broker.server.rights.book
    before = book.of(NAMESPACE_SCOPE)

    async def put(rules: list[AccessRule]) -> None:
        live_broker.server.set_rules(rules, "a test")

    live_broker.run(put([*before, *rules_of("namespace")]))
    made = Scene(live_broker)
    yield made
    for path in (made.queue, made.sessions, made.changed, made.other, made.topic):
        live_broker.delete(path)
    live_broker.run(put(before))


class Visitor:
    """One rule's key in the hands of every client there is."""

    def __init__(self, scene: Scene, scope: str, name: str) -> None:
        self.scene = scene
        self.scope = scope
        self.name = name
        # Half of them with the second key: both must do.
        self.key = key_of("nobody" if name == "none" else scope, name, is_second=name in ("L", "M"))
        root = scene.live.connection_string
        self.connection_string = root.replace("RootManageSharedAccessKey", name).replace("SAS_KEY_VALUE", self.key)
        self.lock_token = scene.live.run(scene.lock_one())
        self.scheduled = scene.live.run(scene.schedule_one())

    # -- over AMQP, with the SDK where it has words for it --------------------------------------------------------

    async def use_queue(self, sdk: ServiceBusClient) -> dict[str, bool]:
        """Two operations over one link: who may not have the link may do neither."""
        found = dict.fromkeys(OVER_ONE_LINK, False)
        with contextlib.suppress(*REFUSALS):
            async with sdk.get_queue_sender(self.scene.queue) as sender:
                at = datetime.now(UTC) + timedelta(days=30)
                found[SEND_TO] = await is_allowed(sender.send_messages(ServiceBusMessage("m")))
                found[SCHEDULE] = await is_allowed(sender.schedule_messages(ServiceBusMessage("m"), at))
        with contextlib.suppress(*REFUSALS):
            async with sdk.get_queue_receiver(self.scene.queue) as receiver:
                found[RECEIVE] = await is_allowed(receiver.receive_messages(max_message_count=1, max_wait_time=5))
                found[PEEK] = await is_allowed(receiver.peek_messages())
        return found

    async def receive_dead(self, sdk: ServiceBusClient) -> None:
        async with sdk.get_queue_receiver(self.scene.queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            assert await receiver.receive_messages(max_message_count=1, max_wait_time=5)

    async def accept_session(self, sdk: ServiceBusClient) -> None:
        name = f"{self.scope}-{self.name}"
        async with sdk.get_queue_receiver(self.scene.sessions, session_id=name, max_wait_time=5) as receiver:
            assert await receiver.receive_messages(max_message_count=1, max_wait_time=5)

    async def send_to_topic(self, sdk: ServiceBusClient) -> None:
        async with sdk.get_topic_sender(self.scene.topic) as sender:
            await sender.send_messages(ServiceBusMessage("m"))

    async def receive_copy(self, sdk: ServiceBusClient) -> None:
        async with sdk.get_subscription_receiver(self.scene.topic, "sub") as receiver:
            assert await receiver.receive_messages(max_message_count=1, max_wait_time=5)

    # -- over AMQP, with our own client: what needs a lock or a number of somebody else's -------------------------

    async def cancel(self, own: Any) -> None:
        await own.management(self.scene.queue).cancel([self.scheduled])

    async def settle(self, own: Any) -> None:
        await own.management(self.scene.queue).settle([self.lock_token], COMPLETED)

    async def renew(self, own: Any) -> None:
        await own.management(self.scene.queue).renew_locks([self.lock_token])

    async def session_state(self, own: Any) -> None:
        """Of a session that nobody holds: who has the right hears so, who has not hears that."""
        for operation, body in (
            ("com.microsoft:get-session-state", {"session-id": "free"}),
            ("com.microsoft:set-session-state", {"session-id": "free", "session-state": b"x"}),
            ("com.microsoft:renew-session-lock", {"session-id": "free"}),
        ):
            await self.heard(own, self.scene.sessions, operation, body)

    async def list_sessions(self, own: Any) -> None:
        body = {"last-updated-time": Timestamp(253_402_300_800_000), "skip": 0, "top": 5}
        await own.management(self.scene.sessions).call("com.microsoft:get-message-sessions", body)

    async def batch_delete(self, own: Any) -> None:
        body = {"message-count": 1, "enqueued-time-utc": Timestamp(1)}
        await own.management(self.scene.queue).call("com.microsoft:batch-delete-messages", body)

    async def list_rules(self, own: Any) -> None:
        await own.management(f"{self.scene.topic}/Subscriptions/sub").call(
            "com.microsoft:enumerate-rules", {"skip": 0, "top": 9}
        )

    async def add_rule(self, own: Any) -> None:
        body = {"rule-name": f"{self.scope}-{self.name}", "rule-description": {"sql-filter": {"expression": "1=0"}}}
        await own.management(f"{self.scene.topic}/Subscriptions/sub").call("com.microsoft:add-rule", body)

    async def remove_rule(self, own: Any) -> None:
        body = {"rule-name": "not-there"}
        await self.heard(own, f"{self.scene.topic}/Subscriptions/sub", "com.microsoft:remove-rule", body)

    async def heard(self, own: Any, path: str, operation: str, body: dict[str, Any]) -> None:
        """Whatever the core answers; a refusal for want of a right is none of the core's."""
        try:
            await own.management(path).call(operation, body)
        except Unauthorized:
            raise
        except Exception as error:
            assert "could not be found" in str(error) or "session" in str(error).lower(), error

    # -- over HTTP ------------------------------------------------------------------------------------------------

    def ask(self, http: Client, method: str, path: str, body: str | None = None, **headers: str) -> None:
        answer = http.ask(method, path, body, headers=headers or None)
        if answer.status == 401:
            raise PermissionError(path)
        assert answer.status in (200, 201), answer

    def subscription(self, http: Client) -> None:
        path = f"/{self.scene.topic}/Subscriptions/{self.scope}-{self.name}"
        self.ask(http, "PUT", path, entry("SubscriptionDescription"))
        self.ask(http, "GET", path)
        self.ask(http, "GET", f"/{self.scene.topic}/Subscriptions?api-version=2021-05")
        self.ask(http, "DELETE", path)

    def subscription_rules(self, http: Client) -> None:
        path = f"/{self.scene.topic}/Subscriptions/sub/Rules"
        self.ask(http, "GET", f"{path}?api-version=2021-05")
        self.ask(http, "GET", f"{path}/$Default")

    def delete(self, http: Client) -> None:
        path = f"rights/doomed-{self.scope}-{self.name}"
        self.scene.make(QUEUE, path, "queue")
        try:
            self.ask(http, "DELETE", f"/{path}")
        except PermissionError:
            self.scene.live.delete(path)
            raise

    def forward(self, http: Client) -> None:
        """A queue whose rules are those of the column `of the queue`, to one that has others."""
        path = f"rights/forwards-{self.scope}-{self.name}"
        self.scene.make(QUEUE, path, "queue")
        body = entry("QueueDescription", f"<ForwardTo>{self.scene.other}</ForwardTo>")
        try:
            self.ask(http, "PUT", f"/{path}", body, **{"If-Match": "*"})
        finally:
            self.scene.live.delete(path)

    def create(self, http: Client) -> None:
        path = f"rights/new{next(_numbers)}"
        self.ask(http, "PUT", f"/{path}", entry("QueueDescription"))
        self.scene.live.delete(path)

    def administer(self, http: Client) -> dict[str, Callable[[], None]]:
        queue = f"/{self.scene.queue}"
        return {
            "administration: read the queue": lambda: self.ask(http, "GET", queue),
            "administration: change the queue": lambda: self.ask(
                http, "PUT", f"/{self.scene.changed}", entry("QueueDescription"), **{"If-Match": "*"}
            ),
            "administration: delete the queue": lambda: self.delete(http),
            "administration: let the queue forward to another": lambda: self.forward(http),
            "administration: create a queue": lambda: self.create(http),
            "administration: list queues": lambda: self.ask(http, "GET", "/$Resources/queues?api-version=2021-05"),
            "administration: make, read, delete a subscription": lambda: self.subscription(http),
            "administration: rules of a subscription": lambda: self.subscription_rules(http),
            "administration: the namespace": lambda: self.ask(http, "GET", "/$namespaceinfo"),
            "control API, `/$spillway/`": lambda: self.ask(http, "GET", "/$spillway/status"),
        }

    # -- all of it ------------------------------------------------------------------------------------------------

    async def over_amqp(self) -> dict[str, bool]:
        with_sdk: dict[str, Callable[[Any], Awaitable[None]]] = {
            "receive from the dead-letter queue": self.receive_dead,
            "accept a session": self.accept_session,
            "send to the topic": self.send_to_topic,
            "receive from a subscription": self.receive_copy,
        }
        with_own: dict[str, Callable[[Any], Awaitable[None]]] = {
            "cancel a scheduled message": self.cancel,
            "renew a lock": self.renew,
            "settle a message": self.settle,
            "read and set the state of a session": self.session_state,
            "list sessions": self.list_sessions,
            "delete messages by batch": self.batch_delete,
            "list rules of a subscription over AMQP": self.list_rules,
            "add a rule to a subscription over AMQP": self.add_rule,
            "remove a rule of a subscription over AMQP": self.remove_rule,
        }
        found: dict[str, bool] = {}
        async with (
            ServiceBusClient.from_connection_string(self.connection_string, retry_total=0) as sdk,
            await connect(self.connection_string) as own,
        ):
            on_queue, outcomes = await asyncio.gather(
                self.use_queue(sdk), asyncio.gather(*(is_allowed(each(sdk)) for each in with_sdk.values()))
            )
            found |= {**on_queue, **dict(zip(with_sdk, outcomes, strict=True))}
            for operation, each in with_own.items():
                found[operation] = await is_allowed(each(own))
        return found

    def over_http(self) -> dict[str, bool]:
        http = Client(self.scene.live.server.port)
        http.token = token(f"https://localhost:{http.port}", self.key, self.name)
        found: dict[str, bool] = {}
        for operation, each in self.administer(http).items():
            try:
                each()
                found[operation] = True
            except PermissionError:
                found[operation] = False
        http.close()
        return found


async def is_allowed(asked: Awaitable[Any]) -> bool:
    """What comes back is not empty where something is asked for: the scene has enough of it."""
    try:
        answer = await asked
    except REFUSALS:
        return False
    assert answer is None or answer, "there is enough for everybody"
    return True


@pytest.fixture(scope="module")
def outcomes(scene: Scene) -> dict[tuple[str, str], dict[str, bool]]:
    """By scope and name of a rule: which operation it may."""
    visitors = {each: Visitor(scene, *each) for each in itertools.product(SCOPES, RIGHTS)}

    async def visit(visitor: Visitor, places: asyncio.Semaphore) -> dict[str, bool]:
        async with places:
            return {**await visitor.over_amqp(), **await asyncio.to_thread(visitor.over_http)}

    async def visit_all() -> list[dict[str, bool]]:
        places = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(visit(visitor, places) for visitor in visitors.values()))

    return dict(zip(visitors, asyncio.run(visit_all()), strict=True))


@pytest.mark.parametrize("name", RIGHTS)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_rule_allows_what_the_table_says_and_nothing_else(
    outcomes: dict[tuple[str, str], dict[str, bool]], scope: str, name: str
) -> None:
    expected = {operation: name in scopes[scope] for operation, scopes in cells().items()}
    assert outcomes[scope, name] == expected


def test_the_table_of_the_guide_is_this_one() -> None:
    assert TABLE in (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


JS_CELLS = [("queue", "S"), ("queue", "L"), ("other", "SL"), ("topic", "L"), ("topic", "S"), ("namespace", "M")]


@pytest.mark.parametrize(("scope", "name"), JS_CELLS)
def test_javascript_is_allowed_the_same(scene: Scene, javascript: JavaScript, scope: str, name: str) -> None:
    visitor = Visitor(scene, scope, name)
    client = JsClient(javascript, visitor.connection_string)
    later = {"$date": int((datetime.now(UTC) + timedelta(days=30)).timestamp() * 1000)}
    subscription = {"topic": scene.topic, "subscription": "sub"}
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "send to the queue": ("send", {"queue": scene.queue, "message": {"body": "m"}}),
        "schedule a message": ("schedule", {"queue": scene.queue, "message": {"body": "m"}, "at": later}),
        "peek at messages": ("peek", {"queue": scene.queue}),
        "receive from the queue": ("receive", {"queue": scene.queue}),
        "receive from the dead-letter queue": ("receive", {"queue": scene.queue, "subQueue": "deadLetter"}),
        "send to the topic": ("send", {"queue": scene.topic, "message": {"body": "m"}}),
        "list rules of a subscription over AMQP": ("rules", subscription),
        "add a rule to a subscription over AMQP": (
            "createRule",
            {**subscription, "name": f"js-{scope}-{name}", "filter": {"sqlExpression": "1=0"}},
        ),
        "remove a rule of a subscription over AMQP": ("deleteRule", {**subscription, "name": f"js-{scope}-{name}"}),
        "administration: read the queue": (
            "adminQueue",
            {"queue": scene.queue, "connectionString": visitor.connection_string},
        ),
    }
    table = cells()
    for operation, (command, arguments) in asked.items():
        try:
            client(command, **arguments)
            is_allowed = True
        except JavaScriptError as error:
            assert error.code in ("UnauthorizedAccess", "UnauthorizedRequestError"), (operation, error)
            is_allowed = False
        assert is_allowed == (name in table[operation][scope]), operation
    client.close_later()
