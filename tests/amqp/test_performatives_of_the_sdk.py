"""What the Python SDK's own encoder writes is read here, and what we write is read by its decoder."""

from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode, _encode, outcomes, performatives
from azure.servicebus._pyamqp.endpoints import Source as SdkSource
from azure.servicebus._pyamqp.endpoints import Target as SdkTarget
from azure.servicebus._pyamqp.error import AMQPError

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.errors import AmqpError
from spillway.amqp.frames import decode_performative, encode_frame
from spillway.amqp.performatives import (
    Attach,
    Close,
    Disposition,
    Flow,
    Open,
    Performative,
    Rejected,
    SaslInit,
    Source,
    Transfer,
)
from spillway.amqp.types import Symbol

SDK_SOURCE = SdkSource("q", 0, b"session-end", 0, False, None, None, None, None, None, None)
SDK_TARGET = SdkTarget("t", 0, b"session-end", 0, False, None, None)


def read(frame: Any) -> tuple[Performative, bytes]:
    data = bytes(_encode.encode_frame(frame)[1] or b"")
    performative, at = decode_performative(data, 0, len(data), DecodeBudget())
    return performative, data[at:]


def test_a_dead_letter_disposition_of_the_sdk() -> None:
    error = AMQPError(condition=b"com.microsoft:dead-letter", description="why", info={b"DeadLetterReason": "r"})
    frame = performatives.DispositionFrame(
        role=True, first=3, last=3, settled=False, state=outcomes.Rejected(error=error), batchable=None
    )
    disposition, _ = read(frame)
    expected = AmqpError("com.microsoft:dead-letter", "why", {Symbol("DeadLetterReason"): "r"})
    assert disposition == Disposition(True, 3, 3, False, Rejected(expected))


def test_a_transfer_of_the_sdk() -> None:
    frame = performatives.TransferFrame(
        handle=2,
        delivery_id=1,
        delivery_tag=b"\0\0\0\1",
        message_format=0,
        settled=False,
        more=False,
        rcv_settle_mode=None,
        state=None,
        resume=None,
        aborted=None,
        batchable=None,
        payload=b"the message",
    )
    transfer, payload = read(frame)
    assert transfer == Transfer(2, 1, b"\0\0\0\1", 0, False)
    assert payload == b"the message"


def test_flow_open_attach_and_sasl_init_of_the_sdk() -> None:
    flow = performatives.FlowFrame(1, 65536, 1, 65536, 3, 0, 10000, None, None, None, None)
    assert read(flow)[0] == Flow(1, 65536, 1, 65536, 3, 0, 10000)
    opened = performatives.OpenFrame("c", "h", 1048576, 65535, None, None, None, None, None, {"product": "p"})
    assert read(opened)[0] == Open("c", "h", 1048576, 65535, properties={Symbol("product"): "p"})
    attach, _ = read(
        performatives.AttachFrame(
            "n",
            1,
            True,
            0,
            1,
            SDK_SOURCE,
            SDK_TARGET,
            None,
            None,
            None,
            1048576,
            None,
            None,
            None,
        )
    )
    assert isinstance(attach, Attach) and isinstance(attach.source, Source)
    assert (attach.name, attach.role, attach.source.address, attach.max_message_size) == ("n", True, "q", 1048576)
    init = performatives.SASLInit(mechanism=b"ANONYMOUS", initial_response=b"", hostname="h")
    assert read(init)[0] == SaslInit("ANONYMOUS", b"", "h")


def sdk_reads(performative: Performative, payload: bytes = b"") -> tuple[int, list[Any]]:
    kind, fields = _decode.decode_frame(memoryview(encode_frame(1, performative, payload)[8:]))
    return kind, fields


def test_the_sdk_reads_our_transfers_with_the_payload_in_its_place() -> None:
    kind, fields = sdk_reads(Transfer(7, 300, b"t" * 16, 0, True), b"payload")
    assert (kind, fields[:6], bytes(fields[11])) == (20, [7, 300, b"t" * 16, 0, True, False], b"payload")


@pytest.mark.parametrize(
    ("performative", "expected"),
    [
        (Disposition(True, 1, 9, True, Rejected(AmqpError("amqp:not-found"))), [b"amqp:not-found", None, None]),
        (Disposition(True, 1, 9, True, Rejected()), None),
    ],
)
def test_the_sdk_finds_three_fields_in_a_rejection_or_none(performative: Performative, expected: object) -> None:
    _, fields = sdk_reads(performative)
    rejected = fields[4]["rejected"]
    assert (rejected[0] if rejected else None) == expected


def test_the_sdk_reads_an_error_in_a_close() -> None:
    _, fields = sdk_reads(Close(AmqpError("amqp:connection:forced", "bye")))
    assert fields[0] == [b"amqp:connection:forced", b"bye", None]
