"""The broker under attack, the neighbour who must notice nothing, and messages that must still be there in the end."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.hostile.attacker import ANSWER_S, TARGET, Attacker
from tests.tools.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parent.parent.parent
MIB = 1024 * 1024
GROWTH_BYTES_MAX = 64 * MIB  # over the whole run
KEPT = "kept"
KEPT_COUNT = 50
NEIGHBOURS = "neighbours"
FUZZED = "fuzzed"
BYTES = "bytes"  # what goes in is what comes out


class Neighbour:
    def __init__(self, connection_string: str) -> None:
        self.rounds: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.neighbour", connection_string, NEIGHBOURS],
            cwd=ROOT,
            env=os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.rounds.append(json.loads(line))

    def is_content(self, after: int, within_s: float = 4 * ANSWER_S) -> None:
        """It has had another whole round since it had had `after`, and never an error."""
        deadline = time.monotonic() + within_s
        while len(self.rounds) < after + 2:
            assert self._process.poll() is None, self.rounds[-1:]
            assert time.monotonic() < deadline, f"the neighbour is not served: {self.rounds[-1:]}"
            time.sleep(0.005)
        errors = [one["error"] for one in self.rounds if "error" in one]
        assert not errors, errors

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Scene:
    def __init__(self, directory: Path) -> None:
        self.broker = BrokerProcess(directory / "data", queues=[KEPT, NEIGHBOURS, TARGET, FUZZED, BYTES]).start()
        with (
            ServiceBusClient.from_connection_string(self.broker.connection_string) as client,
            client.get_queue_sender(KEPT) as sender,
        ):
            sender.send_messages([ServiceBusMessage(f"kept {number}") for number in range(KEPT_COUNT)])
        self.neighbour = Neighbour(self.broker.connection_string)
        self.neighbour.is_content(0)
        self.rss_bytes = self.broker.rss_bytes

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def growth_bytes(self) -> int:
        return self.broker.rss_bytes - self.rss_bytes

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.broker.pid}/fd"))

    def attacker(self) -> Attacker:
        return Attacker(self.port)

    def is_unharmed(self) -> None:
        """What holds after every attack, whatever it was."""
        assert self.broker.is_running, self.broker.stderr[-3_000:]
        assert "Traceback" not in self.broker.stderr, self.broker.stderr[-3_000:]
        self.neighbour.is_content(len(self.neighbour.rounds))
        assert self.growth_bytes <= GROWTH_BYTES_MAX, f"grown by {self.growth_bytes / MIB:.0f} MiB"

    def kept(self) -> list[str]:
        with (
            ServiceBusClient.from_connection_string(self.broker.connection_string) as client,
            client.get_queue_receiver(KEPT) as receiver,
        ):
            return [str(message) for message in receiver.peek_messages(max_message_count=2 * KEPT_COUNT)]

    def close(self) -> None:
        """Nothing stored was lost: neither in the life that was attacked nor in the next one."""
        expected = [f"kept {number}" for number in range(KEPT_COUNT)]
        self.neighbour.close()
        assert self.kept() == expected
        assert self.broker.stop() == 0
        self.broker.start()
        assert self.kept() == expected
        self.broker.close()
