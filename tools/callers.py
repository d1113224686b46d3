"""`make callers`: what callers see of each fault, measured: the table of the same name in docs/pairing.md.

For each fault four programs, one for each interval and `pending`, have sent before and are idle when it strikes. Each
then makes a call at once and another one five seconds later. What the calls returned and after how long is written to
`--out`, with where their messages were found once all was well again; then the table in the guide is written anew.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from azure.servicebus import ServiceBusMessage  # noqa: E402

from spillway.client import connect  # noqa: E402
from spillway.lab.field import plan as plans  # noqa: E402
from spillway.lab.field.content import make_message  # noqa: E402
from spillway.lab.field.plan import PRIMARY, SECONDARY, Ailment, PlannedEntity, PlayPlan  # noqa: E402
from spillway.lab.field.stage import PAIRING_NAME, Stage, peek_all  # noqa: E402
from spillway.lab.guard import Guard  # noqa: E402
from spillway.lab.histories import History  # noqa: E402
from spillway.paired import (  # noqa: E402
    MessageSender,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from tests.tools.commit import commit, machine  # noqa: E402

TIMEOUT_S: Final = 10.0
INTERVALS_S: Final = (0.0, 2.0)
PENDING: Final = ("raise", "hold")
WARM: Final = 4  # messages at once: as many connections as there may be
LATER_S: Final = 5.0
BACK_S: Final = 3.0
PATH: Final = "small"
GUIDE: Final = ROOT / "docs" / "pairing.md"
BEGIN: Final = "<!-- callers: made by tools/callers.py from docs/evidence/callers.json -->"
END: Final = "<!-- end of callers -->"
Row = dict[str, Any]


def one(what: str, side: str = PRIMARY, *paths: str, **more: Any) -> Ailment:
    return Ailment(0.0, 0.0, side, what, paths or (plans.EVERYTHING,), **more)


# What strikes, in words, and whether it is mended before the call.
FAULTS: Final[dict[str, tuple[list[Ailment], bool]]] = {
    "nothing": ([], False),
    "a message that nobody takes, on a healthy primary": ([], False),
    "the primary was restarted": ([one(plans.KILL)], True),
    "the primary closed idle connections": ([one(plans.CUT)], True),
    "the primary is down": ([one(plans.KILL)], False),
    "the primary is silent": ([one(plans.FREEZE)], False),
    "the entity is busy": ([one(plans.BUSY, PRIMARY, PATH)], False),
    "the entity is disabled": ([one(plans.DISABLE, PRIMARY, PATH)], False),
    "the entity is full": ([one(plans.FILL, PRIMARY, PATH)], False),
    "the entity is gone": ([one(plans.DELETE, PRIMARY, PATH)], False),
    "both are down": ([one(plans.KILL), one(plans.KILL, SECONDARY)], False),
    "both are down, the secondary is back after 3 s": ([one(plans.KILL), one(plans.KILL, SECONDARY)], False),
}
BAD_MESSAGE: Final = "a message that nobody takes, on a healthy primary"
COMES_BACK: Final = "both are down, the secondary is back after 3 s"


class Program:
    """One pairing with its settings, and what its two calls saw."""

    def __init__(self, stage: Stage, interval_s: float, pending: str) -> None:
        primary, secondary = stage.primary, stage.secondary
        self.interval_s = interval_s
        self.pending = pending
        make = MessagingFactory.from_connection_string
        self.primary = make(primary.connection_string, namespace_name=PAIRING_NAME, operation_timeout=TIMEOUT_S)
        self.secondary = make(secondary.connection_string, operation_timeout=TIMEOUT_S)
        self.manager = NamespaceManager.from_connection_string(secondary.connection_string, ca_file=secondary.ca_file)
        self.sender: MessageSender | None = None
        self.calls: list[Row] = []

    async def begin(self) -> None:
        options = SendAvailabilityPairedNamespaceOptions(
            self.manager,
            self.secondary,
            2,
            timedelta(seconds=self.interval_s),
            ping_primary_interval=timedelta(seconds=1),
            pending="hold" if self.pending == "hold" else "raise",
        )
        await self.primary.pair_namespace(options)
        self.sender = self.primary.create_message_sender(PATH)
        await asyncio.gather(*(self.sender.send_messages(ServiceBusMessage("warm")) for _ in range(WARM)))

    async def call(self, identity: str, kind: str = "good") -> None:
        assert self.sender is not None, "begun"
        begun_s = time.monotonic()
        said = "returns"
        try:
            await self.sender.send_messages(make_message(kind, identity, None))
        except Exception as error:
            said = type(error).__name__
        self.calls.append({"id": identity, "took_s": round(time.monotonic() - begun_s, 1), "returned": said})

    async def close(self) -> None:
        await asyncio.gather(self.primary.close(), self.secondary.close())
        await self.manager.close()


async def measure(stage: Stage, number: int, fault: str) -> list[Row]:
    ailments, is_mended = FAULTS[fault]
    programs = [Program(stage, interval_s, pending) for interval_s in INTERVALS_S for pending in PENDING]
    for program in programs:
        await program.begin()
    for ailment in ailments:
        await asyncio.to_thread(stage.apply, ailment)
    if is_mended:
        await mend(stage, ailments)
    returning = asyncio.create_task(come_back(stage)) if fault == COMES_BACK else None
    kind = "long-id" if fault == BAD_MESSAGE else "good"
    await asyncio.gather(*(both_calls(program, f"{number}-{at}", kind) for at, program in enumerate(programs)))
    if returning is not None:
        await returning
        ailments = ailments[:1]
    if not is_mended:
        await mend(stage, ailments)
    await find(stage, programs)
    await asyncio.gather(*(program.close() for program in programs))
    return [
        {"fault": fault, "interval_s": each.interval_s, "pending": each.pending, "calls": each.calls}
        for each in programs
    ]


async def both_calls(program: Program, name: str, kind: str) -> None:
    """At once, and five seconds later; the second is of a good message in any case."""

    async def later() -> None:
        await asyncio.sleep(LATER_S)
        await program.call(f"{name}-later")

    await asyncio.gather(program.call(f"{name}-first", kind), later())
    program.calls.sort(key=lambda each: each["id"])


async def mend(stage: Stage, ailments: list[Ailment]) -> None:
    for ailment in ailments:
        await asyncio.to_thread(stage.mend, ailment)


async def come_back(stage: Stage) -> None:
    await asyncio.sleep(BACK_S)
    await asyncio.to_thread(stage.secondary.start)


async def find(stage: Stage, programs: list[Program]) -> None:
    """Where each message is, now that all is well."""
    where: dict[str, set[str]] = {}
    places = [(stage.primary, PATH, "primary"), *((stage.secondary, path, "backlog") for path in stage.backlog_paths)]
    for broker, path, name in places:
        async with await connect(broker.connection_string) as connection:
            for message in await peek_all(connection, path):
                where.setdefault(str(message.message_id)[:40], set()).add(name)
    for drained in read_stored(stage.directory):
        where.setdefault(drained, set()).add("primary")
    for program in programs:
        for call in program.calls:
            call["where"] = " and ".join(sorted(where.get(call["id"], {"nowhere"})))


def read_stored(directory: Path) -> list[str]:
    """Messages that were in a full queue when it was drained, or in one that was deleted."""
    from spillway.lab.histories import read_lines

    return [line["id"] for line in read_lines(directory) if line["op"] == "stored"]


# -- the table ---------------------------------------------------------------------------------------------------------


def table(facts: Row) -> str:
    """As it stands in the guide: settings of one fault that saw the same share a row."""
    head = "| what happens | interval | `pending` | the call | its message | a call 5 s later | its message |"
    rows = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for fault in dict.fromkeys(row["fault"] for row in facts["rows"]):
        seen = {(row["interval_s"], row["pending"]): cells(row) for row in facts["rows"] if row["fault"] == fault}
        rows += [f"| {fault} | {setting} | {said} |" for setting, said in merged(seen)]
    return "\n".join(rows)


def merged(seen: dict[tuple[float, str], str]) -> list[tuple[str, str]]:
    """Interval and `pending`, and what they saw; "any" where it makes no difference."""
    if len(set(seen.values())) == 1:
        return [("any | any", next(iter(seen.values())))]
    found = []
    for interval_s in INTERVALS_S:
        name = "zero" if interval_s == 0 else f"{interval_s:g} s"
        said = {pending: seen[interval_s, pending] for pending in PENDING}
        if len(set(said.values())) == 1:
            found.append((f"{name} | any", said[PENDING[0]]))
        else:
            found += [(f"{name} | {pending}", text) for pending, text in said.items()]
    return found


def cells(row: Row) -> str:
    return " | ".join(f"{call_words(call)} | {call['where']}" for call in row["calls"])


def call_words(call: Row) -> str:
    took = "within a second" if call["took_s"] < 1 else f"after {call['took_s']:.0f} s"
    said = call["returned"] if call["returned"] == "returns" else f"`{call['returned']}`"
    return f"{said} {took}"


def with_table(page: str, facts: Row) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(facts)}\n{END}{after}"


# -- the run -----------------------------------------------------------------------------------------------------------


def run(faults: Sequence[str]) -> list[Row]:
    plan = PlayPlan(0, 2, 60.0, "well", (PlannedEntity(PATH, dedup=True, size_mb=1),), (), (), ())
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="spillway-callers-") as name, Guard() as guard:
        for number, fault in enumerate(faults):
            directory = Path(name) / str(number)
            directory.mkdir()
            stage = Stage(plan, directory, guard, History(directory, "lab"))
            try:
                for broker in stage.brokers.values():
                    broker.start()
                rows += asyncio.run(measure(stage, number, fault))
                for row in rows[-len(INTERVALS_S) * len(PENDING) :]:
                    print(f"callers: {json.dumps(row)}", flush=True)
            finally:
                for broker in stage.brokers.values():
                    broker.end()
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only these, and no table is written")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "callers.json")
    parser.add_argument("--guide", type=Path, default=GUIDE)
    chosen = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # the library tells of every failover
    rows = run(chosen.fault or list(FAULTS))
    if chosen.fault:
        return 0
    facts = {
        "machine": machine(),
        "commit": commit(),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "operation_timeout_s": TIMEOUT_S,
        "rows": rows,
    }
    lines = ",\n    ".join(json.dumps(row) for row in facts.pop("rows"))  # type: ignore[attr-defined]
    chosen.out.write_text(f'{json.dumps(facts, indent=2)[:-2]},\n  "rows": [\n    {lines}\n  ]\n}}\n')
    facts["rows"] = rows
    chosen.guide.write_text(with_table(chosen.guide.read_text(encoding="utf-8"), facts), encoding="utf-8")
    print(f"callers: {len(rows)} rows; {chosen.out}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
