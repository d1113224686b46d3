"""A program of a random play: it pairs, waits for the word, sends what the plan says, and writes down what it was told.

Nothing of the package is imported before `host` has said which library it is.
"""

import asyncio
import datetime
import gc
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spillway.lab.field import plan as plans
from spillway.lab.field.content import GOOD, digest_of_sent, identity_of, make_message
from spillway.lab.field.lines import AFTER_CLOSE, BARE, BEGIN, CALL, CLOSED, END, VITALS
from spillway.lab.field.plan import PlannedSend, PlayPlan, Program, read_plan
from spillway.lab.field.vitals import vitals
from spillway.lab.histories import EVENT, FAIL, INFO, OK, UNCLEAN, History, now_ns

THREADS: Final = 64
LAST_S: Final = 0.3  # the last calls are under way before the factories are closed
ENDED_S: Final = 3.0  # a call ends so soon after its factory was closed
SETTLED_S: Final = 2.0  # a connection may say goodbye for a moment after its factory was closed
TEXT_MAX: Final = 240
SESSIONS: Final = 3
NOTED: Final = (
    "suspected", "failed-over", "recovered", "entity-failed", "diverted", "backlog-queue-removed",
    "backlog-queue-readmitted", "syphoned", "syphon-kept", "syphon-repeated", "syphon-dead-lettered",
)  # fmt: skip


@dataclass(frozen=True)
class SendCall:
    """What one call sends."""

    send: PlannedSend
    group: str
    messages: list[Any]
    digests: list[str | None]

    @property
    def ids(self) -> list[str]:
        return [identity_of(message) for message in self.messages]


class PairedFactories:
    """The two factories of a process and the secondary's manager, of either front (`library`)."""

    def __init__(self, library: Any, spec: dict[str, Any], history: History, timeout_s: float) -> None:
        self.library = library
        self.spec = spec
        self.history = history
        make = library.MessagingFactory.from_connection_string
        self.primary = make(spec["primary"], namespace_name=spec["pairing_name"], operation_timeout=timeout_s)
        self.secondary = make(spec["secondary"], operation_timeout=timeout_s)
        self.manager = library.NamespaceManager.from_connection_string(
            spec["secondary"], ca_file=spec["secondary_ca_file"]
        )
        self.primary.on_event(self.note)

    def note(self, event: Any) -> None:
        if event.name in NOTED:
            error = "" if event.error is None else f"{type(event.error).__name__}: {event.error}"[:TEXT_MAX]
            before = event.details.get("before", "")
            self.history.write(
                EVENT, name=event.name, path=event.path, count=event.count, error=error, before=before
            )  # fmt: skip

    def options(self, plan: PlayPlan, interval_s: float, pending: str, is_syphon: bool) -> Any:
        return self.library.SendAvailabilityPairedNamespaceOptions(
            self.manager,
            self.secondary,
            plan.backlog_queues,
            datetime.timedelta(seconds=interval_s),
            is_syphon,
            ping_primary_interval=datetime.timedelta(seconds=1),
            pending=pending,
            backlog_cool_down=datetime.timedelta(seconds=plan.cool_down_s),
            syphon_long_poll=datetime.timedelta(seconds=2),
        )


class Caller:
    """What both fronts have in common: the calls of the plan, and the lines about them."""

    def __init__(self, spec: dict[str, Any], history: History) -> None:
        self.spec = spec
        self.history = history
        self.plan = read_plan(Path(spec["plan"]))
        self.program: Program = next(each for each in self.plan.programs if each.name == spec["name"])
        self.sends = [send for send in self.plan.sends if send.program == self.program.name]
        self.senders: dict[tuple[str, int], Any] = {}

    def make_senders(self, primary: Any) -> None:
        for entity in self.plan.entities:
            for number in range(self.program.senders):
                self.senders[entity.name, number] = primary.create_message_sender(entity.name)

    def calls(self, index: int, send: PlannedSend) -> list[SendCall]:
        entity = next(each for each in self.plan.entities if each.name == send.entity)
        session_id = f"s{index % SESSIONS}" if entity.sessions else None
        group = f"{self.program.name}-{index}"
        messages = [make_message(send.kind, f"{group}-{number}", session_id) for number in range(send.count)]
        parts = [messages] if send.how == plans.BATCH else [[message] for message in messages]
        return [SendCall(send, group, part, [digest_of_sent(message) for message in part]) for part in parts]

    def asked(self, call: SendCall) -> tuple[str, tuple[Any, ...]]:
        """The sender's method, and what it is given."""
        if call.send.how == plans.SCHEDULE:
            due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=plans.LATER_S)
            return "schedule_messages", (call.messages, due)
        return "send_messages", (call.messages if call.send.how == plans.BATCH else call.messages[0],)

    def record(self, call: SendCall, begun_ns: int, error: BaseException | None) -> None:
        line: dict[str, Any] = {
            "t0": begun_ns,
            "ids": call.ids,
            "h": call.digests,
            "path": call.send.entity,
            "kind": call.send.kind,
            "how": call.send.how,
            "group": call.group,
            "res": OK,
        }
        if error is not None:
            is_unsent = type(error).__name__ == "BacklogUnavailableError" and not error.is_outcome_unknown  # type: ignore[attr-defined]
            line |= {"res": FAIL if is_unsent else INFO, "error": type(error).__name__, "text": str(error)[:TEXT_MAX]}
        self.history.write(CALL, **line)

    def last_message(self, entity: plans.PlannedEntity) -> Any:
        """One more message, that is under way when the factory is closed."""
        return make_message(GOOD, f"last-{self.program.name}-{entity.name}", "s0" if entity.sessions else None)

    async def ask_bare_sdk(self) -> None:
        """What the bare SDK says of each kind that is not good, while all is well."""
        from azure.servicebus.aio import ServiceBusClient

        wanted = sorted({(send.kind, send.entity) for send in self.sends if send.kind != GOOD})
        sessions = {entity.name: entity.sessions for entity in self.plan.entities}
        # Without keep-alive: the SDK would wait up to a second when a sender is closed.
        options: dict[str, Any] = {"retry_total": 0, "keep_alive": 0}
        async with ServiceBusClient.from_connection_string(self.spec["primary"], **options) as client:
            for kind, path in wanted:
                message = make_message(kind, f"bare-{self.program.name}-{kind}", "s0" if sessions[path] else None)
                said = ""
                try:
                    async with client.get_queue_sender(path) as sender:
                        await sender.send_messages(message, timeout=self.program.timeout_s)
                except Exception as error:
                    said = type(error).__name__
                self.history.write(BARE, kind=kind, path=path, error=said)

    def note_vitals(self, when: str, **values: int) -> None:
        self.history.write(VITALS, when=when, **{**vitals(), **values})


class AsyncioCaller(Caller):
    async def run(self) -> None:
        from spillway import paired

        await self.ask_bare_sdk()
        before = vitals()
        pair = PairedFactories(paired, self.spec, self.history, self.program.timeout_s)
        await pair.primary.pair_namespace(
            pair.options(self.plan, self.program.interval_s, self.program.pending, is_syphon=False)
        )
        self.make_senders(pair.primary)
        self.note_vitals(BEGIN, sockets=before["sockets"])
        print("ready", flush=True)
        if await asyncio.to_thread(sys.stdin.readline):
            begun_s = asyncio.get_running_loop().time()
            await asyncio.gather(*(self.act(begun_s, index, send) for index, send in enumerate(self.sends)))
            print("sent", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        self.note_vitals(END)
        await self.close(pair)

    async def act(self, begun_s: float, index: int, send: PlannedSend) -> None:
        calls = self.calls(index, send)
        await asyncio.sleep(begun_s + send.at_s - asyncio.get_running_loop().time())
        if send.how == plans.TOGETHER:
            await asyncio.gather(*map(self.call, calls))
            return
        for call in calls:
            await self.call(call)

    async def call(self, call: SendCall) -> None:
        method, arguments = self.asked(call)
        begun_ns = now_ns()
        failed: BaseException | None = None
        try:
            await getattr(self.senders[call.send.entity, call.send.sender], method)(*arguments)
        except Exception as error:
            failed = error
        self.record(call, begun_ns, failed)

    async def close(self, pair: PairedFactories) -> None:
        last = [
            asyncio.create_task(self.senders[entity.name, 0].send_messages(self.last_message(entity)))
            for entity in self.plan.entities
        ]
        await asyncio.sleep(LAST_S)
        await close_all(pair, self.history)
        late = (await asyncio.wait(last, timeout=ENDED_S))[1]
        if late:
            self.history.write(UNCLEAN, text=f"{self.program.name}: {len(late)} calls outlive the factory")
        for task in late:
            task.cancel()
        await asyncio.gather(*last, return_exceptions=True)
        last.clear()  # their errors hold what raised them
        await asyncio.sleep(SETTLED_S)
        gc.collect()  # the SDK leaves connections that died while they were made to it
        self.note_vitals(AFTER_CLOSE)


async def close_all(pair: PairedFactories, history: History) -> None:
    """Both factories at the same time: neither waits for the other."""

    async def timed(what: str) -> None:
        begun_s = time.monotonic()
        await getattr(pair, what).close()
        history.write(CLOSED, what=what, took_s=round(time.monotonic() - begun_s, 3))

    await asyncio.gather(timed("primary"), timed("secondary"))
    await pair.manager.close()


class SyncCaller(Caller):
    def run(self) -> None:
        from spillway.paired import sync

        asyncio.run(self.ask_bare_sdk())
        before = vitals()
        pair = PairedFactories(sync, self.spec, self.history, self.program.timeout_s)
        pair.primary.pair_namespace(
            pair.options(self.plan, self.program.interval_s, self.program.pending, is_syphon=False)
        )
        self.make_senders(pair.primary)
        self.note_vitals(BEGIN, sockets=before["sockets"])
        print("ready", flush=True)
        with ThreadPoolExecutor(THREADS) as pool:
            if sys.stdin.readline():
                for future in list(self.act(pool)):
                    future.result()
                print("sent", flush=True)
                sys.stdin.readline()
            self.note_vitals(END)
            self.close(pair, pool)

    def act(self, pool: ThreadPoolExecutor) -> Iterator["Future[None]"]:
        begun_s = time.monotonic()
        for index, send in enumerate(self.sends):
            calls = self.calls(index, send)
            time.sleep(max(0.0, begun_s + send.at_s - time.monotonic()))
            if send.how == plans.TOGETHER:
                yield from [pool.submit(self.call_all, [call]) for call in calls]
            else:
                yield pool.submit(self.call_all, calls)

    def call_all(self, calls: list[SendCall]) -> None:
        for call in calls:
            method, arguments = self.asked(call)
            begun_ns = now_ns()
            failed: BaseException | None = None
            try:
                getattr(self.senders[call.send.entity, call.send.sender], method)(*arguments)
            except Exception as error:
                failed = error
            self.record(call, begun_ns, failed)

    def close(self, pair: PairedFactories, pool: ThreadPoolExecutor) -> None:
        last = [
            pool.submit(self.senders[entity.name, 0].send_messages, self.last_message(entity))
            for entity in self.plan.entities
        ]
        time.sleep(LAST_S)
        for what in ("primary", "secondary"):
            begun_s = time.monotonic()
            getattr(pair, what).close()
            self.history.write(CLOSED, what=what, took_s=round(time.monotonic() - begun_s, 3))
        pair.manager.close()
        ended_s = time.monotonic() + ENDED_S
        while not all(each.done() for each in last) and time.monotonic() < ended_s:
            time.sleep(0.05)
        late = sum(not each.done() for each in last)
        if late:
            self.history.write(UNCLEAN, text=f"{self.program.name}: {late} calls outlive the factory")
        last.clear()  # their errors hold what raised them
        time.sleep(SETTLED_S)
        gc.collect()
        self.note_vitals(AFTER_CLOSE)


async def run_syphon(spec: dict[str, Any], history: History) -> None:
    from spillway import paired

    plan = read_plan(Path(spec["plan"]))
    before = vitals()
    pair = PairedFactories(paired, spec, history, spec["timeout_s"])
    await pair.primary.pair_namespace(pair.options(plan, 0.0, "raise", is_syphon=True))
    history.write(VITALS, when=BEGIN, **{**vitals(), "sockets": before["sockets"]})
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    history.write(VITALS, when=END, **vitals())
    await close_all(pair, history)
    history.write(VITALS, when=AFTER_CLOSE, **vitals())


def run(spec: dict[str, Any]) -> None:
    history = History(Path(spec["directory"]), spec["name"])
    if spec["role"] == "syphon":
        asyncio.run(run_syphon(spec, history))
    elif spec["front"] == plans.ASYNCIO:
        asyncio.run(AsyncioCaller(spec, history).run())
    else:
        SyncCaller(spec, history).run()
