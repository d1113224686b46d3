"""What one connection for many entities costs with the Azure SDK's senders, beside a connection for each of them.

    bench/connections.py [--entities 10] [--messages 200] [--reps 3]

The SDK opens a connection for every sender. Its handlers take one that is open already, if they are also given the
means to make a token for their own entity (`share`): that is what is measured here, and what `spillway.paired` does not
do. Every sender belongs to one coroutine, which sends one message after the other, as paired senders do. Once with all
entities well, and once with a single neighbour beside an entity that takes seconds to answer. Interleaved in one run;
medians are printed, every run is in `--out`.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from azure.servicebus import ServiceBusMessage  # noqa: E402
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender  # noqa: E402
from azure.servicebus.aio._async_utils import create_authentication  # noqa: E402

from spillway.client.faults import Fault, RemoteFaults  # noqa: E402
from tests.tools.broker_process import BrokerProcess  # noqa: E402
from tests.tools.commit import commit, machine  # noqa: E402

BODY = b"x" * 1024
OWN, SHARED = "a connection each", "one connection"
WELL, BESIDE = "all well", "beside a slow one"
SLOW_MS = 3_000
NEIGHBOUR_MESSAGES = 20


async def share(sender: ServiceBusSender, connection: Any) -> None:
    """Open this sender on a connection that is there. By itself it would do so without a token, and be refused."""
    inner: Any = sender
    inner._connection = connection
    make_auth: Any = create_authentication
    auth = await make_auth(inner)
    create = inner._create_handler
    inner._create_handler = lambda _: create(auth)
    await inner._open()


async def measure(broker: BrokerProcess, entities: list[str], messages: int, way: str, how: str) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            ServiceBusClient.from_connection_string(broker.connection_string, keep_alive=0)
        )
        senders: list[Any] = [client.get_queue_sender(name) for name in entities]
        for sender in reversed(senders):
            stack.push_async_callback(sender.close)
        await senders[0].send_messages(ServiceBusMessage(BODY))
        for sender in senders[1:]:
            if way == SHARED:
                await share(sender, senders[0]._handler._connection)
            await sender.send_messages(ServiceBusMessage(BODY))
        took_s: list[float] = []

        async def send_all(sender: Any) -> None:
            for _ in range(messages):
                begun_s = time.perf_counter()
                await sender.send_messages(ServiceBusMessage(BODY))
                took_s.append(time.perf_counter() - begun_s)

        waiting: asyncio.Future[Any] | None = None
        if how == BESIDE:
            fault = Fault("slow", entities[0], ["send"], delay_ms=SLOW_MS)
            stack.enter_context(RemoteFaults(broker.connection_string).planted(fault))
            waiting = asyncio.ensure_future(senders[0].send_messages(ServiceBusMessage(BODY)))
            await asyncio.sleep(0.1)  # it is on its way
            senders, messages = senders[1:2], NEIGHBOUR_MESSAGES
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(send_all, senders))
        elapsed_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
        if waiting is not None:
            await waiting
    took_s.sort()
    count = len(took_s)
    return {
        "messages_per_s": round(count / elapsed_s, 1),
        "p50_ms": round(took_s[count // 2] * 1000, 2),
        "p99_ms": round(took_s[count * 99 // 100] * 1000, 2),
        "client_cpu_us": round(cpu_s / count * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=10)
    parser.add_argument("--messages", type=int, default=200, help="of each sender")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "connections.json")
    chosen = parser.parse_args()
    entities = [f"entity{number}" for number in range(chosen.entities)]
    compiled = ROOT / "build" / "compiled"
    runs: dict[str, list[dict[str, float]]] = {f"{how}, {way}": [] for how in (WELL, BESIDE) for way in (OWN, SHARED)}
    with tempfile.TemporaryDirectory() as directory:
        python_path = compiled if compiled.exists() else ROOT / "src"
        with BrokerProcess(Path(directory), queues=entities, python_path=python_path) as broker:
            for _ in range(chosen.reps):
                for how in (WELL, BESIDE):
                    for way in (OWN, SHARED):
                        found = asyncio.run(measure(broker, entities, chosen.messages, way, how))
                        runs[f"{how}, {way}"].append(found)
                        print(f"connections: {how}, {way}: {found}", flush=True)
    medians = {
        name: {key: statistics.median(run[key] for run in each) for key in each[0]} for name, each in runs.items()
    }
    facts = {
        "machine": machine(),
        "commit": commit(),
        "entities": chosen.entities,
        "messages_each": chosen.messages,
        "slow_ms": SLOW_MS,
        "medians": medians,
        "runs": runs,
    }
    chosen.out.write_text(json.dumps(facts, indent=1) + "\n")
    for name, each in medians.items():
        print(f"connections: median, {name}: {each}")


if __name__ == "__main__":
    main()
