"""The tests of Azure's Go SDK (`sdk/messaging/azservicebus`) against Spillway.

    python tools/suites/go.py CHECKOUT [--address 127.0.0.5] [--run NAME]

CHECKOUT is one of Azure/azure-sdk-for-go, and `go` is installed. Go finds Azure's ports 5671 and 443 by itself, so the
broker listens on them, at a loopback address of its own: it takes the right to do so. In place of Entra's credential is
the one of credential.go, which signs with the namespace's key. What passed, failed and was skipped goes into
docs/evidence/suites.json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tools.suites import evidence  # noqa: E402 - the tools are imported from the tree they lie in

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODULE = Path("sdk/messaging/azservicebus")
THEIRS = "github.com/Azure/azure-sdk-for-go/sdk/internal"
KEY_NAME = "RootManageSharedAccessKey"
TESTS_S = 3_600


class Broker:
    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.data = directory / "data"
        self.address: str = arguments.address
        self.environment = {**os.environ, "PYTHONPATH": str(Path(arguments.broker_path).resolve())}
        self.log = (directory / "broker.log").open("wb")
        self.command = [sys.executable, "-m", "spillway"]
        where = ["--host", self.address, "--namespace", "suite=5671", "--also-listen", "443"]
        self.process = subprocess.Popen(
            [*self.command, "serve", "--memory", "--json", "--data", str(self.data), *where],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline() or b"{}")["namespaces"][0]

    def connection_string(self, *rights: str) -> str:
        """With a rule that has these rights, or all."""
        name = "Suite" + "".join(rights) if rights else KEY_NAME
        if rights:
            self.ask("key", "add", name, "--rights", ",".join(rights))
        text = self.ask("connection-string", "--rule", name)
        key = text.split("SharedAccessKey=", 1)[1].split(";", 1)[0].strip()
        return f"Endpoint=sb://{self.address}/;SharedAccessKeyName={name};SharedAccessKey={key}"

    def ask(self, *arguments: str) -> str:
        command = [*self.command, *arguments, "--data", str(self.data)]
        return subprocess.run(command, env=self.environment, capture_output=True, check=True).stdout.decode()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--address", default="127.0.0.5", help="on loopback; 5671 and 443 must be free there")
    parser.add_argument("--broker-path", default=str(ROOT / "src"), help="where the broker's package lies")
    parser.add_argument("--run", default="", help="only tests whose name matches")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--out", type=Path, default=evidence.SUITES)
    parser.add_argument("--dry", action="store_true", help="write no evidence")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="suite-go-"))
    broker = Broker(arguments, directory)
    try:
        cases = test(arguments, broker, directory)
    finally:
        broker.close()
    parts = {"go-sdk": [case for case in cases if not is_administration(case)]}
    parts["go-sdk-administration"] = [case for case in cases if is_administration(case)]
    for name, part in parts.items():
        summary = evidence.summarise(part)
        print(f"-- {name}")
        evidence.show(summary)
        if not arguments.dry:
            evidence.write(arguments.out, name, summary)
    return 0


def is_administration(case: evidence.Case) -> bool:
    return "/admin" in case.name or "/atom" in case.name or "TestAdminClient" in case.name


def module_file(checkout: Path, directory: Path) -> Path:
    """A go.mod like theirs, with a copy of the module of test tools in which the credential is ours."""
    module = checkout / MODULE
    found = subprocess.run(["go", "list", "-m", "-f", "{{.Dir}}", THEIRS], cwd=module, capture_output=True, check=True)
    twin = directory / "internal"
    shutil.copytree(found.stdout.decode().strip(), twin, copy_function=shutil.copyfile)
    for place in (twin, *twin.rglob("*")):
        place.chmod(0o755)
    shutil.copyfile(HERE / "credential.go", twin / "test" / "credential" / "credential.go")
    path = directory / "go.mod"
    path.write_text((module / "go.mod").read_text() + f"\nreplace {THEIRS} => {twin}\n")
    shutil.copyfile(module / "go.sum", directory / "go.sum")
    return path


def make_entities(broker: Broker, connection_string: str) -> None:
    """What their deployment file makes, by the command line's own way of asking."""
    from azure.servicebus.management import ServiceBusAdministrationClient

    ca_file = str(broker.ready["ca_file"])
    with ServiceBusAdministrationClient.from_connection_string(connection_string, connection_verify=ca_file) as admin:
        admin.create_queue("testQueue")
        admin.create_queue("testQueueWithSessions", requires_session=True)


def test(arguments: argparse.Namespace, broker: Broker, directory: Path) -> list[evidence.Case]:
    checkout: Path = arguments.checkout.resolve()
    everything = broker.connection_string()
    make_entities(broker, everything)
    environment = {
        **os.environ,
        "SSL_CERT_FILE": str(broker.ready["ca_file"]),
        "AZURE_RECORD_MODE": "live",
        "SPILLWAY_SUITE_KEY_NAME": KEY_NAME,
        "SPILLWAY_SUITE_KEY": everything.split("SharedAccessKey=", 1)[1],
        "SERVICEBUS_ENDPOINT": broker.address,
        "SERVICEBUS_ENDPOINT_PREMIUM": broker.address,
        "SERVICEBUS_CONNECTION_STRING": everything,
        "SERVICEBUS_CONNECTION_STRING_PREMIUM": everything,
        "SERVICEBUS_CONNECTION_STRING_NO_MANAGE": broker.connection_string("Send", "Listen"),
        "SERVICEBUS_CONNECTION_STRING_SEND_ONLY": broker.connection_string("Send"),
        "SERVICEBUS_CONNECTION_STRING_LISTEN_ONLY": broker.connection_string("Listen"),
    }
    command = ["go", "test", "-json", "-count=1", "-timeout", f"{TESTS_S}s", "-parallel", str(arguments.parallel)]
    command += [f"-modfile={module_file(checkout, directory)}", "-mod=mod"]
    if arguments.run:
        command += ["-run", arguments.run]
    made = subprocess.run([*command, "./..."], cwd=checkout / MODULE, env=environment, capture_output=True, check=False)
    (directory / "go.jsonl").write_bytes(made.stdout)
    print(f"{directory}: {made.stderr.decode(errors='replace')[-2000:]}")
    return read_events(made.stdout.decode(errors="replace"))


def read_events(text: str) -> list[evidence.Case]:
    """Of tests that have parts only the parts count."""
    outcomes = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    said: dict[str, list[str]] = {}
    cases: dict[str, evidence.Case] = {}
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if "Test" not in event:
            continue
        name = f"{event['Package'].split('/azservicebus', 1)[1] or '/'}::{event['Test']}"
        if event["Action"] == "output":
            said.setdefault(name, []).append(event["Output"])
        elif event["Action"] in outcomes:
            lines = [one.strip() for one in said.get(name, []) if "Error" in one or "panic" in one or "SKIP" not in one]
            cases[name] = evidence.Case(name, outcomes[event["Action"]], " ".join(lines)[: evidence.REASON_CHARS_MAX])
    whole = {name.rsplit("/", 1)[0] for name in cases if "/" in name.split("::", 1)[1]}
    return [case for name, case in cases.items() if name not in whole or not has_parts(name, cases)]


def has_parts(name: str, cases: dict[str, evidence.Case]) -> bool:
    return any(other.startswith(name + "/") for other in cases)


if __name__ == "__main__":
    sys.exit(main())
