"""`<entity>/$management`: what is asked for by sequence number or lock token (docs/wire.md, "Management requests").

The links are attached with the first call and again after they have ended, so a `Management` can be kept for as long
as its connection. Sessions and rules will be further operations on the same `call`.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from spillway.amqp.types import LONGS, UUIDS, Array, Int, Timestamp, UInt
from spillway.client.errors import ClientError, error_for_status
from spillway.client.link import within
from spillway.client.message import OutgoingMessage, ReceivedMessage
from spillway.client.receiver import PEEK_LOCK
from spillway.client.requests import RequestPair

COMPLETED: Final = "completed"
ABANDONED: Final = "abandoned"
DEFERRED: Final = "defered"  # the service's spelling
DEAD_LETTERED: Final = "suspended"

_NO_CONTENT: Final = 204
_WITH_MESSAGES_MS: Final = 253_402_300_800_000  # the year 10000 asks for sessions with messages


class Management:
    """Calls to one entity."""

    def __init__(
        self, path: str, open_pair: Callable[[], Awaitable[RequestPair]], timeout_s: float, link_name: str | None
    ) -> None:
        self.path = path
        self._open_pair = open_pair
        self._timeout_s = timeout_s
        self._link_name = link_name
        self._pair: RequestPair | None = None
        self._mutex = asyncio.Lock()

    async def peek(
        self,
        from_sequence_number: int = 0,
        count: int = 1,
        *,
        session_id: str | None = None,
        omit_body: bool = False,
        timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Look at messages from a sequence number on, whoever holds them, without changing anything.

        `omit_body` asks for everything but their bodies.
        """
        body: dict[str, object] = {"from-sequence-number": from_sequence_number, "message-count": Int(count)}
        if omit_body:
            body["omit-message-body"] = True
        if session_id is not None:
            body["session-id"] = session_id
        answer = await self.call("com.microsoft:peek-message", body, timeout)
        return [message for message, _ in _messages(answer)]

    async def renew_locks(self, lock_tokens: Sequence[uuid.UUID], *, timeout: float | None = None) -> list[int]:
        """Extend locks; the answer is until when each holds, in ms since the epoch."""
        body: dict[str, object] = {"lock-tokens": Array(UUIDS, lock_tokens)}
        answer = await self.call("com.microsoft:renew-lock", body, timeout)
        return _integers(answer, "expirations")

    async def sessions(self, skip: int = 0, top: int = 100, *, timeout: float | None = None) -> list[str]:
        """Ids of message sessions that have messages, a page at a time."""
        body: dict[str, object] = {
            "last-updated-time": Timestamp(_WITH_MESSAGES_MS),
            "skip": Int(skip),
            "top": Int(top),
        }
        answer = await self.call("com.microsoft:get-message-sessions", body, timeout)
        found = answer.get("sessions-ids")
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    async def renew_session(self, session_id: str, *, timeout: float | None = None) -> int:
        """Extend the lock of a message session that a receiver holds; the answer is until when, in ms."""
        answer = await self.call("com.microsoft:renew-session-lock", {"session-id": session_id}, timeout)
        until = answer.get("expiration")
        return until if isinstance(until, int) else 0

    async def schedule(
        self,
        messages: Sequence[OutgoingMessage],
        enqueue_time_ms: int | None = None,
        *,
        timeout: float | None = None,
    ) -> list[int]:
        """Hand messages over that appear later; the answer is the sequence numbers that `cancel` takes.

        `enqueue_time_ms` is for all of them; without it each message says its own.
        """
        entries = [_scheduled(message, enqueue_time_ms) for message in messages]
        answer = await self.call("com.microsoft:schedule-message", {"messages": entries}, timeout)
        return _integers(answer, "sequence-numbers")

    async def cancel(self, sequence_numbers: Sequence[int], *, timeout: float | None = None) -> None:
        """Take scheduled messages back, all or none."""
        body: dict[str, object] = {"sequence-numbers": Array(LONGS, sequence_numbers)}
        await self.call("com.microsoft:cancel-scheduled-message", body, timeout)

    async def receive_deferred(
        self,
        sequence_numbers: Sequence[int],
        *,
        mode: str = PEEK_LOCK,
        session_id: str | None = None,
        timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Deferred messages by their numbers. In peek-lock mode settle them with `settle` by their lock tokens."""
        body: dict[str, object] = {
            "sequence-numbers": Array(LONGS, sequence_numbers),
            "receiver-settle-mode": UInt(1 if mode == PEEK_LOCK else 0),
        }
        if session_id is not None:
            body["session-id"] = session_id
        answer = await self.call("com.microsoft:receive-by-sequence-number", body, timeout)
        received = []
        for message, entry in _messages(answer):
            token = entry.get("lock-token")
            message.lock_token = token if isinstance(token, uuid.UUID) else None
            received.append(message)
        return received

    async def settle(
        self,
        lock_tokens: Sequence[uuid.UUID],
        status: str = COMPLETED,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, object] | None = None,
        session_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Settle by lock token, from any connection: `COMPLETED`, `ABANDONED`, `DEFERRED` or `DEAD_LETTERED`."""
        if status not in (COMPLETED, ABANDONED, DEFERRED, DEAD_LETTERED):
            raise ValueError(f"a settlement is {COMPLETED}, {ABANDONED}, {DEFERRED} or {DEAD_LETTERED}")
        body: dict[str, object] = {"disposition-status": status, "lock-tokens": Array(UUIDS, lock_tokens)}
        if reason is not None:
            body["deadletter-reason"] = reason
        if description is not None:
            body["deadletter-description"] = description
        if properties is not None:
            body["properties-to-modify"] = dict(properties)
        if session_id is not None:
            body["session-id"] = session_id
        await self.call("com.microsoft:update-disposition", body, timeout)

    async def batch_delete(
        self,
        count: int,
        before_ms: int | None = None,
        *,
        session_id: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Delete up to `count` of the oldest messages, enqueued before a time; the answer is how many it were."""
        body: dict[str, object] = {"message-count": Int(count)}
        if before_ms is not None:
            body["enqueued-time-utc"] = Timestamp(before_ms)
        if session_id is not None:
            body["session-id"] = session_id
        answer = await self.call("com.microsoft:batch-delete-messages", body, timeout)
        deleted = answer.get("message-count", 0)
        return deleted if isinstance(deleted, int) else 0

    async def call(
        self, operation: str, body: Mapping[str, object], timeout: float | None = None
    ) -> dict[object, object]:
        """Any operation. The answer's map is empty for "nothing there"; a failure is raised."""
        timeout_s = self._timeout_s if timeout is None else timeout
        return await within(self._call(operation, body, timeout_s), timeout_s, f"asking {self.path}/$management")

    async def _call(self, operation: str, body: Mapping[str, object], timeout_s: float) -> dict[object, object]:
        pair = await self._attached()
        properties: dict[str, object] = {
            "operation": operation,
            "com.microsoft:server-timeout": UInt(max(1, int(timeout_s * 1000))),
        }
        if self._link_name is not None:
            properties["associated-link-name"] = self._link_name
        response = await pair.request(properties, dict(body))
        status = response.properties.get("statusCode")
        if not isinstance(status, int):
            raise ClientError(f"an answer of {self.path}/$management has no statusCode", "amqp:decode-error")
        if not 200 <= status < 300:
            condition = response.properties.get("errorCondition")
            description = response.properties.get("statusDescription")
            raise error_for_status(
                status, str(condition) if condition else None, str(description) if description else None
            )
        if status == _NO_CONTENT or not isinstance(response.body, dict):
            return {}
        return response.body

    async def close(self) -> None:
        """Detach; a later call attaches again."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.close()

    async def _attached(self) -> RequestPair:
        async with self._mutex:
            if self._pair is None or self._pair.error is not None:
                self._pair = await self._open_pair()
            return self._pair


def _scheduled(message: OutgoingMessage, enqueue_time_ms: int | None) -> dict[str, object]:
    when_ms = message.scheduled_enqueue_time_ms if enqueue_time_ms is None else enqueue_time_ms
    if when_ms is None:
        raise ValueError("a scheduled message needs its enqueue time")
    message_id = uuid.uuid4().hex if message.message_id is None else message.message_id
    entry: dict[str, object] = {
        "message-id": message_id,
        "message": message.encode(message_id=message_id, scheduled_enqueue_time_ms=when_ms),
    }
    if message.session_id is not None:
        entry["session-id"] = message.session_id
    if message.partition_key is not None:
        entry["partition-key"] = message.partition_key
    return entry


def _messages(answer: dict[object, object]) -> list[tuple[ReceivedMessage, dict[object, object]]]:
    entries = answer.get("messages", [])
    found: list[tuple[ReceivedMessage, dict[object, object]]] = []
    for entry in entries if isinstance(entries, list) else []:
        raw = entry.get("message") if isinstance(entry, dict) else None
        if not isinstance(raw, bytes):
            raise ClientError("an answer of $management lists a message without its bytes", "amqp:decode-error")
        found.append((ReceivedMessage(raw), entry))
    return found


def _integers(answer: dict[object, object], name: str) -> list[int]:
    values = answer.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise ClientError(f"an answer of $management has no list of {name}", "amqp:decode-error")
    return [int(value) for value in values]
