"""The processes of a week in an hour: programs that send until they are told to stop, and one that receives."""

import asyncio
import contextlib
import itertools
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from spillway.lab.field import plan as plans
from spillway.lab.field.caller import PairedFactories, close_all
from spillway.lab.field.content import GOOD, make_message
from spillway.lab.field.lines import CLOSED
from spillway.lab.field.plan import Program, read_plan
from spillway.lab.histories import DELIVERED, INFO, OK, SEND, History, now_ns

PAUSE_S: Final = 0.5  # before a receiver connects again
POLL_S: Final = 5.0
STUCK_S: Final = 15.0
BATCH: Final = 100


class WeekCaller:
    """What the callers of a program have in common; each has a number, and a chance of its own."""

    def __init__(self, spec: dict[str, Any], history: History) -> None:
        self.history = history
        self.spec = spec
        self.plan = read_plan(Path(spec["plan"]))
        self.program: Program = next(each for each in self.plan.programs if each.name == spec["name"])
        self.paths = [entity.name for entity in self.plan.entities]
        self.senders: dict[str, Any] = {}

    def options(self, pair: PairedFactories) -> Any:
        return pair.options(self.plan, self.program.interval_s, self.program.pending, is_syphon=False)

    def made(self, chance: random.Random, caller: int, number: int) -> tuple[Any, str, str]:
        """Sender, path and identity of the next message."""
        path = chance.choice(self.paths)
        if path not in self.senders:
            self.senders[path] = self.pair.primary.create_message_sender(path)
        return self.senders[path], path, f"{self.program.name}-{caller}-{number}"

    def record(self, identity: str, path: str, begun_ns: int, error: Exception | None) -> None:
        said = {"res": OK} if error is None else {"res": INFO, "error": type(error).__name__}
        self.history.write(SEND, t0=begun_ns, id=identity, q=path, **said)

    pair: PairedFactories


class AsyncioWeek(WeekCaller):
    async def run(self) -> None:
        from spillway import paired

        self.pair = PairedFactories(paired, self.spec, self.history, self.program.timeout_s)
        await self.pair.primary.pair_namespace(self.options(self.pair))
        print("ready", flush=True)
        self.stopping = asyncio.Event()
        await asyncio.to_thread(sys.stdin.readline)
        working = [asyncio.create_task(self.work(caller)) for caller in range(self.spec["callers"])]
        await asyncio.to_thread(sys.stdin.readline)
        self.stopping.set()
        await asyncio.gather(*working)
        print("sent", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await close_all(self.pair, self.history)

    async def work(self, caller: int) -> None:
        chance = random.Random(f"{self.program.name}-{caller}")
        for number in itertools.count():
            if self.stopping.is_set():
                return
            sender, path, identity = self.made(chance, caller, number)
            begun_ns = now_ns()
            failed: Exception | None = None
            try:
                await sender.send_messages(make_message(GOOD, identity, None))
            except Exception as error:
                failed = error
            self.record(identity, path, begun_ns, failed)
            await asyncio.sleep(chance.uniform(0.5, 1.5) * self.spec["pause_s"])


class SyncWeek(WeekCaller):
    def run(self) -> None:
        from spillway.paired import sync

        self.pair = PairedFactories(sync, self.spec, self.history, self.program.timeout_s)
        self.pair.primary.pair_namespace(self.options(self.pair))
        print("ready", flush=True)
        self.stopping = threading.Event()
        sys.stdin.readline()
        threads = [threading.Thread(target=self.work, args=(caller,)) for caller in range(self.spec["callers"])]
        for thread in threads:
            thread.start()
        sys.stdin.readline()
        self.stopping.set()
        for thread in threads:
            thread.join()
        print("sent", flush=True)
        sys.stdin.readline()
        for what in ("primary", "secondary"):
            begun_s = time.monotonic()
            getattr(self.pair, what).close()
            self.history.write(CLOSED, what=what, took_s=round(time.monotonic() - begun_s, 3))
        self.pair.manager.close()

    def work(self, caller: int) -> None:
        chance = random.Random(f"{self.program.name}-{caller}")
        for number in itertools.count():
            sender, path, identity = self.made(chance, caller, number)
            begun_ns = now_ns()
            failed: Exception | None = None
            try:
                sender.send_messages(make_message(GOOD, identity, None))
            except Exception as error:
                failed = error
            self.record(identity, path, begun_ns, failed)
            if self.stopping.wait(chance.uniform(0.5, 1.5) * self.spec["pause_s"]):
                return


async def consume_all(spec: dict[str, Any], history: History) -> None:
    plan = read_plan(Path(spec["plan"]))
    stopping = asyncio.Event()
    working = [asyncio.create_task(consume(spec["primary"], each.name, history, stopping)) for each in plan.entities]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    stopping.set()
    await asyncio.gather(*working)


async def consume(connection_string: str, path: str, history: History, stopping: asyncio.Event) -> None:
    """One receiver, on one connection after the other: what it was handed is written down before it is completed."""
    from spillway.client import connect

    while not stopping.is_set():
        with contextlib.suppress(Exception):  # the primary is away
            async with asyncio.timeout(STUCK_S):
                connection = await connect(connection_string)
            async with connection:
                receiver = await connection.receiver(path)
                while not stopping.is_set():
                    async with asyncio.timeout(STUCK_S):
                        messages = await receiver.receive(BATCH, max_wait=POLL_S)
                    for message in messages:
                        history.write(DELIVERED, id=str(message.message_id), q=path, seq=message.sequence_number)
                    if messages:
                        await receiver.complete_all(messages)
        if not stopping.is_set():
            await asyncio.sleep(PAUSE_S)


def run(spec: dict[str, Any]) -> None:
    history = History(Path(spec["directory"]), spec["name"])
    if spec["role"] == "week-consumer":
        asyncio.run(consume_all(spec, history))
    elif spec["front"] == plans.ASYNCIO:
        asyncio.run(AsyncioWeek(spec, history).run())
    else:
        SyncWeek(spec, history).run()
