"""Message sessions received by the lock keeper for a worker: links, and the locks with them, outlive the worker.

A session's lock goes with its link, and Spark ends Python workers. So with `mode=peeklock` the process beside the
executor has the links: a worker asks it for messages, piece by piece, over the keeper's socket. The request is a line
of JSON, with the names of the sessions behind it. Then the worker says `next`, `back` (nobody has seen the last piece)
or nothing more, and the keeper answers each `next` with a line of JSON and the messages as they came.
"""

import asyncio
import contextlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Final

from spillway.client import ReceivedMessage
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool, NamespaceError
from spillway.spark.platform.operations import Operations
from spillway.spark.source.declaration import PEEK_LOCK
from spillway.spark.source.keeper_client import KeeperClient, Request
from spillway.spark.source.keeper_place import KeeperUnavailable
from spillway.spark.source.lock_renewer import LockBatch, LockRenewer
from spillway.spark.source.options import ReadOptions
from spillway.spark.source.session_reception import SessionReception, SessionsWanted

RECEIVE: Final = "receive"
NEXT: Final = b"next\n"
BACK: Final = b"back\n"
NAMES_BYTES_MAX: Final = 64 * 1024 * 1024  # 100,000 of 128 characters, escaped
TOKEN_BYTES: Final = 16


# -- in workers --------------------------------------------------------------------------------------------------------


class RelayedReception:
    """Looks like `SessionReception`, and asks the keeper; where there is none, `instead` receives in this process."""

    def __init__(
        self,
        client: KeeperClient,
        options: ReadOptions,
        wanted: SessionsWanted,
        batch: LockBatch | None,
        operations: Operations,
        instead: Callable[[KeeperUnavailable], SessionReception],
    ) -> None:
        self._client = client
        self._instead = instead
        self._local: SessionReception | None = None
        self._request = _request(options, wanted, batch, operations)
        self._names = json.dumps(list(wanted.names)).encode()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_asking = False
        self._is_over = False
        self._said = ""

    async def next(self) -> list[ReceivedMessage]:
        if self._is_over:
            return []
        if self._streams is None and self._local is None:
            await self._open()
        if self._local is not None or self._streams is None:
            return [] if self._local is None else await self._local.next()
        reader, writer = self._streams
        assert not self._is_asking, "one question is under way at a time"
        self._is_asking = True
        try:
            writer.write(NEXT)
            answer = json.loads(await reader.readline() or b"null")
            body = await reader.readexactly(answer["bytes"]) if answer and "bytes" in answer else b""
        except (OSError, asyncio.IncompleteReadError):
            answer, body = None, b""
        finally:
            self._is_asking = False
        if answer is None:
            if self._is_over:  # given up
                return []
            raise NamespaceError("the process that holds message sessions has ended")
        if "error" in answer:
            raise NamespaceError(str(answer["error"]))
        self._said = answer.get("said", self._said)
        return _unpacked(answer["sizes"], body)

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self._streams = await self._client.open({**self._request, "names_bytes": len(self._names)}, self._names)
        except KeeperUnavailable as error:
            self._local = self._instead(error)

    def abandon(self) -> None:
        """From any thread. What is asked for now is not waited for."""
        if self._local is not None:
            self._local.abandon()
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        if self._is_asking and self._streams is not None:
            self._is_over = True
            self._streams[1].close()

    def said(self) -> str:
        return self._said if self._local is None else self._local.said()

    async def requeue(self, unseen: list[ReceivedMessage]) -> None:
        if self._local is not None:
            await self._local.requeue(unseen)
        elif unseen and self._streams is not None and not self._is_over:
            self._streams[1].write(BACK)

    async def end(self) -> None:
        if self._local is not None:
            await self._local.end()
        elif self._streams is not None:
            with contextlib.suppress(OSError):
                self._streams[1].close()
                await self._streams[1].wait_closed()


def _request(options: ReadOptions, wanted: SessionsWanted, batch: LockBatch | None, operations: Operations) -> Request:
    # A secret that is only named is looked up here: the keeper has the environment of another worker.
    reached = replace(options.access, secret_name="", connection_string=options.access.resolve())
    return {
        "do": RECEIVE,
        "batch": batch,
        "access": asdict(reached),
        "entity": wanted.entity,
        "count_max": wanted.count_max,
        "sessions_max": wanted.sessions_max,
        "bytes_max": wanted.bytes_max,
        "is_of_stream": wanted.is_of_stream,
        "max_wait_s": options.max_wait_s,
        "renew_s": options.renew_s,
        "per_second": operations.per_second,
    }


def _unpacked(sizes: Sequence[int], body: bytes) -> list[ReceivedMessage]:
    found = []
    at = 0
    for size in sizes:
        end = at + TOKEN_BYTES + size
        found.append(ReceivedMessage(body[at + TOKEN_BYTES : end], body[at : at + TOKEN_BYTES], is_settled=False))
        at = end
    return found


# -- in the keeper -----------------------------------------------------------------------------------------------------


async def relay(
    pool: ConnectionPool,
    renewer: LockRenewer,
    request: Request,
    batch: LockBatch | None,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Serve one worker until it has enough, or has gone; what it has seen is held on."""
    if not 0 <= request["names_bytes"] <= NAMES_BYTES_MAX:
        raise ValueError("so many names of sessions are no request of a worker")
    names = json.loads(await reader.readexactly(request["names_bytes"]))
    reception = _reception(pool, renewer, request, batch, names)
    unseen: list[ReceivedMessage] = []
    try:
        while (asked := await reader.readline()) in (NEXT, BACK):
            if asked == BACK:
                break
            unseen = []
            unseen, is_gone = await _next(reception, reader)
            if is_gone:
                break
            writer.write(_packed(unseen, reception.said()))
            await writer.drain()
        else:
            unseen = []  # it has gone on with them, or died with them: the next batch has them then
    except NamespaceError as error:
        writer.write(json.dumps({"error": str(error)}).encode() + b"\n")
    except OSError:
        pass  # the worker has gone
    finally:
        await reception.requeue(unseen)
        await reception.end()


def _reception(
    pool: ConnectionPool, renewer: LockRenewer, request: Request, batch: LockBatch | None, names: Sequence[str]
) -> SessionReception:
    options = ReadOptions(
        access=Access(**request["access"]),
        entities=(request["entity"],),
        mode=PEEK_LOCK,
        max_wait_s=request["max_wait_s"],
        renew_s=request["renew_s"],
    )
    wanted = SessionsWanted(
        request["entity"], names, request["count_max"], request["sessions_max"], request["is_of_stream"]
    )
    wanted.bytes_max = request["bytes_max"]
    return SessionReception(pool, options, wanted, batch, Operations(request["per_second"]), renewer)


async def _next(reception: SessionReception, reader: asyncio.StreamReader) -> tuple[list[ReceivedMessage], bool]:
    """The next messages, and whether the worker has gone while they were waited for."""
    coming = asyncio.ensure_future(reception.next())
    gone = asyncio.ensure_future(reader.read(1))  # a worker says nothing while it waits: what comes is the end
    await asyncio.wait([coming, gone], return_when=asyncio.FIRST_COMPLETED)
    is_gone = gone.done()
    for task in (coming, gone):
        if not task.done():
            task.cancel()
    await asyncio.wait([coming, gone])
    assert coming.done() and gone.done(), "nothing of this question is under way when the next one comes"
    return ([] if coming.cancelled() else coming.result()), is_gone


def _packed(messages: Sequence[ReceivedMessage], said: str) -> bytes:
    body = b"".join([part for message in messages for part in (_token(message), message.raw)])
    sizes = [len(message.raw) for message in messages]
    assert len(body) == sum(sizes) + TOKEN_BYTES * len(sizes), "the sizes tell where each message ends"
    return json.dumps({"sizes": sizes, "bytes": len(body), "said": said}).encode() + b"\n" + body


def _token(message: ReceivedMessage) -> bytes:
    token = b"" if message.lock_token is None else message.lock_token.bytes_le
    return struct.pack(f"{TOKEN_BYTES}s", token)
