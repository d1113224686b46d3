"""A real `spillway serve --json` in a process of its own: started, stopped, killed and frozen like any other.

The process is the one a user runs: same entry point, same options, same sockets and files. It is given the `spillway`
package that this process imports, so a test run against the compiled rooms starts a compiled broker.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import spillway
from tests.tools.loop_choice import loop_options

PACKAGE_PARENT = Path(spillway.__file__).resolve().parent.parent
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
NAMESPACE = "sbemulatorns"


class BrokerDied(AssertionError):
    """The process ended, or never became ready, when a test needed it alive. Carries what it wrote on stderr."""


@dataclass(frozen=True)
class Listening:
    """One entry of the ready line."""

    name: str
    port: int
    connection_string: str
    ca_file: str | None


class BrokerProcess:
    """One broker on one data directory, through as many lives as the test wants.

    The first `start` picks a free port; later ones use the same port again, so that clients find the broker where
    they left it. `close` asserts that no life wrote a traceback.
    """

    def __init__(
        self,
        data: Path | None,
        *,
        queues: Sequence[str] = (),
        namespaces: Sequence[str] = (NAMESPACE,),
        config: Path | None = None,
        options: Sequence[str] = (),
        is_development: bool = True,
        env: Mapping[str, str] | None = None,
        python_path: Path | None = None,
        log_dir: Path | None = None,
    ) -> None:
        self.data = data
        self.queues = list(queues)
        self.ports = dict.fromkeys(namespaces, 0)
        self.config = config
        self.options = list(options)
        self.is_development = is_development
        self.env = dict(env or {})
        self.python_path = python_path or PACKAGE_PARENT
        if log_dir is None:
            assert data is not None, "a broker in memory needs a log_dir"
            log_dir = data.parent
        self.stderr_path = log_dir / f"{data.name if data else 'memory'}.stderr"
        self.namespaces: dict[str, Listening] = {}
        self.ready_s = 0.0
        self.event_loop = ""
        self._spawned = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    # -- what it is

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def port(self) -> int:
        return self._first.port

    @property
    def connection_string(self) -> str:
        return self._first.connection_string

    @property
    def ca_file(self) -> str | None:
        return self._first.ca_file

    @property
    def stderr(self) -> str:
        """Everything that every life has written there so far."""
        return self.stderr_path.read_text(errors="replace") if self.stderr_path.exists() else ""

    @property
    def rss_bytes(self) -> int:
        """Resident memory now, from the kernel."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise BrokerDied(f"no VmRSS of process {self.pid}")

    @property
    def _first(self) -> Listening:
        return next(iter(self.namespaces.values()))

    # -- what is done to it

    def command(self) -> list[str]:
        """The command line, as a user would type it."""
        line = [sys.executable, "-m", "spillway", "serve", "--json"]
        line += ["--dev"] if self.is_development else []
        for name, port in self.ports.items():
            line += ["--namespace", f"{name}={port}"]
        line += ["--data", str(self.data)] if self.data else ["--memory"]
        line += ["--config", str(self.config)] if self.config else []
        for queue in self.queues:
            line += ["--queue", queue]
        if "--loop" not in self.options:
            line += loop_options()
        return line + self.options

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Start a life and wait until it says that it is ready."""
        self.spawn()
        self.wait_ready(timeout_s)
        return self

    def spawn(self) -> None:
        """Start a life and do not wait: for those who want to kill it while it recovers."""
        assert not self.is_running, "already running"
        self._stderr = self.stderr_path.open("ab")
        path = os.pathsep.join(part for part in (str(self.python_path), os.environ.get("PYTHONPATH", "")) if part)
        self._spawned = time.monotonic()
        self._process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **self.env},
        )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Until the ready line, which says where it listens."""
        said = json.loads(self._ready_line(timeout_s))
        self.ready_s = time.monotonic() - self._spawned
        assert said["ready"] is True, said
        self.event_loop = said.get("event_loop", "")  # a version of long ago does not say it
        self.namespaces = {entry["name"]: Listening(**entry) for entry in said["namespaces"]}
        self.ports = {name: listening.port for name, listening in self.namespaces.items()}

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, the orderly end. Returns the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """`kill -9`: no chance to finish anything."""
        self.signal(signal.SIGKILL)
        self.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Send it to the process itself; never to a group or a name."""
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Until it has ended. Returns the exit status."""
        assert self._process is not None, "not started"
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the broker has not ended after {timeout_s} s; stderr:\n{self.stderr}") from error
        self._close_files()
        return status

    def close(self, *, allow_traceback: bool = False) -> None:
        """End the life that is still running, if any, and look at what all of them wrote."""
        if self.is_running:
            self.resume()
            try:
                self.stop()
            except AssertionError:
                self.kill()
                raise
        self._close_files()
        assert allow_traceback or "Traceback" not in self.stderr, f"a traceback on the console:\n{self.stderr}"
        assert allow_traceback or " incident " not in self.stderr, f"a fault that the core contained:\n{self.stderr}"

    def __enter__(self) -> "BrokerProcess":
        return self.start() if not self.is_running else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        if self.is_running:
            self.kill()
        sys.stderr.write(f"--- stderr of the broker ---\n{self.stderr}\n")

    def _ready_line(self, timeout_s: float) -> bytes:
        """Exactly one line comes on stdout; what comes instead of it is in the error."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        os.set_blocking(descriptor, False)
        deadline = time.monotonic() + timeout_s
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(descriptor, 65536) if readable else b""
            if not chunk:
                status = self._process.poll()
                self._process.kill()
                self._process.wait()
                self._close_files()
                raise BrokerDied(f"not ready after {timeout_s} s (exit {status}); stderr:\n{self.stderr}")
            line += chunk
        return line

    def _close_files(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
