"""Damaged frames against a live broker: a corpus of valid ones, changed at random but repeatably.

    python -m tests.hostile.fuzz [--frames 200000] [--seed 1]

Each connection logs in (or tries to), and sends some frames of which most are damaged: bits flipped, bytes cut or
doubled, two frames spliced, fields swapped, sizes rewritten to fit or not. Whatever it answers must be frames, and no
error may be the broker's own fault. The summary is one line of JSON; the exit status is 0 if all went well.
"""

import argparse
import json
import random
import socket
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from spillway.amqp.frames import AMQP_HEADER, SASL_HEADER, encode_frame, encode_sasl_frame
from spillway.amqp.message import Header, Properties, encode_amqp_value, encode_data, encode_message
from spillway.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Performative,
    Received,
    Rejected,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from spillway.amqp.sasl import write_plain
from spillway.amqp.types import Array, Int, Symbol, Timestamp
from spillway.dialect.annotations import BATCH_FORMAT
from tests.hostile.attacker import KEY, KEY_NAME, Attacker, accept, flow, message, put_token, receiver, request, sender
from tests.hostile.scene import FUZZED, MIB, Scene

FRAMES_PER_CONNECTION = 25
ANSWER_S = 20.0


LAST_LINK = b"the-last-link"
LINKS: list[Performative] = [
    sender(0, FUZZED),
    receiver(1, FUZZED),
    sender(2, f"{FUZZED}/$management"),
    receiver(3, f"{FUZZED}/$management"),
    sender(4, "$cbs"),
    receiver(5, "$cbs"),
    Attach("delete", 6, True, 1, 0, Source(FUZZED), Target("here")),
    receiver(7, f"{FUZZED}/$DeadLetterQueue", LAST_LINK.decode()),
]
NUMBERS = (0, 1, 2, 3, 7, 20, 255, 5_000, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
WHOLE = encode_message(
    header=Header(durable=True, priority=4, ttl_ms=60_000, delivery_count=0),
    message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1), Symbol("x-opt-partition-key"): "k"},
    properties=Properties("id", b"u", "to", "s", "r", "c", "text/plain", None, 2**40, 2**39, "group", 1, "g"),
    application_properties={"a": 1, "b": "text", "c": True, "d": 1.5, "e": None},
    body=encode_data(b"some body"),
)


def payloads() -> list[tuple[int, int, bytes]]:
    """Handle, message-format and payload of transfers: messages, batches, and every kind of request."""
    three = Array(0x81, [1, 2, 3])
    tokens = Array(0x98, [uuid.UUID(int=number) for number in range(3)])
    requests: list[tuple[str, object]] = [
        ("peek-message", {"from-sequence-number": 1, "message-count": Int(10)}),
        ("schedule-message", {"messages": [{"message-id": "s", "message": WHOLE}]}),
        ("cancel-scheduled-message", {"sequence-numbers": three}),
        ("receive-by-sequence-number", {"sequence-numbers": three, "receiver-settle-mode": Int(1)}),
        ("renew-lock", {"lock-tokens": tokens}),
        ("update-disposition", {"lock-tokens": tokens, "disposition-status": "suspended", "deadletter-reason": "r"}),
        ("batch-delete-messages", {"message-count": Int(5), "enqueued-time-utc": Timestamp(2**45)}),
    ]
    return [
        (0, 0, message(b"plain")),
        (0, 0, WHOLE),
        (0, 0, encode_message(properties=Properties(message_id="v"), body=encode_amqp_value({"k": [1, "x", None]}))),
        (0, BATCH_FORMAT, encode_data(message(b"one")) + encode_data(WHOLE)),
        (4, 0, put_token(6, f"sb://localhost/{FUZZED}")),
        *((2, 0, request(number, f"com.microsoft:{name}", body)) for number, (name, body) in enumerate(requests)),
    ]


def corpus() -> list[bytes]:
    """Every performative, every kind of link and request, as the SDKs would send them."""
    bodies: list[Performative] = [
        Open("fuzz", "localhost", 65_536, 4_999, 60_000, properties={Symbol("product"): "fuzz"}),
        Begin(None, 0, 5_000, 5_000),
        *LINKS,
        flow(1, 10),
        flow(3, 10_000),
        flow(5, 10_000),
        flow(6, 3, drain=True),
        flow(None, None, echo=True),
        accept(0, 20),
        accept(0, 3, settled=True),
        Disposition(True, 1, 4, False, Modified(True, False, {Symbol("k"): "v"})),
        Disposition(True, 2, None, False, Modified(True, True)),
        Disposition(True, 3, None, False, Rejected(None)),
        Detach(6, True),
        Detach(1, False),
        End(),
        Close(),
    ]
    frames = [encode_frame(0, body) for body in bodies]
    for number, (handle, message_format, payload) in enumerate(payloads()):
        frames.append(encode_frame(0, Transfer(handle, number, b"tag%d" % number, message_format), payload))
    return frames


class Damage:
    """Repeatable for a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.corpus = corpus()
        self.payloads = payloads()
        self.deliveries = 0

    def frame(self) -> bytes:
        """Damaged as a whole, which mostly ends the connection; or only inside its payload, or by odd numbers alone."""
        kind = self.chance.random()
        if kind < 0.06:
            return self.damaged_frame()
        if kind < 0.6:
            return self.damaged_payload()
        return encode_frame(0, self.odd_performative())

    def damaged_frame(self) -> bytes:
        frame = bytearray(self.chance.choice(self.corpus))
        for _ in range(self.chance.choice((0, 1, 1, 1, 2))):
            self.damage(frame, 8)
        if self.chance.random() < 0.8:  # most often its size still fits: else nothing behind it would be read
            frame[0:4] = len(frame).to_bytes(4, "big")
        return bytes(frame)

    def damaged_payload(self) -> bytes:
        """A good transfer of bad bytes, sometimes in two frames, called off or settled."""
        chance = self.chance
        handle, message_format, payload = chance.choice(self.payloads)
        damaged = bytearray(payload)
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            self.damage(damaged, 0)
        self.deliveries += 1
        settled = chance.random() < 0.3
        tag = self.deliveries.to_bytes(4, "big")
        at = chance.randrange(len(damaged) + 1) if chance.random() < 0.2 else len(damaged)
        is_split = at < len(damaged)
        first = Transfer(handle, self.deliveries, tag, message_format, settled=settled, more=is_split)
        frames = encode_frame(0, first, bytes(damaged[:at]))
        if is_split:
            rest = Transfer(handle, aborted=chance.random() < 0.2)
            frames += encode_frame(0, rest, b"" if rest.aborted else bytes(damaged[at:]))
        return frames

    def odd_performative(self) -> Performative:
        """Good encoding, numbers from the edges."""
        chance = self.chance
        one, two, three = (chance.choice(NUMBERS) for _ in range(3))
        kind = chance.randrange(12)
        if kind < 4:
            handle = chance.choice((1, 1, 3, 5, 6, 7, None))
            credit = None if handle is None else one
            return Flow(two, max(three, 1_000), 0, 5_000, handle, None, credit, drain=kind == 0, echo=kind == 1)
        if kind < 10:
            state = chance.choice((ACCEPTED, RELEASED, Rejected(None), Modified(True, kind < 6), Received(0, 0), None))
            return Disposition(kind != 4, one % 40, chance.choice((None, two, one % 40 + 3)), kind > 7, state)
        if kind == 10:
            handle = chance.randrange(8, 30)
            return chance.choice((sender(handle, FUZZED, f"n{one}"), receiver(handle, FUZZED, f"n{two}")))
        return Detach(chance.choice((1, 6, 7, one)), True)

    def damage(self, data: bytearray, start: int) -> None:
        chance = self.chance
        if len(data) <= start:
            return
        at = chance.randrange(start, len(data))
        kind = chance.randrange(7)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at] = chance.choice((0x00, 0x40, 0x41, 0x43, 0x45, 0x7F, 0x80, 0xA1, 0xC0, 0xD0, 0xF0, 0xFF))
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            other = chance.choice(self.corpus)
            data[at:] = other[chance.randrange(8, len(other)) :]
        elif kind == 4:  # two fields change places, or nearly
            size = chance.randrange(1, 6)
            data[at : at + 2 * size] = data[at + size : at + 2 * size] + data[at : at + size]
        elif kind == 5:
            data[at:at] = data[at : at + chance.randrange(1, 20)]
        else:
            data[chance.randrange(len(data))] = chance.randrange(256)

    def prologue(self) -> tuple[bytes, bool]:
        """Up to the attached links, and whether it is whole; one in twenty is damaged already there."""
        chance = self.chance
        mechanism, response = chance.choice((("PLAIN", write_plain(KEY_NAME, KEY)),) * 4 + (("ANONYMOUS", b""),))
        parts = [
            SASL_HEADER,
            encode_sasl_frame(SaslInit(mechanism, response)),
            AMQP_HEADER,
            *self.corpus[:2],
            *(encode_frame(0, link) for link in LINKS),
            *(encode_frame(0, flow(handle, 20_000)) for handle in (1, 3, 5, 6)),
        ]
        is_whole = chance.random() >= 0.05
        if not is_whole:
            broken = bytearray(chance.choice(parts))
            self.damage(broken, 0)
            parts[chance.randrange(len(parts))] = bytes(broken)
        self.deliveries = 0
        return b"".join(parts), is_whole


def answered(port: int, prologue: bytes, is_whole: bool, frames: bytes) -> list[str]:
    """Say it all, stop, and read to the end. What ended there, and with which conditions."""
    attacker = Attacker(port)
    heard = bytearray()
    with attacker:
        attacker.say(prologue)
        attacker.socket.settimeout(ANSWER_S)
        try:
            while is_whole and LAST_LINK not in heard:  # until the last attach is answered
                data = attacker.socket.recv(262_144)
                assert data, "hung up on a client that has done nothing wrong yet"
                heard += data
            attacker.say(frames)
            attacker.socket.shutdown(socket.SHUT_WR)
            while data := attacker.socket.recv(262_144):
                heard += data
        except OSError as error:
            assert not isinstance(error, TimeoutError), f"no answer, and no end, in {ANSWER_S} s"
            # It closed with bytes of ours unread.
    return conditions_in(attacker, bytes(heard))


def conditions_in(attacker: Attacker, heard: bytes) -> list[str]:
    """Frame after frame; protocol headers stand between them."""
    while heard:
        if heard.startswith(b"AMQP"):
            heard = heard[8:]
            continue
        size = int.from_bytes(heard[:4], "big")
        assert len(heard) < 4 or 8 <= size <= 65_536, f"no frame: {heard[:16]!r}"
        if len(heard) < 8 or len(heard) < size:
            break  # reset in the middle of it
        attacker.received += heard[:size]
        attacker._parse()
        heard = heard[size:]
    ends = [body for _, body in attacker.answers if isinstance(body, (Close, End, Detach))]
    return [f"{type(body).__name__.lower()} {body.error.condition}" for body in ends if body.error is not None]


def fuzz(scene: Scene, frames: int, seed: int) -> dict[str, object]:
    """The summary. Raises AssertionError for anything that must not be."""
    damage = Damage(seed)
    conditions: Counter[str] = Counter()
    sent = connections = 0
    slowest_s = 0.0
    began = time.monotonic()
    while sent < frames:
        count = min(FRAMES_PER_CONNECTION, frames - sent)
        prologue, is_whole = damage.prologue()
        said = b"".join([damage.frame() for _ in range(count)])
        started = time.monotonic()
        for condition in answered(scene.port, prologue, is_whole, said):
            assert "internal-error" not in condition, f"seed {seed}, connection {connections}: {condition}"
            conditions[condition] += 1
        slowest_s = max(slowest_s, time.monotonic() - started)
        assert scene.broker.is_running, f"seed {seed}, connection {connections}: {scene.broker.stderr[-3_000:]}"
        sent += count
        connections += 1
    scene.is_unharmed()
    return {
        "frames": sent,
        "connections": connections,
        "seed": seed,
        "took_s": round(time.monotonic() - began, 1),
        "slowest_connection_s": round(slowest_s, 3),
        "growth_mib": round(scene.growth_bytes / MIB, 1),
        "neighbour_rounds": len(scene.neighbour.rounds),
        "conditions": dict(conditions.most_common()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged frames against a live broker.")
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        scene = Scene(Path(directory))
        try:
            summary = fuzz(scene, options.frames, options.seed)
            scene.close()
        except AssertionError as error:
            print(json.dumps({"ok": False, "error": str(error)}))
            scene.broker.kill()
            return 1
    print(json.dumps({"ok": True, **summary}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
