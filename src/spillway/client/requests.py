"""Request and response over a pair of links: how `$cbs` and `$management` are spoken to.

Both links share an AMQP session. Responses are found by their correlation id; the reply link's name, its target
address and the reply-to are one and the same, so that any way of finding it works
(docs/wire.md, "Management requests").
"""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Final

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget
from spillway.amqp.errors import ProtocolError
from spillway.amqp.events import TransferReceived
from spillway.amqp.link import Link
from spillway.amqp.message import (
    Properties,
    decode_body_value,
    decode_map,
    decode_properties,
    encode_amqp_value,
    encode_message,
    split_sections,
)
from spillway.amqp.performatives import ACCEPTED, Source, Target
from spillway.amqp.session import Session
from spillway.client.errors import ClientError, LinkClosed
from spillway.client.link import Carrier, LinkEnd
from spillway.client.sender import Sender

# Responses that may be on their way at a time; also how many requests are sent before one is answered.
RESPONSES_MAX: Final = 100


class Response:
    """What came back."""

    def __init__(self, properties: dict[object, object], body: object) -> None:
        self.properties = properties
        self.body = body


class Responses(LinkEnd):
    """The receiving half."""

    def __init__(self, carrier: Carrier, link: Link, label: str, timeout_s: float) -> None:
        super().__init__(carrier, link, label, timeout_s)
        self.waiting: dict[str, asyncio.Future[Response]] = {}

    def on_open(self) -> None:
        self.link.grant(RESPONSES_MAX)
        self.carrier.flush_soon()

    def on_transfer(self, event: TransferReceived) -> None:
        if not event.settled:
            self.link.session.settle(event.delivery_id, ACCEPTED)
        if self.link.credit_left <= RESPONSES_MAX // 2:
            self.link.grant(RESPONSES_MAX)
        try:
            correlation_id, response = _decode_response(event.payload)
        except ProtocolError as error:
            self.end(ClientError(f"an answer of {self.label} cannot be read: {error}", error.condition))
            return
        waiter = self.waiting.pop(str(correlation_id), None)
        if waiter is not None and not waiter.done():
            waiter.set_result(response)

    def on_failed(self, error: ClientError) -> None:
        for waiter in self.waiting.values():
            if not waiter.done():
                waiter.set_exception(error)
        self.waiting.clear()


class RequestPair:
    """Both halves of the links to one address. Opened once; when one half ends, so does the other."""

    def __init__(self, carrier: Carrier, session: Session, address: str, timeout_s: float) -> None:
        reply_to = f"{address}-{uuid.uuid4().hex}"
        # The receiving half first, so that an answer always finds its link.
        self._responses = Responses(
            carrier,
            session.attach_receiver(reply_to, Source(address), Target(reply_to)),
            address,
            timeout_s,
        )
        self._sender = Sender(
            carrier,
            session.attach_sender(f"{reply_to}-requests", Source(reply_to), Target(address)),
            address,
            timeout_s,
            window=RESPONSES_MAX,
        )
        self._responses.sibling = self._sender
        self._sender.sibling = self._responses
        self._carrier = carrier
        self._address = address
        self._reply_to = reply_to
        self._count = 0
        carrier.flush_soon()

    @property
    def error(self) -> ClientError | None:
        assert (self._responses.error is None) == (self._sender.error is None), "both halves end together"
        return self._responses.error

    async def wait_attached(self) -> None:
        await self._responses.wait_attached()
        await self._sender.wait_attached()

    async def request(self, properties: Mapping[str, object], body: object) -> Response:
        """Ask, and wait for the answer for as long as the caller does: a late one is dropped."""
        await self._sender.ready()
        self._count += 1
        message_id = f"{self._reply_to}:{self._count}"
        encoded = encode_message(
            properties=Properties(message_id=message_id, reply_to=self._reply_to),
            application_properties=dict(properties.items()),
            body=encode_amqp_value(body),
        )
        waiter: asyncio.Future[Response] = self._carrier.loop.create_future()
        assert message_id not in self._responses.waiting, "the id of a request is used once"
        self._responses.waiting[message_id] = waiter
        try:
            await self._sender.post_raw(encoded)
            return await waiter
        finally:
            self._responses.waiting.pop(message_id, None)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # it may have failed together with the post, which was reported

    def close(self) -> None:
        """Detach both; what still waits fails."""
        self._sender.end(LinkClosed(f"the links to {self._address} were closed", is_transient=False))


def _decode_response(payload: bytes) -> tuple[object, Response]:
    sections = split_sections(payload, DecodeBudget(MESSAGE_ELEMENTS_MAX))
    properties = decode_properties(payload, sections)
    values = decode_map(payload, sections.application_properties)
    return properties.correlation_id, Response(values, decode_body_value(payload, sections))
