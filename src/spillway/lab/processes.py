"""The processes of a run: brokers as `spillway serve` runs them, and clients that wait for a word before they begin and
before they end. Everything is killed when the run is over, however it ends (`guard`)."""

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Final

from spillway.lab.guard import Guard, kill

READY_S: Final = 60.0
# Below those that the machine gives to outgoing connections: while a broker is away, nobody else may get its port, and
# a client that tries it must not be connected to itself.
PORTS: Final = range(15_000, 30_000)
END_S: Final = 20.0


class LabError(Exception):
    """The lab itself failed; it says nothing about the product."""


class Process:
    """A child whose first line on stdout says that it is ready."""

    def __init__(self, name: str, arguments: list[str], log: Path, guard: Guard) -> None:
        self.name = name
        self.arguments = arguments
        self.log = log
        self.guard = guard
        self._child: subprocess.Popen[bytes] | None = None
        self._log_file: IO[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        """While it runs."""
        return self._child.pid if self._child is not None and self.is_running else None

    def spawn(self) -> None:
        self._log_file = self.log.open("ab")
        self._child = subprocess.Popen(
            [sys.executable, "-m", *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            start_new_session=True,  # Ctrl-C is the lab's
        )
        self.guard.watch_process(self._child.pid)

    def wait_ready(self) -> str:
        """The first line of the process."""
        child = self._child
        assert child is not None and child.stdout is not None, "not started"
        data = b""
        deadline_s = time.monotonic() + READY_S
        while not data.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, left_s))
            part = os.read(child.stdout.fileno(), 65_536) if ready else b""
            if not part:
                raise LabError(f"{self.name} did not become ready: {self.last_words()}")
            data += part
        return data.decode()

    def send_go(self) -> None:
        """The word it waits for."""
        child = self._child
        if child is not None and child.stdin is not None and child.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(b"go\n")
                child.stdin.flush()

    def signal(self, number: int) -> None:
        if self.is_running and self._child is not None:
            os.kill(self._child.pid, number)

    def wait(self, timeout_s: float = END_S) -> int | None:
        """The exit status of the process; None if it is still there."""
        if self._child is None:
            return None
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def how_it_ended(self, timeout_s: float) -> str | None:
        """How the process ended; None if by itself and in peace, as it was asked to."""
        status = self.wait(timeout_s)
        if status == 0:
            return None
        if status is None:
            return f"{self.name} did not end within {timeout_s:g} s: {self.last_words()}"
        return f"{self.name} ended with status {status}: {self.last_words()}"

    def end(self) -> None:
        """End the process, whatever state it is in."""
        if self._child is None:
            return
        if self._child.poll() is None:
            kill(self._child.pid)
            self._child.wait()
        for file in (self._child.stdin, self._child.stdout, self._log_file):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()
        self._child = None

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1][:300] if lines else "it wrote nothing"


def free_port() -> int:
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise LabError(f"no port from {PORTS[0]} to {PORTS[-1]} is free")


class LabBroker(Process):
    """One namespace: the same process that a user starts, on the same port in every life."""

    def __init__(self, name: str, directory: Path, entities: list[str], guard: Guard) -> None:
        super().__init__(name, [], directory / f"{name}.log", guard)
        self.data = directory / name
        self.port = free_port()
        self.connection_string = ""
        self.ca_file = ""
        self.entities = entities

    def start(self) -> None:
        self.arguments = ["spillway", "serve", "--dev", "--json", "--data", str(self.data)]
        self.arguments += ["--namespace", f"{self.name}={self.port}", *self.entities]
        self.spawn()
        namespace = json.loads(self.wait_ready())["namespaces"][0]
        self.port = namespace["port"]
        self.connection_string = namespace["connection_string"]
        self.ca_file = namespace["ca_file"]

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()
        self.end()

    def stop(self) -> None:
        """Stop the broker in order, as an operator would."""
        self.signal(signal.SIGTERM)
        if self.wait() is None:
            raise LabError(f"{self.name} did not stop in order within {END_S:g} s")
        self.end()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def ask(
        self, method: str, resource: str, body: dict[str, Any] | None = None, query: dict[str, str] | None = None
    ) -> Any:
        """Ask the broker's control API."""
        from spillway.client.control import ControlClient

        return ControlClient(self.connection_string).ask(method, resource, body, query)


class Client(Process):
    """A producer, a consumer or the syphon, with a spec of its own."""

    def __init__(self, module: str, spec: dict[str, Any], directory: Path, guard: Guard) -> None:
        path = directory / f"{spec['name']}.spec.json"
        path.touch(0o600)  # it holds connection strings
        path.write_text(json.dumps(spec))
        super().__init__(spec["name"], [f"spillway.lab.{module}", str(path)], directory / f"{spec['name']}.log", guard)
