"""What a client can do to a broker with the right to send, the right to listen, or none, each until a deadline.

    python -m tests.hostile.onslaught GROUND.json SEED SECONDS KIND...

All kinds named run at once, each in a thread. Whatever the broker does about it (refuses, closes, reads no faster) an
attack begins again. One JSON line at the end: how often each was begun, how much it did, and what ended it.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spillway.amqp.frames import encode_frame
from spillway.amqp.message import Properties, encode_amqp_value, encode_data, encode_message
from spillway.amqp.performatives import Attach, Begin, Detach, Flow, Open, Transfer
from spillway.amqp.sasl import write_plain
from spillway.client.connection import Connection, connect
from spillway.client.credentials import sign_sas
from spillway.client.errors import ClientError
from spillway.client.management import ABANDONED, DEAD_LETTERED, DEFERRED
from spillway.client.message import BATCH_FORMAT, OutgoingMessage
from tests.hostile.attacker import Attacker, put_token, receiver, request, sender

NONE: Final = "none"
SEND: Final = "send"
LISTEN: Final = "listen"
ROOT_RIGHTS: Final = "root"

TARGET: Final = "target"  # a plain queue
DEEP: Final = "deep"  # filled before
SESSIONS: Final = "sessions"  # requires them
DEEP_SESSIONS: Final = "deep-sessions"  # one session has almost all, "few" has five
WIDE: Final = "wide"  # a topic with many subscriptions
FILTERED: Final = "filtered"  # a topic with LIKE filters
SESSION_TOPIC: Final = "session-topic"  # its subscriptions require sessions

BAD_TOKEN: Final = "SharedAccessSignature sr=x&sig=eA%3d%3d&se=9999999999&skn=y"
SOCKETS_MAX: Final = 40


@dataclass(frozen=True)
class Ground:
    """Where to attack, and with which keys: by rights, a name and a key."""

    port: int
    keys: dict[str, tuple[str, str]]

    def string(self, rights: str) -> str:
        name, key = self.keys[rights]
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName={name};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true"
        )

    def raw(self, rights: str) -> Attacker:
        """Connected and with a session; nobody has shown a token where there are no rights."""
        client = Attacker(self.port)
        if rights == NONE:
            client.sasl("ANONYMOUS")
        else:
            client.sasl("PLAIN", write_plain(*self.keys[rights]))
        client.tell(Open("attacker", "localhost", 65_536, 4_999))
        client.hear(Open)
        client.tell(Begin(None, 0, 1 << 30, 5_000))
        client.hear(Begin)
        return client

    def to_json(self) -> str:
        return json.dumps({"port": self.port, "keys": self.keys})


def ground_of(text: str) -> Ground:
    plain = json.loads(text)
    return Ground(plain["port"], {rights: (name, key) for rights, (name, key) in plain["keys"].items()})


class Raid:
    """One attack under way: until when, with which dice, and what it did."""

    def __init__(self, ground: Ground, deadline: float, seed: str) -> None:
        self.ground = ground
        self.deadline = deadline
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.ended_by: Counter[str] = Counter()
        self.sockets: list[Attacker] = []

    def goes_on(self) -> bool:
        return time.monotonic() < self.deadline

    def keep(self, client: Attacker) -> None:
        """Held open; of too many the oldest goes."""
        self.sockets.append(client)
        if len(self.sockets) > SOCKETS_MAX:
            self.sockets.pop(0).close()

    def run(self, attack: "Attack") -> None:
        while self.goes_on():
            self.done["begun"] += 1
            try:
                attack.act(self)
            except (OSError, AssertionError, ClientError, TimeoutError, EOFError) as error:
                self.ended_by[type(error).__name__] += 1
                time.sleep(0.05)
            except Exception as error:
                self.ended_by[f"unexpected {type(error).__name__}: {error}"[:100]] += 1
                time.sleep(0.5)
        for client in self.sockets:
            client.close()

    def with_client(self, rights: str, act: Callable[[Connection], Coroutine[None, None, None]]) -> None:
        async def run() -> None:
            async with await connect(self.ground.string(rights), operation_timeout=20) as client:
                await asyncio.wait_for(act(client), max(self.deadline - time.monotonic(), 0.5) + 1.0)

        asyncio.run(run())


@dataclass(frozen=True)
class Attack:
    name: str
    rights: str
    act: Callable[[Raid], None]


# -- without a right ---------------------------------------------------------------------------------------------------


def bad_tokens(raid: Raid) -> None:
    client = raid.ground.raw(NONE)
    raid.keep(client)
    client.tell(sender(0, "$cbs", "in"), receiver(1, "$cbs", "out"))
    client.tell(Flow(0, 1 << 30, 0, 5_000, 1, 0, 1_000_000))
    for number in range(2_000):
        if not raid.goes_on() or client.is_over:
            return
        client.transfer(
            Transfer(0, number, number.to_bytes(4, "big"), 0, settled=True),
            put_token(number, f"sb://localhost/{'x' * raid.chance.choice((5, 5_000))}", BAD_TOKEN),
        )
        client.drain()
        raid.done["tokens"] += 1


def strangers_frames(raid: Raid) -> None:
    client = raid.ground.raw(NONE)
    raid.keep(client)
    burst = b"".join(
        encode_frame(0, receiver(2, TARGET, f"l{n}")) + encode_frame(0, Detach(2, True)) for n in range(50)
    )
    while raid.goes_on() and not client.is_over:
        client.socket.sendall(burst)
        client.drain()
        client.answers.clear()
        raid.done["frames"] += 100


def partial_http(raid: Raid) -> None:
    """Heads that never end, as long as they are taken."""
    client = Attacker(raid.ground.port)
    raid.keep(client)
    client.socket.sendall(b"GET /$Resources/queues HTTP/1.1\r\nHost: localhost\r\n")
    for number in range(200):
        if not raid.goes_on():
            return
        client.socket.sendall(b"X-%d: " % number + b"y" * raid.chance.choice((10, 4_000)) + b"\r\n")
        raid.done["headers"] += 1
        time.sleep(raid.chance.choice((0, 0, 0.2)))


def partial_websocket(raid: Raid) -> None:
    """Upgraded, and then a frame that says it is large and never ends."""
    client = Attacker(raid.ground.port)
    raid.keep(client)
    client.socket.sendall(
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )
    assert b"101" in client.socket.recv(4_096)
    size = raid.chance.choice((65_000, 1 << 20, 1 << 30))
    client.socket.sendall(b"\x02\xff" + size.to_bytes(8, "big") + b"\x00\x00\x00\x00")
    for _ in range(64):
        if not raid.goes_on():
            return
        client.socket.sendall(b"\x00" * 16_384)
        raid.done["bytes"] += 16_384
        time.sleep(0.01)


def garbage(raid: Raid) -> None:
    client = Attacker(raid.ground.port)
    try:
        head = raid.chance.choice((b"", b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00", b"\x16\x03\x01"))
        client.socket.sendall(head + raid.chance.randbytes(raid.chance.choice((7, 900, 60_000))))
        raid.done["sockets"] += 1
        time.sleep(0.01)
    finally:
        client.close()


# -- with the right to send --------------------------------------------------------------------------------------------


def unfinished_deliveries(raid: Raid) -> None:
    """On as many links as there may be, each begun and never ended."""
    client = raid.ground.raw(SEND)
    raid.keep(client)
    for handle in range(200):
        if not raid.goes_on() or client.is_over:
            return
        client.tell(sender(handle, TARGET, f"s{handle}"))
        client.hear(Attach)
        for part in range(4):
            first = (handle, handle.to_bytes(4, "big")) if part == 0 else (None, None)
            client.transfer(Transfer(handle, first[0], first[1], 0, settled=False, more=True), b"\x00" * 62_000)
            raid.done["bytes"] += 62_000
        client.drain()


def large_ids(raid: Raid) -> None:
    """Requests whose answers nobody takes, each with a long id to be answered with."""
    client = raid.ground.raw(SEND)
    raid.keep(client)
    client.tell(sender(0, f"{TARGET}/$management", "in"), receiver(1, f"{TARGET}/$management", "here"))
    client.hear(Attach)
    for number in range(500):
        if not raid.goes_on() or client.is_over:
            return
        payload = encode_message(
            properties=Properties(message_id="i" * 60_000 + str(number), reply_to="here"),
            application_properties={"operation": "com.microsoft:schedule-message"},
            body=encode_amqp_value({"messages": []}),
        )
        client.transfer(Transfer(0, number, number.to_bytes(4, "big"), 0, settled=True), payload)
        client.drain()
        raid.done["requests"] += 1


def many_tokens(raid: Raid) -> None:
    """Good ones, each for another audience."""
    client = raid.ground.raw(SEND)
    raid.keep(client)
    name, key = raid.ground.keys[SEND]
    client.tell(sender(0, "$cbs", "in"), receiver(1, "$cbs", "cbs"))
    client.tell(Flow(0, 1 << 30, 0, 5_000, 1, 0, 1_000_000))
    for number in range(5_000):
        if not raid.goes_on() or client.is_over:
            return
        audience = f"sb://localhost/{TARGET}/{'a' * 200}{number}"
        token = sign_sas(audience, name, key, int(time.time()) + 600)
        client.transfer(
            Transfer(0, number, number.to_bytes(4, "big"), 0, settled=True), put_token(number, audience, token)
        )
        client.drain()
        raid.done["tokens"] += 1


def flood(raid: Raid) -> None:
    """As much as the disk takes."""

    async def act(client: Connection) -> None:
        out = await client.sender(TARGET)
        while raid.goes_on():
            await asyncio.gather(*[out.send(OutgoingMessage(os.urandom(200_000)), timeout=20) for _ in range(8)])
            raid.done["messages"] += 8

    raid.with_client(SEND, act)


def fan_out(raid: Raid) -> None:
    batch = b"".join(encode_data(encode_message(body=encode_data(b"%021d" % n))) for n in range(1_000))

    async def act(client: Connection) -> None:
        out = await client.sender(WIDE)
        while raid.goes_on():
            await out.send_raw(batch, BATCH_FORMAT, timeout=20)
            raid.done["batches"] += 1

    raid.with_client(SEND, act)


def like_filters(raid: Raid) -> None:
    text = "a" * 30_000

    async def act(client: Connection) -> None:
        out = await client.sender(FILTERED)
        while raid.goes_on():
            await out.send(OutgoingMessage(b"x", application_properties={"p": text, "q": text}), timeout=20)
            raid.done["messages"] += 1

    raid.with_client(SEND, act)


def sessionless(raid: Raid) -> None:
    """To subscriptions that require sessions, now and scheduled."""

    async def act(client: Connection) -> None:
        out = await client.sender(SESSION_TOPIC)
        node = client.management(SESSION_TOPIC)
        while raid.goes_on():
            await out.send_batch([OutgoingMessage(b"x" * 100) for _ in range(50)], timeout=20)
            due_ms = int(time.time() * 1000) + 700
            await node.schedule([OutgoingMessage(b"x", message_id=str(uuid.uuid4())) for _ in range(20)], due_ms)
            raid.done["messages"] += 70

    raid.with_client(SEND, act)


def scheduled(raid: Raid) -> None:
    """Thousands that fall due in the same moment."""

    async def act(client: Connection) -> None:
        node = client.management(raid.chance.choice((TARGET, WIDE)))
        while raid.goes_on():
            due_ms = int(time.time() * 1000) + raid.chance.choice((1_000, 3_600_000))
            messages = [OutgoingMessage(b"x" * 500, message_id=str(uuid.uuid4())) for _ in range(100)]
            await node.schedule(messages, due_ms, timeout=20)
            raid.done["messages"] += 100

    raid.with_client(SEND, act)


# -- with the right to listen ------------------------------------------------------------------------------------------


def session_states(raid: Raid) -> None:
    async def act(client: Connection) -> None:
        node = client.management(SESSIONS)
        while raid.goes_on():
            session_id = f"s{raid.chance.randint(0, 1_000_000)}"
            held = await client.session_receiver(SESSIONS, session_id)
            state = os.urandom(200_000)
            await node.call("com.microsoft:set-session-state", {"session-id": session_id, "session-state": state}, 20)
            raid.done["states"] += 1
            await held.close()

    raid.with_client(LISTEN, act)


def added_properties(raid: Raid) -> None:
    """By abandoning, deferring and dead-lettering, as long as it is taken."""

    async def act(client: Connection) -> None:
        node = client.management(DEEP)
        inlet = await client.receiver(DEEP)
        while raid.goes_on():
            for message in await inlet.receive(max_count=20, max_wait=1):
                status = raid.chance.choice((ABANDONED, ABANDONED, DEFERRED, DEAD_LETTERED))
                properties = {f"p{raid.chance.randint(0, 1_000_000)}": "x" * 15_000 for _ in range(2)}
                assert message.lock_token is not None
                with contextlib.suppress(ClientError):
                    await node.settle([message.lock_token], status, properties=properties)
                raid.done["settled"] += 1

    raid.with_client(LISTEN, act)


def _unsettled(raid: Raid, count: int) -> Attacker:
    client = raid.ground.raw(LISTEN)
    raid.keep(client)
    client.tell(receiver(1, DEEP, "holder"))
    client.hear(Attach)
    client.tell(Flow(0, 1 << 30, 0, 5_000, 1, 0, count))
    return client


def lock_expiry(raid: Raid) -> None:
    """All there are, locked at once and left until the locks end together."""
    client = _unsettled(raid, 100_000)
    ends = time.monotonic() + 7
    while raid.goes_on() and time.monotonic() < ends:
        client.drain()
        raid.done["transfers"] += len(client.payloads)
        client.payloads.clear()
        client.answers.clear()
        time.sleep(0.02)
    client.close()


def attach_detach(raid: Raid) -> None:
    """Links that come and go beside one with thousands that are not settled."""
    client = _unsettled(raid, 100_000)
    burst = b"".join(encode_frame(0, receiver(2, DEEP, f"l{n}")) + encode_frame(0, Detach(2, True)) for n in range(20))
    while raid.goes_on() and not client.is_over:
        client.socket.sendall(burst)
        time.sleep(0.02)
        client.drain()
        client.payloads.clear()
        client.answers.clear()
        raid.done["links"] += 20


def browsing(raid: Raid) -> None:
    async def act(client: Connection) -> None:
        node = client.management(DEEP_SESSIONS)
        while raid.goes_on():
            await asyncio.gather(*[node.peek(0, 10, session_id="few", timeout=20) for _ in range(4)])
            raid.done["requests"] += 4

    raid.with_client(LISTEN, act)


def deleting_nothing(raid: Raid) -> None:
    async def act(client: Connection) -> None:
        node = client.management(DEEP)
        while raid.goes_on():
            await node.batch_delete(4_000, 1_000_000_000_000, timeout=20)
            raid.done["requests"] += 1

    raid.with_client(LISTEN, act)


def rules(raid: Raid) -> None:
    """With the right to listen alone this is refused; it must cost nothing either."""

    async def act(client: Connection) -> None:
        node = client.management(f"{WIDE}/Subscriptions/s0")
        while raid.goes_on():
            body = {"rule-name": f"r{raid.done['rules']}", "rule-description": {"sql-filter": {"expression": "1=1"}}}
            with contextlib.suppress(ClientError):
                await node.call("com.microsoft:add-rule", body, 20)
            raid.done["rules"] += 1

    raid.with_client(LISTEN, act)


def pending_requests(raid: Raid) -> None:
    """Browsing requests whose answers nobody takes."""
    client = raid.ground.raw(LISTEN)
    raid.keep(client)
    client.tell(sender(0, f"{DEEP}/$management", "in"), receiver(1, f"{DEEP}/$management", "here"))
    client.hear(Attach)
    peek = {"from-sequence-number": 0, "message-count": 5_000}
    for number in range(500):
        if not raid.goes_on() or client.is_over:
            return
        payload = request(number, "com.microsoft:peek-message", peek)
        client.transfer(Transfer(0, number, number.to_bytes(4, "big"), 0, settled=True), payload)
        client.drain()
        raid.done["requests"] += 1


ATTACKS: Final = {
    one.name: one
    for one in (
        Attack("bad tokens", NONE, bad_tokens),
        Attack("strangers' frames", NONE, strangers_frames),
        Attack("partial HTTP", NONE, partial_http),
        Attack("partial WebSocket", NONE, partial_websocket),
        Attack("garbage", NONE, garbage),
        Attack("unfinished deliveries", SEND, unfinished_deliveries),
        Attack("large ids", SEND, large_ids),
        Attack("many tokens", SEND, many_tokens),
        Attack("flood", SEND, flood),
        Attack("fan-out", SEND, fan_out),
        Attack("LIKE filters", SEND, like_filters),
        Attack("session-less", SEND, sessionless),
        Attack("scheduled", SEND, scheduled),
        Attack("session states", LISTEN, session_states),
        Attack("added properties", LISTEN, added_properties),
        Attack("lock expiry", LISTEN, lock_expiry),
        Attack("attach and detach", LISTEN, attach_detach),
        Attack("browsing", LISTEN, browsing),
        Attack("deleting nothing", LISTEN, deleting_nothing),
        Attack("rules", LISTEN, rules),
        Attack("pending requests", LISTEN, pending_requests),
    )
}


def main() -> None:
    ground = ground_of(Path(sys.argv[1]).read_text())
    seed, seconds, names = sys.argv[2], float(sys.argv[3]), sys.argv[4:]
    os.nice(19)  # attackers would have a machine of their own
    deadline = time.monotonic() + seconds
    raids = {name: Raid(ground, deadline, f"{seed}/{name}") for name in names}
    threads = [threading.Thread(target=raid.run, args=(ATTACKS[name],), daemon=True) for name, raid in raids.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 5.0)
    print(
        json.dumps({name: {**raid.done, "ended_by": dict(raid.ended_by)} for name, raid in raids.items()}), flush=True
    )
    os._exit(0)  # whatever still hangs on a socket


if __name__ == "__main__":
    main()
