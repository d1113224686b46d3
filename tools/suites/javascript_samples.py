"""Microsoft's JavaScript samples against Spillway: `tools/suites/javascript_samples.py CHECKOUT`.

All of `samples/v7` of the SDK's package, JavaScript and TypeScript, but those that need a proxy or Entra. Each is run
as it is, as a program, in a namespace that has what its first lines ask for; it is good if it ends with status 0, says
nothing of an error, and has said what shows that it got to its end. `--out` gets the outcome under the key
`javascript-samples`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT)]
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from azure.servicebus import ServiceBusClient, ServiceBusMessage  # noqa: E402
from azure.servicebus.management import ServiceBusAdministrationClient  # noqa: E402

from tests.tools.broker_process import BrokerProcess, Listening  # noqa: E402 - of the tree that this file lies in
from tests.tools.js import node_command  # noqa: E402
from tools.suites import evidence  # noqa: E402
from tools.suites.javascript import HERE, PACKAGE, connection_environment, prepare  # noqa: E402

QUEUE: Final = "samples"
SESSIONS: Final = "samples-with-sessions"
LEFT_OUT: Final = {"useProxy": "needs a proxy", "usingAadAuth": "needs Entra"}
TIMEOUT_S: Final = 180.0
ENDLESS_S: Final = 25.0
SESSION_NAMES: Final = ("one", "two", "three")


@dataclass(frozen=True)
class Sample:
    """What a sample finds, and what it says when all went well."""

    says: str
    messages: int = 0  # in the queue
    dead_letters: int = 0
    in_sessions: bool = False
    is_queue_absent: bool = False
    is_endless: bool = False


SAMPLES: Final = {
    "administrationClient": Sample("has been deleted", is_queue_absent=True),
    "browseMessages": Sample("Peeked message #1", messages=3),
    "deferral": Sample("Process deferred message: { step: 5, title: 'Eat' }"),
    "exceedMaxDeliveryCount": Sample("Deadletter message: waiting 0", messages=1),
    "listingEntities": Sample(f"Queue 9: {SESSIONS}"),
    "movingMessagesToDLQ": Sample(">>>>> Deadletter the one message received"),
    "processMessageFromDLQ": Sample(">>>>> Cloning the message from DLQ and resending it", dead_letters=1),
    "receiveMessagesLoop": Sample("Received 10 messages", messages=10),
    "receiveMessagesStreaming": Sample("Received message: waiting 2", messages=3),
    "ruleManager": Sample("Deleting topic..."),
    "scheduledMessages": Sample("Received 10 messages."),
    "sendMessages": Sample("Done sending, closing..."),
    "session": Sample("Received: session-2 - Nikolaus Kopernikus"),
    "sessionRoundRobin": Sample("[three] was closed because of idle_timeout", in_sessions=True, is_endless=True),
    "sessionState": Sample('Items in cart for bob: ["Pencil","Paper","Stapler"]'),
    "topicSubscriptionWithRuleOperationsSample": Sample("Received message: test-red3"),
    "usingNamedKeyCredential": Sample(""),
}


def lay_out(checkout: Path, work: Path) -> list[Path]:
    """The samples beside the packages: as they are, and translated. Returns what is to be run."""
    source = checkout / PACKAGE / "samples" / "v7"
    into = work / "checkout" / "samples"
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(source / "javascript", into / "javascript")
    (into / "javascript" / "package.json").unlink()
    environment = {**os.environ, "NODE_PATH": str(work / "node_modules")}
    transpile = [*node_command(), str(HERE / "transpile.cjs"), str(source / "typescript" / "src")]
    subprocess.run([*transpile, str(into / "typescript")], check=True, timeout=120, env=environment)
    return sorted(path for path in into.rglob("*.js") if path.stem not in LEFT_OUT)


def furnish(listening: Listening, sample: Sample) -> None:
    """An empty namespace, but for what the sample asks for."""
    options: dict[str, Any] = {"connection_verify": listening.ca_file}
    with ServiceBusAdministrationClient.from_connection_string(listening.connection_string, **options) as made:
        for queue in list(made.list_queues()):
            made.delete_queue(queue.name)
        for topic in list(made.list_topics()):
            made.delete_topic(topic.name)
        if not sample.is_queue_absent:
            made.create_queue(QUEUE)
        made.create_queue(SESSIONS, requires_session=True)
    with ServiceBusClient.from_connection_string(listening.connection_string) as client:
        with client.get_queue_sender(SESSIONS) as sender:
            for name in SESSION_NAMES if sample.in_sessions else ():
                sender.send_messages([ServiceBusMessage(f"{name} {at}", session_id=name) for at in range(3)])
        if sample.is_queue_absent:
            return
        with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
            for at in range(sample.dead_letters):
                sender.send_messages(ServiceBusMessage(f"dead {at}"))
                (message,) = receiver.receive_messages(max_wait_time=10)
                receiver.dead_letter_message(message, reason="sample")
            for at in range(sample.messages):
                sender.send_messages(ServiceBusMessage(f"waiting {at}"))


def run_sample(path: Path, listening: Listening) -> dict[str, object]:
    sample = SAMPLES[path.stem]
    furnish(listening, sample)
    keys = dict(part.split("=", 1) for part in listening.connection_string.rstrip(";").split(";"))
    environment = {
        **os.environ,
        **connection_environment(listening),
        "SUITE_SEED": "1",
        "QUEUE_NAME": QUEUE,
        "QUEUE_NAME_WITH_SESSIONS": SESSIONS,
        "SERVICEBUS_HOSTNAME": f"{listening.name}.servicebus.windows.net",
        "SERVICEBUS_SAS_POLICY": keys["SharedAccessKeyName"],
        "SERVICEBUS_SAS_KEY": keys["SharedAccessKey"],
    }
    began = time.monotonic()
    process = subprocess.Popen(
        [*node_command(), "--require", str(HERE / "preload.cjs"), str(path)],
        cwd=path.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    status: int | None = 0
    try:
        said, _ = process.communicate(timeout=ENDLESS_S if sample.is_endless else TIMEOUT_S)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        status = 0 if sample.is_endless else None
    problem = problem_of(sample, status, said)
    path.with_suffix(".log").write_text(said)
    return {"sample": str(path), "problem": problem, "seconds": round(time.monotonic() - began, 1)}


def problem_of(sample: Sample, status: int | None, said: str) -> str | None:
    """Why a sample has not done what it shows, or None."""
    if status is None:
        return f"has not ended after {TIMEOUT_S:.0f} s"
    if status != 0:
        return f"ended with {status}: {said.strip().splitlines()[-1] if said.strip() else ''}"
    for line in said.splitlines():
        if "Error occurred" in line or "ServiceBusError" in line or "RestError" in line:
            return line.strip()
    return None if sample.says in said else f"did not say '{sample.says}'"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "suites" / "javascript")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="samples whose name has this part")
    parser.add_argument("--jobs", type=int, default=3, help="samples at a time")
    parser.add_argument("--out", type=Path, help="JSON that gets the outcome under its key `javascript-samples`")
    parser.add_argument("--no-prepare", action="store_true", help="what the last run has prepared is there still")
    options = parser.parse_args()
    work = options.work.resolve()
    if not options.no_prepare:
        prepare(options.checkout.resolve(), work)
    paths = lay_out(options.checkout.resolve(), work)
    paths = [path for path in paths if not options.only or any(part in path.name for part in options.only)]
    data = work / "broker-samples"
    shutil.rmtree(data, ignore_errors=True)
    names = [f"samples{number}" for number in range(options.jobs)]
    free: Queue[str] = Queue()
    for name in names:
        free.put(name)
    with BrokerProcess(data, namespaces=names, is_development=False) as broker:
        ran = run_all(paths, broker, free)
    base = work / "checkout" / "samples"
    failed = {str(Path(str(each["sample"])).relative_to(base)): each["problem"] for each in ran if each["problem"]}
    print(f"{len(ran) - len(failed)} of {len(ran)} samples passed; left out: {', '.join(LEFT_OUT)}")
    if options.out:
        said = {"samples": len(ran), "passed": len(ran) - len(failed), "failed": failed, "left_out": LEFT_OUT}
        evidence.put(options.out, "javascript-samples", said)
    return 1 if failed else 0


def run_all(paths: list[Path], broker: BrokerProcess, free: "Queue[str]") -> list[dict[str, object]]:
    def run(path: Path) -> dict[str, object]:
        name = free.get()
        try:
            told = run_sample(path, broker.namespaces[name])
        finally:
            free.put(name)
        print(f"{path.parent.name}/{path.name}: {told['problem'] or 'good'}  ({told['seconds']} s)", flush=True)
        return told

    each: Callable[[Path], dict[str, object]] = run
    with ThreadPoolExecutor(free.qsize()) as pool:
        return list(pool.map(each, paths))


if __name__ == "__main__":
    sys.exit(main())
