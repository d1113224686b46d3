"""A consumer of the lab: a process that receives from the primary with the bare SDK and writes down what it got.

    python -m spillway.lab.consumer SPEC.json

It knows nothing of pairing: receiving is from the primary alone. When the primary is away it tries again.
"""

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any, Final

from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from spillway.lab.histories import COMPLETED, DELIVERED, FAIL, OK, History

BATCH: Final = 100
WAIT_S: Final = 1.0
STUCK_S: Final = 15.0  # a receive on a frozen primary is given up, and a new connection made
AGAIN_S: Final = 0.5


async def receive(receiver: ServiceBusReceiver, history: History) -> None:
    async with asyncio.timeout(STUCK_S):
        messages = await receiver.receive_messages(BATCH, max_wait_time=WAIT_S)
    for message in messages:
        identity = json.loads(str(message))["id"]
        number = message.sequence_number
        history.write(DELIVERED, id=identity, seq=number, dc=message.delivery_count)
        try:
            async with asyncio.timeout(STUCK_S):
                await receiver.complete_message(message)
        except Exception:
            history.write(COMPLETED, id=identity, seq=number, res=FAIL)
            raise
        history.write(COMPLETED, id=identity, seq=number, res=OK)


async def consume(spec: dict[str, Any], stopping: asyncio.Event) -> None:
    history = History(Path(spec["directory"]), spec["name"])
    while not stopping.is_set():
        client = ServiceBusClient.from_connection_string(spec["primary"], retry_total=0)
        receiver = client.get_queue_receiver(spec["path"])
        with contextlib.suppress(Exception):
            while not stopping.is_set():
                await receive(receiver, history)
        for closable in (receiver, client):
            with contextlib.suppress(Exception):
                async with asyncio.timeout(5):
                    await closable.close()
        if not stopping.is_set():
            await asyncio.sleep(AGAIN_S)


async def run(spec: dict[str, Any]) -> None:
    stopping = asyncio.Event()
    print("ready", flush=True)
    working = asyncio.create_task(consume(spec, stopping))
    await asyncio.to_thread(sys.stdin.readline)
    stopping.set()
    await working


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(run(spec))


if __name__ == "__main__":
    main()
