"""A client of its own process that sends or receives until it is told to stop, and writes its history.

    python -m tests.tools.client_process send --connection-string … --queue q --name s1 --history s1.jsonl

It uses the official SDK as an application would, except that it owns the retries: every connection that fails is
given up and a new one is made, so that the history knows on which connection a message was seen. It stops when its
standard input is closed.
"""

import argparse
import logging
import random
import select
import sys
import time
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

from tests.tools.history import HistoryWriter, body_of

PAUSE_AFTER_FAILURE_S = 0.02
BATCH_MAX = 20
SIZE_BYTES_MAX = 3000
# One of so many received messages is abandoned, so that returns to the front are part of the load.
ABANDON_ONE_OF = 11


def must_stop() -> bool:
    """The parent has closed our standard input."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and not sys.stdin.read(1)


def connect(connection_string: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(connection_string, retry_total=0, retry_backoff_factor=0)


def message_of(message_id: str, size_bytes: int) -> ServiceBusMessage:
    return ServiceBusMessage(body_of(message_id, size_bytes), message_id=message_id)


def is_intact(message: ServiceBusReceivedMessage) -> bool:
    """The id ends with the size of the body; the body follows from the id."""
    message_id = str(message.message_id)
    return b"".join(bytes(part) for part in message.body) == body_of(message_id, int(message_id.rsplit("-", 1)[1]))


class Sender:
    """Sends single messages and batches; a batch is one acknowledgement for all of it."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.history = HistoryWriter(Path(chosen.history))
        self.random = random.Random(chosen.name)
        self.count = 0
        self.doubtful: list[str] = []  # sent, and not answered: to be sent again, if that is what we do

    def run(self) -> None:
        while self.doubtful or not must_stop():
            try:
                with (
                    connect(self.chosen.connection_string) as client,
                    client.get_queue_sender(self.chosen.queue) as link,
                ):
                    while self.doubtful or not must_stop():
                        self._send_some(link)
            except (ServiceBusError, OSError, ValueError) as error:
                logging.info("%s: %r", self.chosen.name, error)
                time.sleep(PAUSE_AFTER_FAILURE_S)

    def _send_some(self, link: Any) -> None:
        ids = self.doubtful or self._new_ids()
        messages = [message_of(one, int(one.rsplit("-", 1)[1])) for one in ids]
        self.history.note("sending", ids)
        if self.chosen.resend:
            self.doubtful = ids
        link.send_messages(messages if len(ids) > 1 else messages[0], timeout=10)
        self.doubtful = []
        self.history.note("sent", ids)

    def _new_ids(self) -> list[str]:
        ids = []
        for _ in range(1 if self.random.random() < 0.5 else self.random.randint(2, BATCH_MAX)):
            self.count += 1
            ids.append(f"{self.chosen.name}-{self.count}-{self.random.randint(1, SIZE_BYTES_MAX)}")
        return ids


class Receiver:
    """Receives and completes, one confirmed completion after the other. A drain ends by itself when all is gone."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.history = HistoryWriter(Path(chosen.history))
        self.random = random.Random(chosen.name)
        self.sub_queue = "deadletter" if chosen.dead_letters else None
        self.queue_name = chosen.queue + ("/$DeadLetterQueue" if chosen.dead_letters else "")

    def run(self) -> None:
        while not must_stop():
            opened_ns = time.monotonic_ns()
            try:
                with (
                    connect(self.chosen.connection_string) as client,
                    client.get_queue_receiver(self.chosen.queue, sub_queue=self.sub_queue) as link,
                ):
                    while not must_stop():
                        if self._take_some(link, opened_ns) == 0 and self.chosen.drain:
                            return
            except (ServiceBusError, OSError, ValueError) as error:
                logging.info("%s: %r", self.chosen.name, error)
                time.sleep(PAUSE_AFTER_FAILURE_S)

    def _take_some(self, link: ServiceBusReceiver, opened_ns: int) -> int:
        messages = link.receive_messages(max_message_count=50, max_wait_time=2)
        for message in messages:
            message_id = str(message.message_id)
            self.history.note(
                "received",
                [message_id],
                client=self.chosen.name,
                queue=self.queue_name,
                opened_ns=opened_ns,
                sequence_number=message.sequence_number,
                intact=is_intact(message),
            )
            if not self.chosen.drain and self.random.randrange(ABANDON_ONE_OF) == 0:
                link.abandon_message(message)
                continue
            self.history.note("completing", [message_id])
            link.complete_message(message)
            self.history.note("completed", [message_id], client=self.chosen.name)
        return len(messages)


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("role", choices=["send", "receive"])
    parser.add_argument("--connection-string", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--name", required=True, help="unique: message ids begin with it")
    parser.add_argument("--history", required=True, metavar="FILE")
    parser.add_argument("--resend", action="store_true", help="what was not answered is sent again, with the same ids")
    parser.add_argument("--drain", action="store_true", help="receive until nothing comes any more, then end")
    parser.add_argument("--dead-letters", action="store_true", help="the dead-letter queue instead")
    return parser.parse_args()


def main() -> None:
    chosen = arguments(__doc__ or "")
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    (Sender(chosen) if chosen.role == "send" else Receiver(chosen)).run()


if __name__ == "__main__":
    main()
