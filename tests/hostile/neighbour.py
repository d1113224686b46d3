"""A well-behaved client of the official SDK, in a process of its own: sends, receives and completes, round after round.

    python -m tests.hostile.neighbour CONNECTION_STRING QUEUE

It retries nothing, so whatever it notices is an error. One JSON line a round on stdout; it ends when stdin does.
"""

import contextlib
import json
import sys
import threading
import time

from azure.servicebus import ServiceBusClient, ServiceBusMessage


def run(connection_string: str, queue: str) -> None:
    is_over = threading.Event()
    threading.Thread(target=wait_for_the_end, args=(is_over,), daemon=True).start()
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
    ):
        number = 0
        while not is_over.is_set():
            number += 1
            begun = time.monotonic()
            sender.send_messages(ServiceBusMessage(f"round {number}"), timeout=20)
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=20)
            assert str(message) == f"round {number}", str(message)
            receiver.complete_message(message)
            print(json.dumps({"round": number, "took_s": time.monotonic() - begun}), flush=True)
            time.sleep(0.02)


def wait_for_the_end(is_over: threading.Event) -> None:
    sys.stdin.read()
    is_over.set()


def main() -> None:
    try:
        run(sys.argv[1], sys.argv[2])
    except Exception as error:
        with contextlib.suppress(BrokenPipeError):  # nobody is left to hear it
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main()
