"""The official SDKs in one shape, so that a test is written once.

`PythonSdk` is azure-servicebus, blocking or asyncio. The asyncio one runs on a loop of its own thread and is driven
through `Blocking`, so it is the asyncio code that speaks to the broker. `JsClient` is @azure/service-bus in Node.
"""

import asyncio
import inspect
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any, Self, cast

import azure.servicebus.aio
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender

from tests.tools.js import JavaScript

SYNC = "sync"
ASYNCIO = "asyncio"
CALL_TIMEOUT_S = 60.0
CLOSING_AT_ONCE = 16
WAIT_S = 20  # for a message that is known to come
# Quick to fail: a refusal is seen as it is, not after the SDK has tried again.
NO_RETRY: dict[str, Any] = {"retry_total": 0}
JS_NO_RETRY = {"retryOptions": {"maxRetries": 0, "timeoutInMs": 15_000}}
_numbers = itertools.count(1)


class Blocking:
    """An object of the asyncio SDK with the manners of its blocking twin."""

    def __init__(self, inner: Any, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._inner = inner
        self._run = run

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return self._wrapped(value)

        def call(*arguments: Any, **named: Any) -> Any:
            return self._wrapped(self._run(_invoke(value, arguments, named)))

        return call

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._run(self._inner.__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._run(self._inner.__anext__())
            except StopAsyncIteration:
                return

    def _wrapped(self, value: Any) -> Any:
        is_theirs = type(value).__module__.startswith("azure.servicebus.aio")
        return Blocking(value, self._run) if is_theirs else value


async def _invoke(method: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    plain = [argument._inner if isinstance(argument, Blocking) else argument for argument in arguments]
    result = method(*plain, **named)
    return await result if inspect.isawaitable(result) else result


class Closing:
    """Closes handlers and clients behind the tests' backs: the Python SDK takes half a second for each.

    One for the whole run. `finish` waits for all of them and raises what any of them raised.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="asyncio SDK", daemon=True)
        self._thread.start()
        self._pool = ThreadPoolExecutor(CLOSING_AT_ONCE)
        self._pending: list[Future[Any]] = []

    def close_later(self, made: list[Any]) -> None:
        """In this order: handlers before their client."""
        self._pending.append(self._pool.submit(_close_all, made))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """On the loop of the asyncio SDK."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(CALL_TIMEOUT_S)

    def finish(self) -> None:
        for one in self._pending:
            one.result(CALL_TIMEOUT_S)
        self._pool.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self.loop.close()


def _close_all(made: list[Any]) -> None:
    for one in made:
        one.close()


class PythonSdk:
    """Makes clients, senders and receivers of one kind, and has them closed when the test is over."""

    def __init__(self, kind: str, connection_string: str, closing: Closing) -> None:
        self.kind = kind
        self.connection_string = connection_string
        self._closing = closing
        self._made: list[Any] = []
        self._client: ServiceBusClient | None = None

    @property
    def client(self) -> ServiceBusClient:
        """One that does not retry."""
        if self._client is None:
            self._client = self.connect()
        return self._client

    def connect(self, connection_string: str | None = None, **options: Any) -> ServiceBusClient:
        """Another client; no retries unless asked for."""
        text = connection_string or self.connection_string
        options = {**NO_RETRY, **options}
        if self.kind == SYNC:
            client = ServiceBusClient.from_connection_string(text, **options)
        else:
            made = self._closing.run(_connect_asyncio(text, options))
            client = cast(ServiceBusClient, Blocking(made, self._closing.run))
        self._made.append(client)
        return client

    def sender(self, queue: str, client: ServiceBusClient | None = None) -> ServiceBusSender:
        """Attached, so that the test's own time does not include it."""
        sender = (client or self.client).get_queue_sender(queue)
        self._made.insert(0, sender)
        return sender.__enter__()

    def receiver(self, queue: str, client: ServiceBusClient | None = None, **options: Any) -> ServiceBusReceiver:
        receiver = (client or self.client).get_queue_receiver(queue, **options)
        self._made.insert(0, receiver)
        return receiver.__enter__()

    def close(self) -> None:
        self._closing.close_later(self._made)

    def close_now(self) -> None:
        """While its broker is still there."""
        _close_all(self._made)
        self._made = []


async def _connect_asyncio(text: str, options: dict[str, Any]) -> azure.servicebus.aio.ServiceBusClient:
    return azure.servicebus.aio.ServiceBusClient.from_connection_string(text, **options)


def take(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    """Exactly so many messages, in however many calls they come."""
    messages: list[ServiceBusReceivedMessage] = []
    while len(messages) < count:
        more = receiver.receive_messages(max_message_count=count - len(messages), max_wait_time=WAIT_S)
        assert more, f"only {len(messages)} of {count} messages came"
        messages += more
    return messages


def take_one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    return take(receiver)[0]


def text_of(message: ServiceBusReceivedMessage) -> str:
    """The body, as text."""
    return b"".join(bytes(part) for part in message.body).decode()


def known(value: Any) -> Any:
    """What the SDK types as optional and the broker always says."""
    assert value is not None
    return value


def ms_of(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


class JsClient:
    """One client object of the JavaScript SDK, so one connection."""

    def __init__(
        self, javascript: JavaScript, connection_string: str, options: Any = JS_NO_RETRY, websocket: bool = False
    ) -> None:
        self.javascript = javascript
        self.name = f"client {next(_numbers)}"
        javascript.call(
            "connect",
            client=self.name,
            connectionString=connection_string,
            options=options,
            websocket=websocket,
        )

    def __call__(self, command: str, **arguments: Any) -> Any:
        return self.javascript.call(command, client=self.name, **arguments)

    def receive_one(self, queue: str, **arguments: Any) -> Any:
        (message,) = self("receive", queue=queue, waitMs=WAIT_S * 1000, **arguments)
        return message

    def close_later(self) -> None:
        self.javascript.start("close", client=self.name)
