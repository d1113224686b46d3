"""All that clients can make a broker hold, at once: `memory-mb` bounds the process, and neighbours notice nothing."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spillway.amqp.frames import encode_frame
from spillway.amqp.message import Properties, encode_amqp_value, encode_message
from spillway.amqp.performatives import Attach, Begin, Disposition, Modified, Source, Target, Transfer
from spillway.client.credentials import sign_sas
from tests.hostile.attacker import ANSWER_S, KEY, KEY_NAME, TARGET, Attacker, flow, message, put_token
from tests.hostile.scene import NEIGHBOURS, Neighbour
from tests.hostile.websocket import BINARY, frame, head
from tests.tools.broker_process import BrokerProcess

MIB = 1024 * 1024
MEMORY_MB = 200
ATTACK_S = 20.0
LARGE = "large"  # a queue of large messages


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    options = ["--limit", f"memory-mb={MEMORY_MB}"]
    with BrokerProcess(tmp_path / "data", queues=[TARGET, NEIGHBOURS, LARGE], options=options).start() as made:
        yield made


def most_bytes(broker: BrokerProcess) -> int:
    """The most it ever had in memory, from the kernel."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


class Siege:
    """Attacks side by side, each with the sockets it has opened. Whatever a broker does to them is fine with them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.deadline = time.monotonic() + ATTACK_S
        self.open: list[Attacker | socket.socket] = []
        self.faults: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline

    def attacker(self) -> Attacker:
        attacker = Attacker(self.port)
        self.open.append(attacker)
        attacker.open().begin()
        attacker.socket.settimeout(1.0)
        return attacker

    def say(self, attacker: Attacker, data: bytes) -> bool:
        """False: the broker has closed, or does not read."""
        try:
            attacker.socket.sendall(data)
        except OSError:
            return False
        return not self.is_over

    def begin(self, *attacks: Callable[["Siege"], None]) -> None:
        for attack in attacks:
            thread = threading.Thread(target=self.run, args=(attack,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def run(self, attack: Callable[["Siege"], None]) -> None:
        """An attacker whose connection is refused or closed at some step has got what it deserves."""
        try:
            attack(self)
        except (OSError, AssertionError):
            pass
        except BaseException as error:
            self.faults.append(error)

    def end(self) -> None:
        for thread in self.threads:
            thread.join(ATTACK_S + 60)
            assert not thread.is_alive()
        for each in self.open:
            each.close()
        assert not self.faults, self.faults


def sender(handle: int, address: str = TARGET, name: str = "") -> bytes:
    name = name or f"s{handle}"
    return encode_frame(0, Attach(name, handle, False, 0, 0, Source("here"), Target(address), initial_delivery_count=0))


def in_frames(handle: int, delivery_id: int, payload: bytes, is_ended: bool) -> bytes:
    said = []
    for at in range(0, len(payload), 60_000):
        part = payload[at : at + 60_000]
        more = at + 60_000 < len(payload) or not is_ended
        first = Transfer(handle, delivery_id, b"t", 0, settled=True, more=more)
        said.append(encode_frame(0, first if at == 0 else Transfer(handle, more=more), part))
    return b"".join(said)


# -- the attacks ------------------------------------------------------------------------------------------------------


def unfinished_deliveries(siege: Siege) -> None:
    """40 connections, 100 links each, 240 KB on each of them and no end."""
    for _ in range(40):
        with contextlib.suppress(OSError, AssertionError):
            attacker = siege.attacker()
            for handle in range(100):
                if not siege.say(attacker, sender(handle)):
                    break
            attacker.drain()
            time.sleep(0.05)
            for handle in range(100):
                if not siege.say(attacker, in_frames(handle, handle, bytes(240_000), False)):
                    break


def request(operation: str, body: object, message_id: str) -> bytes:
    return encode_message(
        properties=Properties(message_id=message_id, reply_to="here"),
        application_properties={"operation": operation},
        body=encode_amqp_value(body),
    )


def node(siege: Siege, path: str, credit: int) -> Attacker:
    attacker = siege.attacker()
    attacker.attach_sender(0, path)
    attacker.attach_receiver(1, path, credit)
    attacker.socket.settimeout(1.0)
    return attacker


def requests_with_large_ids(siege: Siege) -> None:
    for _ in range(6):
        with contextlib.suppress(OSError, AssertionError):
            attacker = node(siege, f"{LARGE}/$management", 0)
            for number in range(900):
                body = {"from-sequence-number": 1, "message-count": 1}
                asked = request("com.microsoft:peek-message", body, f"{number}" + "x" * 190_000)
                if not siege.say(attacker, in_frames(0, number, asked, True)):
                    break


def merged_properties(siege: Siege) -> None:
    """The same messages abandoned again and again, each time with another 60 KB."""
    attacker = siege.attacker().attach_sender(0)
    for number in range(200):
        attacker.send(number, message(b"x", f"m{number}"))
    attacker.attach_receiver(1, credit=100_000)
    for number in range(200):
        if siege.is_over:
            return
        attacker.drain()
        count = len(attacker.said(Transfer))
        properties: dict[object, object] = {f"p{number}": "v" * 30_000, f"q{number}": "v" * 30_000}
        attacker.tell(Disposition(True, 0, count, True, Modified(True, False, properties)))
        time.sleep(0.02)


def partial_websockets(siege: Siege) -> None:
    half = struct.pack(">IBBH", 65_000, 2, 0, 0) + bytes(64_000)
    for _ in range(250):
        if siege.is_over:
            return
        with contextlib.suppress(OSError):
            raw = socket.create_connection(("127.0.0.1", siege.port), timeout=1.0)
            siege.open.append(raw)
            raw.sendall(head())
            raw.recv(4_096)
            raw.sendall(frame(BINARY, b"AMQP\x03\x01\x00\x00" + half, claimed=1 << 40))


def partial_http(siege: Siege) -> None:
    for _ in range(400):
        if siege.is_over:
            return
        with contextlib.suppress(OSError):
            raw = socket.create_connection(("127.0.0.1", siege.port), timeout=1.0)
            siege.open.append(raw)
            raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 60_000)


def tokens_for_long_names(siege: Siege) -> None:
    token = sign_sas(f"sb://localhost/{TARGET}", KEY_NAME, KEY, int(time.time()) + 600)
    for _ in range(2):
        attacker = node(siege, "$cbs", 10_000)
        for number in range(1_000):
            asked = put_token(number, f"sb://localhost/{TARGET}/{number}" + "x" * 20_000, token)
            if not siege.say(attacker, in_frames(0, number, asked, True)):
                break
            attacker.drain()
            attacker.payloads.clear()


def links_with_long_names(siege: Siege) -> None:
    for _ in range(4):
        attacker = siege.attacker()
        for handle in range(4_990):
            name = f"{handle}" + "\U0001f600" * 1_000
            if not siege.say(attacker, sender(handle, name=name)):
                break
            if handle % 100 == 0:
                attacker.drain()


def sessions(siege: Siege) -> None:
    for _ in range(4):
        attacker = siege.attacker()
        for channel in range(1, 4_990):
            if not siege.say(attacker, encode_frame(channel, Begin(None, 0, 5_000, 5_000))):
                break
            if channel % 100 == 0:
                attacker.drain()


def receivers_that_do_not_read(siege: Siege) -> None:
    for _ in range(20):
        attacker = siege.attacker()
        for handle in range(20):
            attacker.tell(Attach(f"r{handle}", handle, True, 0, 0, Source(LARGE), Target("here")), flow(handle, 10_000))


def fill(broker: BrokerProcess) -> None:
    """200 messages of 200 KB."""
    with Attacker(broker.port) as attacker:
        attacker.open().begin().attach_sender(0, LARGE)
        for number in range(200):
            attacker.say(in_frames(0, number, message(bytes(200_000), f"m{number}"), True))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and broker.is_running:
            attacker.drain()
            time.sleep(0.02)
            if len(attacker.answers) > 2:
                break


def test_memory_mb_bounds_the_process_whoever_holds_and_the_neighbour_is_served(broker: BrokerProcess) -> None:
    fill(broker)
    neighbour = Neighbour(broker.connection_string)
    try:
        neighbour.is_content(0)
        siege = Siege(broker.port)
        siege.begin(
            unfinished_deliveries,
            requests_with_large_ids,
            merged_properties,
            partial_websockets,
            partial_http,
            tokens_for_long_names,
            links_with_long_names,
            sessions,
            receivers_that_do_not_read,
        )
        while not siege.is_over and broker.is_running:
            time.sleep(0.1)
        assert broker.is_running, broker.stderr[-3_000:]
        neighbour.is_content(len(neighbour.rounds))
        siege.end()
        neighbour.is_content(len(neighbour.rounds))
        assert "Traceback" not in broker.stderr, broker.stderr[-3_000:]
        assert most_bytes(broker) <= MEMORY_MB * MIB * 125 // 100, f"it had {most_bytes(broker) // MIB} MB"
    finally:
        neighbour.close()


def closed_count(opened: list[Attacker | socket.socket]) -> int:
    """How many of them the broker has closed."""
    count = 0
    for each in opened:
        raw = each.socket if isinstance(each, Attacker) else each
        raw.setblocking(False)
        try:
            count += raw.recv(65_536) == b""
        except BlockingIOError:
            continue
        except OSError:
            count += 1
    return count


def test_requests_of_http_that_do_not_end_are_counted_like_everything_else(tmp_path: Path) -> None:
    """400 of 60 KB are more than a quarter of 128 MB, as they come and as they are read."""
    with BrokerProcess(tmp_path / "data", options=["--limit", "memory-mb=128"]).start() as broker:
        siege = Siege(broker.port)
        siege.begin(partial_http)
        for thread in siege.threads:
            thread.join(ATTACK_S)
        deadline = time.monotonic() + ANSWER_S
        while closed_count(siege.open) <= 50:
            assert time.monotonic() < deadline, "none of them is closed"
            time.sleep(0.1)
        assert closed_count(siege.open) < 350
        siege.end()
