"""Whether an administrator's request may go on: the core counts it, and faults on purpose may be against it."""

import asyncio
from contextvars import ContextVar

from starlette.requests import ClientDisconnect, Request

from spillway.admin.http_refusals import on_purpose
from spillway.admin.namespace import AdministeredNamespace
from spillway.broker.commands import Administer
from spillway.broker.effects import Dropped, Failed, Swallowed

# The connection whose request is being answered. ASGI has no word for cutting it off.
serving: ContextVar[asyncio.Transport | None] = ContextVar("serving", default=None)


class Admission:
    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace

    async def admit(self, request: Request, path: str) -> None:
        """Returns when the request may go on. Raises `Fault`, or `ClientDisconnect` if nobody is to be answered."""
        answer = await self.namespace.pump.ask(lambda number: Administer(number, path))
        if isinstance(answer, Failed):
            raise on_purpose(answer.error)
        if isinstance(answer, Dropped):
            transport = serving.get()
            assert transport is not None, "a request comes over a connection"
            transport.abort()
        if isinstance(answer, (Dropped, Swallowed)):
            await until_gone(request)
            raise ClientDisconnect


async def until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
