"""Messages over the limits, and messages that nobody could read again (bad input B12, B14); tokens (bad input B20)."""

import random
import time
from urllib.parse import quote

import proton
import pytest
from azure.servicebus._pyamqp._decode import decode_payload

from spillway.amqp.message import Header, Properties, encode_amqp_value, encode_data, encode_message
from spillway.amqp.performatives import Accepted, Attach, Detach, Disposition, Flow, Rejected, Transfer
from spillway.amqp.types import Symbol, Timestamp
from spillway.client.credentials import sign_sas
from spillway.dialect.annotations import BATCH_FORMAT
from tests.hostile.attacker import (
    KEY,
    KEY_NAME,
    Attacker,
    flow,
    message,
    put_token,
    receiver,
    request,
    sender,
)
from tests.hostile.scene import BYTES, MIB, Scene

TOO_LARGE = "amqp:link:message-size-exceeded"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
DECODE = "amqp:decode-error"


def in_frames(attacker: Attacker, delivery_id: int, payload: bytes, frame_bytes: int, message_format: int = 0) -> None:
    """One delivery in as many frames as that takes."""
    for at in range(0, len(payload), frame_bytes):
        transfer = Transfer(0, delivery_id, b"t", message_format, settled=False, more=at + frame_bytes < len(payload))
        attacker.transfer(transfer, payload[at : at + frame_bytes])


def refused_with(attacker: Attacker) -> str:
    """The condition of the rejection, after which the link still lives."""
    state = attacker.hear(Disposition).state
    assert isinstance(state, Rejected), state
    assert state.error is not None
    assert not attacker.said(Detach)
    assert "TrackingId" in (state.error.description or "")
    return state.error.condition


def is_accepted(attacker: Attacker, delivery_id: int) -> None:
    attacker.send(delivery_id, message(b"ordinary", f"id-{delivery_id}"))
    assert attacker.hear(Disposition).state == Accepted()


# -- bad input B12


@pytest.mark.parametrize(("size", "frame_bytes"), [(300_000, 60_000), (300_000, 30), (40 * MIB, 65_000)])
def test_b12_a_message_over_the_limit_is_refused_and_its_bytes_not_kept(
    attacked: Scene, size: int, frame_bytes: int
) -> None:
    before = attacked.growth_bytes
    with attacked.attacker().open().begin().attach_sender() as attacker:
        in_frames(attacker, 0, message(b"x" * size), frame_bytes)
        assert refused_with(attacker) == TOO_LARGE
        is_accepted(attacker, 1)
    assert attacked.growth_bytes - before < 8 * MIB


def properties_of(count: int, size: int) -> bytes:
    values: dict[object, object] = {f"p{number}": "v" * size for number in range(count)}
    return encode_message(properties=Properties(message_id="m"), application_properties=values, body=encode_data(b"x"))


REFUSED = {
    "properties over 64 KB": (properties_of(80, 1_000), OUT_OF_RANGE),
    "one property over 32 KB": (properties_of(1, 33_000), OUT_OF_RANGE),
    "40,000 properties": (properties_of(20_000, 0), OUT_OF_RANGE),
    "a message-id of 129 characters": (message(message_id="i" * 129), OUT_OF_RANGE),
    "a binary message-id of 129 bytes": (message(message_id=b"i" * 129), OUT_OF_RANGE),
    "a session-id of 129 characters": (encode_message(properties=Properties("m", group_id="g" * 129)), OUT_OF_RANGE),
    "a partition key of 129 characters": (
        encode_message(message_annotations={Symbol("x-opt-partition-key"): "k" * 129}),
        OUT_OF_RANGE,
    ),
    "a due time beyond the year 9999": (
        encode_message(message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(2**63 - 1)}),
        OUT_OF_RANGE,
    ),
    "a megabyte of annotations": (
        encode_message(message_annotations={Symbol(f"a{n}"): "v" * 1_000 for n in range(1_000)}),
        TOO_LARGE,
    ),
    "bytes behind the message": (message() + b"\x00", DECODE),
    "two bodies of different kinds": (encode_data(b"x") + encode_amqp_value(1), DECODE),
    "a section that does not exist": (b"\x00\x53\x99\x45", DECODE),
    "a section twice, in any order": (2 * (encode_data(b"x") + encode_message(properties=Properties("m"))), DECODE),
}


@pytest.mark.parametrize(("payload", "condition"), REFUSED.values(), ids=REFUSED)
def test_b12_what_is_over_a_limit_is_refused_with_its_own_condition(
    attacked: Scene, payload: bytes, condition: str
) -> None:
    with attacked.attacker().open().begin().attach_sender() as attacker:
        in_frames(attacker, 0, payload, 60_000)
        assert refused_with(attacker) == condition
        is_accepted(attacker, 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        encode_data(b""),
        encode_message(properties=Properties("m"), message_annotations={Symbol("a"): "v" * 30_000}),
        encode_message(
            header=Header(ttl_ms=2**32 - 1),
            properties=Properties("m", absolute_expiry_time=2**63 - 1, creation_time=-(2**63)),
        ),
        encode_message(message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(-(2**63))}),
    ],
    ids=["nothing", "an empty body", "long annotations", "a time to live without end", "a due time long ago"],
)
def test_b12_what_is_odd_but_legal_is_stored_and_delivered(attacked: Scene, payload: bytes) -> None:
    with attacked.attacker().open().begin().attach_sender(0, BYTES) as attacker:
        attacker.send(0, payload)
        assert attacker.hear(Disposition).state == Accepted()
        attacker.tell(Attach("d", 1, True, 1, 0, receiver(1, BYTES).source, receiver(1, BYTES).target))
        attacker.hear(Attach)
        attacker.tell(flow(1, 1))
        attacker.hear(Transfer)


def test_b12_batches_of_nothing_of_rubbish_and_of_too_many_are_refused(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_sender() as attacker:
        batches = [encode_amqp_value("x"), encode_data(b"\xff"), encode_data(message()) * 4_501]
        for number, batch in enumerate(batches):
            in_frames(attacker, number, batch, 60_000, BATCH_FORMAT)
            assert refused_with(attacker) in (DECODE, OUT_OF_RANGE, "com.microsoft:argument-error")
        attacker.send(10, message(), message_format=0x12345678)
        assert refused_with(attacker) == "amqp:not-implemented"
        is_accepted(attacker, 11)


# -- bad input B14


def test_b14_whatever_is_let_in_both_sdks_decoders_can_read_as_it_is_delivered(attacked: Scene) -> None:
    """Damaged messages: refused, or read again by qpid-proton and by azure-servicebus."""
    chance = random.Random(14)
    seeds = [
        message(b"body" * 5),
        encode_message(
            header=Header(durable=True, priority=5, ttl_ms=600_000, delivery_count=0),
            message_annotations={Symbol("x-opt-partition-key"): "k", Symbol("mine"): [1, True, None]},
            properties=Properties("id", b"user", "to", "subject", "reply", "correlation", "text/plain"),
            application_properties={"a": 1, "b": "text", "c": 2.5, "d": True},
            body=encode_amqp_value({"k": [1, 2, "three"]}),
        ),
        encode_message(properties=Properties(message_id=b"\x01\x02"), body=encode_amqp_value("text")),
    ]
    accepted = 0
    # Settled as they are delivered, so that nothing is left.
    with attacked.attacker().open().begin().attach_sender(0, BYTES) as attacker:
        attacker.tell(Attach("d", 1, True, 1, 0, receiver(1, BYTES).source, receiver(1, BYTES).target))
        attacker.hear(Attach)
        attacker.tell(flow(1, 100_000))
        for number in range(1_500):
            payload = bytearray(chance.choice(seeds))
            for _ in range(chance.choice((1, 1, 2, 3))):
                payload[chance.randrange(len(payload))] = chance.choice((chance.randrange(256), 0x40, 0x45, 0xA1, 0xFF))
            attacker.send(number, bytes(payload))
            if attacker.hear(Disposition).state == Accepted():
                accepted += 1
        # All that were delivered came before this one. Damage can make a message one for later, or for never.
        attacker.send(2_000, message(b"the last"))
        while b"the last" not in b"".join(attacker.payloads[-1:]):
            attacker.hear(Transfer)
    assert 100 < accepted < 1_400
    assert len(attacker.payloads) > accepted * 0.9
    for delivered in attacker.payloads:
        proton.Message().decode(delivered)
        decode_payload(memoryview(delivered))


# -- bad input B20, over the wire: the table of signatures is tested with the rights


def cbs(attacker: Attacker) -> Attacker:
    attacker.tell(sender(0, "$cbs"), receiver(1, "$cbs"))
    attacker.hear(Attach)
    attacker.hear(Attach)
    attacker.tell(flow(1, 100))
    return attacker


SOON = int(time.time()) + 600
BAD_TOKENS = {
    "nothing": "",
    "no signature at all": "SharedAccessSignature",
    "a wrong key": sign_sas("sb://localhost/target", KEY_NAME, "wrong", SOON),
    "a wrong name": sign_sas("sb://localhost/target", "nobody", KEY, SOON),
    "another queue": sign_sas("sb://localhost/target1", KEY_NAME, KEY, SOON),
    "a part of the name": sign_sas("sb://localhost/tar", KEY_NAME, KEY, SOON),
    "a queue below it": sign_sas("sb://localhost/target/below", KEY_NAME, KEY, SOON),
    "another host": sign_sas("sb://elsewhere/target", KEY_NAME, KEY, SOON),
    "a host that begins like it": sign_sas("sb://localhost.example/target", KEY_NAME, KEY, SOON),
    "encoded twice": sign_sas(quote("sb://localhost/target", safe=""), KEY_NAME, KEY, SOON),
    "up and down again": sign_sas("sb://localhost/other/../target", KEY_NAME, KEY, SOON),
    "a resource of nothing but a slash and a dot": sign_sas("/.", KEY_NAME, KEY, SOON),
    "expired": sign_sas("sb://localhost/target", KEY_NAME, KEY, 1_000),
    "no base64": "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Ftarget&sig=%FF%00&se=9999999999&skn=x",
    "fields twice": sign_sas("sb://localhost/target", KEY_NAME, KEY, SOON) + "&se=9999999999",
    "a time that is none": "SharedAccessSignature sr=x&sig=eA==&se=soon&skn=x",
    "50 KB": "SharedAccessSignature " + "sr=x&" * 10_000,
    "no ASCII": "SharedAccessSignature sr=é&sig=é&se=1&skn=é",
}


@pytest.mark.parametrize("token", BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_b20_a_token_that_is_not_good_is_answered_with_401_and_opens_nothing(attacked: Scene, token: str) -> None:
    with attacked.attacker().open("ANONYMOUS").begin() as attacker:
        cbs(attacker).send(0, put_token(0, "sb://localhost/target", token))
        attacker.hear(Transfer)
        answer = proton.Message()
        answer.decode(attacker.payloads[-1])
        properties = repr(answer.properties)
        assert "401" in properties
        assert KEY not in properties
        attacker.tell(sender(2))
        attacker.detaches_with("amqp:unauthorized-access")


def test_b20_a_megabyte_of_token_is_refused_as_it_comes(attacked: Scene) -> None:
    before = attacked.growth_bytes
    with attacked.attacker().open("ANONYMOUS").begin() as attacker:
        cbs(attacker)
        token = "SharedAccessSignature sr=" + "x" * 1_000_000
        in_frames(attacker, 0, put_token(0, "sb://localhost/target", token), 60_000)
        assert refused_with(attacker) == TOO_LARGE
        attacker.tell(sender(2))
        attacker.detaches_with("amqp:unauthorized-access")
    assert attacked.growth_bytes - before < 16 * MIB


def test_b20_answers_that_are_not_taken_end_their_link_before_they_fill_the_memory(attacked: Scene) -> None:
    """No credit, or no window: the two ways not to take them. 60 MB of answers in each."""
    asked = encode_message(
        properties=Properties(message_id="i" * 60_000), application_properties={"operation": "put-token", "name": "x"}
    )
    for window in (5_000, 0):
        before = attacked.growth_bytes
        with attacked.attacker().open("ANONYMOUS").begin(incoming_window=window) as attacker:
            attacker.tell(sender(0, "$cbs"), receiver(1, "$cbs"))
            attacker.hear(Attach)
            attacker.hear(Attach)
            if window == 0:
                attacker.tell(Flow(0, 0, 0, 5_000, 1, 0, 100_000))
            for number in range(1_000):
                attacker.transfer(Transfer(0, number, b"t", 0, settled=True), asked)
                if number % 50 == 0:
                    attacker.drain()
            attacker.detaches_with("amqp:resource-limit-exceeded")
        assert attacked.growth_bytes - before < 16 * MIB


def test_b20_requests_for_messages_do_not_all_answer_at_once(attacked: Scene) -> None:
    """200 requests for a megabyte each by a client that does not read."""
    before = attacked.growth_bytes
    with attacked.attacker().open().begin().attach_sender() as attacker:
        for number in range(20):
            in_frames(attacker, number, message(b"x" * 60_000, f"big-{number}"), 60_500)
        attacker.tell(sender(2, "target/$management"), receiver(3, "target/$management"))
        attacker.hear(Attach)
        attacker.hear(Attach)
        attacker.tell(flow(3, 100_000))
        for number in range(200):
            body = {"from-sequence-number": 0, "message-count": 100}
            asked = request(number, "com.microsoft:peek-message", body)
            attacker.transfer(Transfer(2, 100 + number, b"t", 0, settled=True), asked)
        attacked.neighbour.is_content(len(attacked.neighbour.rounds))
        assert attacked.growth_bytes - before < 32 * MIB
        answers = 0
        while answers < 200:
            answers += not attacker.hear(Transfer, 60).more
