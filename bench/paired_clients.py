"""The clients that bench/paired.py measures, each a process of its own: `paired_clients.py ROLE SPEC`, SPEC in JSON.

The last line on stdout is the result, in JSON. CPU is that of this process, user and system, from the kernel.
"""

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions

Spec = dict[str, Any]
Result = dict[str, Any]
LOOK_S = 0.02
BATCH = 200  # what the syphon asks for


class Sends(Protocol):
    async def send_messages(self, message: ServiceBusMessage) -> None: ...


class Meter:
    """From its making until `result`."""

    def __init__(self) -> None:
        self.begun_s = time.perf_counter()
        self.cpu_s = self._cpu()

    def _cpu(self) -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def result(self, count: int) -> Result:
        return rates_of(self.spent(count))

    def spent(self, count: int) -> dict[str, float]:
        """May be added to others."""
        return {
            "count": count,
            "seconds": time.perf_counter() - self.begun_s,
            "cpu_s": self._cpu() - self.cpu_s,
        }


def rates_of(spent: Mapping[str, float]) -> Result:
    count = int(spent["count"])
    return {
        "count": count,
        "seconds": round(spent["seconds"], 3),
        "rate": round(count / spent["seconds"], 1),
        "cpu_us_per_msg": round(spent["cpu_s"] / count * 1e6, 1),
    }


@asynccontextmanager
async def paired(spec: Spec, **more: Any) -> AsyncIterator[MessagingFactory]:
    timeout_s = spec.get("operation_timeout_s", 60.0)
    primary = MessagingFactory.from_connection_string(
        spec["primary"], operation_timeout=timeout_s, namespace_name=spec["name"]
    )
    secondary = MessagingFactory.from_connection_string(spec["secondary"], operation_timeout=timeout_s)
    manager = NamespaceManager.from_connection_string(spec["secondary"], ca_file=spec["ca_file"])
    options = SendAvailabilityPairedNamespaceOptions(
        manager,
        secondary,
        spec.get("backlog_queues", 10),
        timedelta(seconds=spec.get("interval_s", 60.0)),
        ping_primary_interval=timedelta(seconds=spec.get("ping_s", 60.0)),
        syphon_long_poll=timedelta(seconds=5),
        **more,
    )
    async with primary, secondary, manager:
        await primary.pair_namespace(options)
        yield primary


def message(spec: Spec, number: int) -> ServiceBusMessage:
    """With an id, as whoever cares for duplicates gives it one; or without, where the library has to make it."""
    body = b"x" * spec["size"]
    if spec["ids"]:
        return ServiceBusMessage(body, message_id=f"{spec['name']}-{number}")
    return ServiceBusMessage(body)


async def send_all(spec: Spec, senders: list[Sends], numbers: range) -> None:
    """`in_flight` tasks that wait for one answer after the other; a sender of the SDK serves one task at a time."""
    waiting = iter(numbers)
    idle: asyncio.Queue[Sends] = asyncio.Queue()
    for sender in senders:
        idle.put_nowait(sender)

    async def work(own: Sends | None) -> None:
        for number in waiting:
            sender = own or await idle.get()
            await sender.send_messages(message(spec, number))
            if own is None:
                idle.put_nowait(sender)

    tasks: int = spec["in_flight"]
    shares = not spec["is_paired"] and tasks > len(senders)
    await asyncio.gather(*(work(None if shares else senders[at % len(senders)]) for at in range(tasks)))


async def send(spec: Spec) -> Result:
    """To a namespace that is well: with the bare SDK, or paired."""
    async with AsyncExitStack() as stack:
        senders: list[Any]
        if spec["is_paired"]:
            factory = await stack.enter_async_context(paired(spec))
            senders = [factory.create_message_sender(spec["queue"])]
        else:
            client = await stack.enter_async_context(ServiceBusClient.from_connection_string(spec["primary"]))
            senders = [client.get_queue_sender(spec["queue"]) for _ in range(min(spec["in_flight"], spec["senders"]))]
            for sender in senders:
                await stack.enter_async_context(sender)
        await send_all(spec, senders, range(spec["warmup"]))
        meter = Meter()
        await send_all(spec, senders, range(spec["warmup"], spec["warmup"] + spec["count"]))
        return meter.result(spec["count"])


async def alternate(spec: Spec) -> Result:
    """A bare sender and a paired one in turns, a block of messages each; who is first changes. A tenth warms up."""
    async with AsyncExitStack() as stack:
        factory = await stack.enter_async_context(paired(spec))
        client = await stack.enter_async_context(ServiceBusClient.from_connection_string(spec["primary"]))
        bare = [client.get_queue_sender(spec["bare_queue"]) for _ in range(min(spec["in_flight"], spec["senders"]))]
        for sender in bare:
            await stack.enter_async_context(sender)
        ways: list[tuple[str, list[Any]]] = [
            ("bare", list(bare)),
            ("paired", [factory.create_message_sender(spec["queue"])]),
        ]
        totals: dict[str, Counter[str]] = {name: Counter() for name, _ in ways}
        block: int = spec["block"]
        blocks = max(2, spec["count"] // block)
        for number in range(-blocks // 10, blocks):
            for name, senders in ways if number % 2 else reversed(ways):
                numbers = range((number + blocks) * block, (number + blocks + 1) * block)
                meter = Meter()
                await send_all(spec | {"is_paired": name == "paired"}, senders, numbers)
                if number >= 0:
                    totals[name].update(meter.spent(block))
        return {name: rates_of(spent) for name, spent in totals.items()}


async def divert(spec: Spec) -> Result:
    """The primary is not there: all goes to the backlog. Several clients, or one backlog queue would have it all."""
    async with paired(spec) as factory:
        clients: list[Any] = [factory.create_queue_client(spec["queue"]) for _ in range(spec["clients"])]
        await clients[0].send_messages(message(spec, 0))  # fails over
        meter = Meter()
        await send_all(spec, clients, range(1, spec["count"]))
        return meter.result(spec["count"] - 1) | {"diverted": factory.counters["diverted"]}


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - counters tell nobody
        await asyncio.sleep(LOOK_S)


async def syphon(spec: Spec) -> Result:
    """Until everything is home."""
    meter = Meter()
    async with paired(spec, enable_syphon=True) as factory:
        await until(lambda: factory.counters["syphoned"] >= spec["count"])
        result = meter.result(spec["count"])
        running = factory.syphon
        assert running is not None
        await until(lambda: running.outstanding_count == 0)
        counters = ("syphoned", "syphon-kept", "syphon-repeated", "syphon-interrupted", "syphon-dead-lettered")
        return result | {name: factory.counters[name] for name in counters}


async def move(spec: Spec) -> Result:
    """What the syphon does, as plain code on the SDK: receive, send as one batch, complete one after the other. It
    restores nothing and survives nothing."""
    moved = 0
    meter = Meter()

    async def serve(receiver: ServiceBusReceiver, sender: ServiceBusSender) -> None:
        nonlocal moved
        while moved < spec["count"]:
            received = await receiver.receive_messages(BATCH, max_wait_time=1)
            if not received:
                continue
            await sender.send_messages([copy_of(each) for each in received])
            for each in received:
                await receiver.complete_message(each)
            moved += len(received)

    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(ServiceBusClient.from_connection_string(spec["secondary"]))
        home = await stack.enter_async_context(ServiceBusClient.from_connection_string(spec["primary"]))
        work: list[Awaitable[None]] = []
        for index in range(spec["backlog_queues"]):
            path = f"{spec['name']}/x-servicebus-transfer/{index}"
            receiver = await stack.enter_async_context(there.get_queue_receiver(path))
            sender = await stack.enter_async_context(home.get_queue_sender(spec["queue"]))
            work.append(serve(receiver, sender))
        await asyncio.gather(*work)
        return meter.result(moved)


def copy_of(received: ServiceBusReceivedMessage) -> ServiceBusMessage:
    return ServiceBusMessage(b"".join(received.body), message_id=received.message_id)


async def hold(spec: Spec) -> Result:
    """Sends all the time while the primary is killed, away and back. What the callers saw."""
    seen: list[str] = []
    longest_s = 0.0
    numbers = iter(range(1 << 30))
    sent = 0
    is_over = False

    async def work(sender: Sends) -> None:
        nonlocal longest_s, sent
        while not is_over:
            number = next(numbers)
            begun_s = time.perf_counter()
            try:
                await sender.send_messages(message(spec, number))
                sent += 1
            except Exception as error:
                seen.append(f"{type(error).__name__}: {error}"[:300])
            longest_s = max(longest_s, time.perf_counter() - begun_s)
            await asyncio.sleep(spec["pause_s"])

    async with paired(spec, pending="hold") as factory:
        sender: Any = factory.create_message_sender(spec["queue"])
        tasks = [asyncio.create_task(work(sender)) for _ in range(spec["in_flight"])]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        is_over = True
        await asyncio.gather(*tasks)
        names = ("suspected", "failed-over", "recovered", "diverted", "pinged")
        counters = {name: factory.counters[name] for name in names}
        return {
            "acknowledged": sent,
            "exceptions": len(seen),
            "first_exceptions": seen[:5],
            "longest_call_s": round(longest_s, 2),
        } | counters


async def fail_at_once(spec: Spec) -> Result:
    """With an interval of zero: how long the call took that met the outage. It is told when there is one."""
    async with paired(spec) as factory:
        sender: Any = factory.create_message_sender(spec["queue"])
        await sender.send_messages(message(spec, 0))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        begun_s = time.perf_counter()
        await sender.send_messages(message(spec, 1))
        took_s = time.perf_counter() - begun_s
        return {"failing_call_s": round(took_s, 2), "diverted": factory.counters["diverted"]}


ROLES: dict[str, Callable[[Spec], Any]] = {
    "send": send,
    "alternate": alternate,
    "divert": divert,
    "syphon": syphon,
    "move": move,
    "hold": hold,
    "fail-at-once": fail_at_once,
}


def main() -> None:
    print(json.dumps(asyncio.run(ROLES[sys.argv[1]](json.loads(sys.argv[2])))))


if __name__ == "__main__":
    main()
