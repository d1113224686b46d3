"""`spillway demo`: a broker is used through the official Azure SDK, killed in the middle of it, and audited.

The broker is a process of its own, started as a user would start it, and ended with `kill -9`. What the SDK was told
before the kill is written down; what the next life of the broker holds is compared with it, message by message.
"""

import json
import logging
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from spillway.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver

QUEUE: Final = "orders"
READY_TIMEOUT_S: Final = 30
STOP_TIMEOUT_S: Final = 20
BATCH: Final = 50
UNDER_FIRE: Final = 100  # acknowledged sends of the second sender before the kill falls
EMPTY_AFTER_S: Final = 2.0
# Of every hundred received before the kill, what becomes of them.
SHARES: Final = {"completed": 60, "abandoned": 15, "dead-lettered": 10, "deferred": 10, "locked": 5}


def command(
    messages: Annotated[int, typer.Option(metavar="N", min=100, max=10_000, help="How many messages to send.")] = 1_000,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the broker's data and log in this new directory.")
    ] = None,
) -> None:
    """Use a broker, kill it, account for every message.

    A broker of its own is used through the Azure SDK, ended with kill -9 while a sender is at work, and started again.
    Exit status 1 if anything was lost, came back or was damaged.
    """
    if keep is not None and keep.exists():
        raise UsageError(f"--keep {keep}: is there already; name a directory that is not")
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # it reports the kill at length
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="spillway-demo-") as temporary:
        is_whole = run(messages, keep or Path(temporary), console)
    raise typer.Exit(0 if is_whole else 1)


@dataclass
class Book:
    """What the SDK was told before the kill. Messages are known by their ids."""

    acknowledged: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # sent, but the broker died before its answer
    settled: dict[str, str] = field(default_factory=dict)
    deferred_numbers: list[int] = field(default_factory=list)

    def settled_as(self, kind: str) -> set[str]:
        return {message_id for message_id, settled in self.settled.items() if settled == kind}


@dataclass
class StoredState:
    """What the second life of the broker holds, with how often each message came."""

    in_queue: Counter[str] = field(default_factory=Counter)
    dead_lettered: Counter[str] = field(default_factory=Counter)
    deferred: Counter[str] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)


class BrokerProcess:
    """`spillway serve` on one data directory, through two lives."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.connection_string = ""
        self.ready_s = 0.0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        line = [sys.executable, "-m", "spillway", "serve", "--json", "--data", str(self.data)]
        line += ["--namespace", "demo=0", "--queue", QUEUE]
        begun = time.monotonic()
        log = (self.data.parent / f"{self.data.name}.log").open("a")
        with log:
            self._process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        watchdog.cancel()
        self.ready_s = time.monotonic() - begun
        try:
            self.connection_string = json.loads(said)["namespaces"][0]["connection_string"]
        except (ValueError, LookupError, TypeError) as error:
            self.end()
            raise CommandError(f"the broker did not start: {self._last_words(Path(log.name))}") from error

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)
        self.end()

    def end(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def _last_words(self, log: Path) -> str:
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"no ready line within {READY_TIMEOUT_S} s"

    @contextmanager
    def client(self) -> Iterator["ServiceBusClient"]:
        from azure.servicebus import ServiceBusClient

        with ServiceBusClient.from_connection_string(self.connection_string, retry_total=0) as client:
            yield client


def run(count: int, data: Path, console: Console) -> bool:
    """The whole story; True when nothing was lost and nothing came back."""
    from spillway.model.texts import count_text

    data.mkdir(parents=True, exist_ok=True)
    broker = BrokerProcess(data / "data")
    book = Book()
    try:
        broker.start()
        console.print(f"[bold]1[/] broker ready in {broker.ready_s:.2f} s, used through azure-servicebus")
        taken_s = send_all(broker, count, book)
        console.print(f"[bold]2[/] {count_text(count, 'message')} sent and acknowledged in {taken_s:.2f} s")
        settle_some(broker, count // 2, book)
        kinds = ", ".join(f"{len(book.settled_as(kind))} {kind}" for kind in SHARES)
        console.print(f"[bold]3[/] {len(book.settled)} received: {kinds}")
        kill_under_fire(broker, book)
        console.print(
            f"[bold]4[/] [red]kill -9[/] while a sender was at work (sends without an answer: {len(book.unknown)})"
        )
        broker.start()
        console.print(f"[bold]5[/] broker ready again in {broker.ready_s:.2f} s, on the same data")
        found = collect(broker, book)
    finally:
        broker.end()
    return report(book, found, console)


def body_of(message_id: str) -> str:
    return json.dumps({"order": message_id, "text": message_id * 10})


def send_all(broker: BrokerProcess, count: int, book: Book) -> float:
    from azure.servicebus import ServiceBusMessage

    begun = time.monotonic()
    ids = [f"order-{number:06}" for number in range(count)]
    with broker.client() as client, client.get_queue_sender(QUEUE) as sender:
        for at in range(0, count, BATCH):
            some = ids[at : at + BATCH]
            sender.send_messages([ServiceBusMessage(body_of(one), message_id=one) for one in some], timeout=30)
            book.acknowledged.update(some)
    return time.monotonic() - begun


def settle_some(broker: BrokerProcess, count: int, book: Book) -> None:
    """Every kind of settlement, in the proportions of `SHARES`.

    What is abandoned returns to the front of the queue: it is held until the end, or we would receive it again.
    """
    kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
    abandoned: list[ServiceBusReceivedMessage] = []
    with broker.client() as client, client.get_queue_receiver(QUEUE) as receiver:
        while len(book.settled) < count:
            for message in receive(receiver, min(100, count - len(book.settled))):
                kind = kinds[len(book.settled) * 37 % 100]  # 37 and 100 share no factor: all kinds, well mixed
                settle(receiver, message, kind, book, abandoned)
        for message in abandoned:
            receiver.abandon_message(message)


def receive(receiver: "ServiceBusReceiver", count: int) -> "list[ServiceBusReceivedMessage]":
    messages: list[Any] = receiver.receive_messages(max_message_count=count, max_wait_time=10)
    if not messages:
        raise CommandError("no message arrived within 10 s although some were acknowledged")
    return messages


def settle(
    receiver: "ServiceBusReceiver",
    message: "ServiceBusReceivedMessage",
    kind: str,
    book: Book,
    abandoned: "list[ServiceBusReceivedMessage]",
) -> None:
    if kind == "completed":
        receiver.complete_message(message)
    elif kind == "dead-lettered":
        receiver.dead_letter_message(message, reason="demo", error_description="set aside on purpose")
    elif kind == "deferred":
        receiver.defer_message(message)
        assert message.sequence_number is not None
        book.deferred_numbers.append(message.sequence_number)
    elif kind == "abandoned":
        abandoned.append(message)
    book.settled[str(message.message_id)] = kind


def kill_under_fire(broker: BrokerProcess, book: Book) -> None:
    """A second sender sends one by one until its broker is gone."""
    enough = threading.Event()
    sender = threading.Thread(target=send_until_it_breaks, args=(broker, book, enough))
    sender.start()
    if not enough.wait(60):
        raise CommandError(f"no {UNDER_FIRE} sends were acknowledged within 60 s")
    broker.kill()
    sender.join(60)
    if sender.is_alive():
        raise CommandError("a send neither succeeded nor failed within 60 s of the kill")


def send_until_it_breaks(broker: BrokerProcess, book: Book, enough: threading.Event) -> None:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.exceptions import ServiceBusError

    number = 0
    message_id = ""
    try:
        with broker.client() as client, client.get_queue_sender(QUEUE) as sender:
            while True:
                message_id = f"late-{number:06}"
                sender.send_messages(ServiceBusMessage(body_of(message_id), message_id=message_id), timeout=10)
                book.acknowledged.add(message_id)
                message_id = ""
                number += 1
                if number == UNDER_FIRE:
                    enough.set()
    except (ServiceBusError, OSError):
        if message_id:
            book.unknown.add(message_id)


def collect(broker: BrokerProcess, book: Book) -> StoredState:
    """Everything that the second life holds, taken out of it."""
    from azure.servicebus import ServiceBusSubQueue

    found = StoredState()
    with broker.client() as client:
        with client.get_queue_receiver(QUEUE) as receiver:
            empty(receiver, found.in_queue, found)
            numbers = book.deferred_numbers
            for at in range(0, len(numbers), 100):
                for message in receiver.receive_deferred_messages(numbers[at : at + 100]):
                    note(message, found.deferred, found)
                    receiver.complete_message(message)
        with client.get_queue_receiver(QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            empty(receiver, found.dead_lettered, found)
    return found


def empty(receiver: "ServiceBusReceiver", into: Counter[str], found: StoredState) -> None:
    while True:
        messages: list[Any] = receiver.receive_messages(max_message_count=200, max_wait_time=EMPTY_AFTER_S)
        if not messages:
            return
        for message in messages:
            note(message, into, found)
            receiver.complete_message(message)


def note(message: "ServiceBusReceivedMessage", into: Counter[str], found: StoredState) -> None:
    message_id = str(message.message_id)
    into[message_id] += 1
    if b"".join(message.body) != body_of(message_id).encode():
        found.damaged.append(message_id)


@dataclass(frozen=True)
class AuditLine:
    """One line of the audit: what must be where, and what is wrong with it."""

    what: str
    expected: set[str]
    place: str
    there: Counter[str]

    @property
    def lost(self) -> int:
        return len(self.expected - set(self.there))

    @property
    def twice(self) -> int:
        return sum(count - 1 for message_id, count in self.there.items() if message_id in self.expected)


def report(book: Book, found: StoredState, console: Console) -> bool:
    waiting = book.acknowledged - set(book.settled)
    lines = [
        AuditLine("acknowledged, never received", waiting, "queue", found.in_queue),
        AuditLine("abandoned", book.settled_as("abandoned"), "queue", found.in_queue),
        AuditLine("locked at the kill", book.settled_as("locked"), "queue", found.in_queue),
        AuditLine("dead-lettered", book.settled_as("dead-lettered"), "dead-letter queue", found.dead_lettered),
        AuditLine("deferred", book.settled_as("deferred"), "deferred", found.deferred),
    ]
    everywhere = found.in_queue + found.dead_lettered + found.deferred
    completed = book.settled_as("completed")
    returned = len(completed & set(everywhere))
    strangers = set(everywhere) - book.acknowledged - book.unknown
    table = Table(title="after the kill")
    table.add_column("messages")
    table.add_column("must be in")
    for title in ("count", "lost", "too many"):
        table.add_column(title, justify="right")
    for line in lines:
        table.add_row(line.what, line.place, str(len(line.expected)), bad(line.lost), bad(line.twice))
    table.add_row("completed", "nowhere", str(len(completed)), "-", bad(returned))
    table.add_row("sent, never answered", "either way", str(len(book.unknown)), "-", "-")
    console.print(table)
    lost = sum(line.lost for line in lines)
    wrong = sum(line.twice for line in lines) + returned + len(strangers) + len(found.damaged)
    if lost == 0 and wrong == 0:
        console.print("[bold green]nothing acknowledged was lost, nothing completed came back[/]")
        return True
    console.print(
        f"[bold red]{lost} lost, {returned} completed came back, {len(found.damaged)} damaged, "
        f"{len(strangers)} never sent, {wrong} wrong in all[/]"
    )
    return False


def bad(count: int) -> str:
    return f"[bold red]{count}[/]" if count else "[green]0[/]"
