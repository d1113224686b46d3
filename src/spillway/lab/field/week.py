"""A week in an hour: many callers and entities, and both namespaces restarted, frozen, throttled and cut off at random,
for as long as somebody wants. What the processes hold is sampled from outside all the while. `library` is the source
tree whose client library is used, if it is another."""

import random
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spillway.lab.afterwards import count_stored
from spillway.lab.field import plan as plans
from spillway.lab.field.lines import CLOSED, HEALED, ILL, MENDING, PLAN_FILE, STORED
from spillway.lab.field.plan import PRIMARY, SECONDARY, Ailment, PlannedEntity, PlayPlan, Program
from spillway.lab.field.stage import PAIRING_NAME, Stage
from spillway.lab.field.vitals import count_sockets, resident_kb
from spillway.lab.guard import Guard
from spillway.lab.histories import DELIVERED, EVENT, LEFT, OK, SEND, UNCLEAN, History, read_lines
from spillway.lab.processes import Client, LabError, Process

ENTITIES: Final = 50
CALLERS: Final = 64
BACKLOG_QUEUES: Final = 10
TIMEOUT_S: Final = 10.0
SAMPLE_S: Final = 5.0
SAMPLES_MAX: Final = 120  # of each process, in the evidence
HOME_S: Final = 180.0
STALLED_S: Final = 10.0
END_S: Final = 30.0
SYPHON_LIVES_S: Final = (30.0, 90.0)
WEIGHTS: Final = {plans.KILL: 4, plans.FREEZE: 3, plans.BUSY: 2, plans.UNREACHABLE: 3, plans.CUT: 3}
LASTS_S: Final = (2.0, 8.0)
PAUSES_S: Final = {PRIMARY: (6.0, 20.0), SECONDARY: (10.0, 30.0)}
# Between the second quarter of the time and the last one: what grows for ever shows there.
GROWTH: Final = 1.25
GROWTH_KB: Final = 15_000
GROWTH_SOCKETS: Final = 40
QUARTER_MIN: Final = 15  # samples: five minutes in all
CLOSE_S: Final = 5.5
Sample = tuple[float, int, int]  # seconds since the begin, sockets, kilobytes in memory


def plan_of(seed: int, minutes: float) -> PlayPlan:
    chance = random.Random(seed)
    return PlayPlan(
        seed=seed,
        backlog_queues=BACKLOG_QUEUES,
        cool_down_s=5.0,
        closing="well",
        entities=tuple(PlannedEntity(f"e{number:02}", dedup=number % 2 == 0) for number in range(ENTITIES)),
        programs=(
            Program("asyncio", plans.ASYNCIO, 1.0, "hold", TIMEOUT_S, 1),
            Program("sync", plans.SYNC, 0.0, "raise", TIMEOUT_S, 1),
        ),
        ailments=tuple(each for side in (PRIMARY, SECONDARY) for each in _lane(chance, side, minutes * 60.0)),
        sends=(),
    )


def _lane(chance: random.Random, side: str, until_s: float) -> list[Ailment]:
    found: list[Ailment] = []
    at_s = chance.uniform(*PAUSES_S[side])
    while True:
        what = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        lasts_s = 0.0 if what == plans.CUT else round(chance.uniform(*LASTS_S), 1)
        if at_s + lasts_s > until_s - LASTS_S[1]:
            return found
        found.append(Ailment(round(at_s, 1), lasts_s, side, what))
        at_s += lasts_s + chance.uniform(*PAUSES_S[side])


@dataclass
class WeekVerdict:
    """What came of it; `problems` is empty if every promise held."""

    calls: int = 0
    acknowledged: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # by the caller's error
    delivered: int = 0
    diverted: int = 0
    syphoned: int = 0
    lost: int = 0
    twice_where_detected: int = 0
    twice_elsewhere: int = 0
    left: int = 0
    close_most_s: float = 0.0
    problems: list[str] = field(default_factory=list)


def judge(lines: Iterable[dict[str, Any]], plan: PlayPlan) -> WeekVerdict:
    """Judge a week from the histories alone."""
    found = WeekVerdict()
    acknowledged: set[str] = set()
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    refused: Counter[str] = Counter()
    left: set[str] = set()
    for line in lines:
        op = line["op"]
        if op == SEND:
            found.calls += 1
            if line["res"] == OK:
                acknowledged.add(line["id"])
            else:
                refused[line["error"]] += 1
        elif op == DELIVERED:
            numbers[line["q"], line["id"]].add(line["seq"])
        elif op == STORED:  # at home, and nobody has fetched it yet
            numbers[line["path"], line["id"]].add(line["seq"])
        elif op == LEFT:
            left.add(line["id"])
        elif op == EVENT and line["name"] in ("diverted", "syphoned"):
            setattr(found, line["name"], getattr(found, line["name"]) + line["count"])
        elif op == CLOSED:
            found.close_most_s = max(found.close_most_s, line["took_s"])
        elif op == UNCLEAN:
            found.problems.append(line["text"])
    _sum_up(found, acknowledged, numbers, left, {each.name for each in plan.entities if each.dedup})
    found.refused = dict(refused.most_common())
    return found


def _sum_up(
    found: WeekVerdict,
    acknowledged: set[str],
    numbers: dict[tuple[str, str], set[int]],
    left: set[str],
    detects: set[str],
) -> None:
    delivered = {identity for _, identity in numbers}
    lost = acknowledged - delivered - left
    twice = [(path, identity) for (path, identity), copies in numbers.items() if len(copies) > 1]
    twice_where_detected = sorted(identity for path, identity in twice if path in detects)
    found.acknowledged = len(acknowledged)
    found.delivered = len(delivered)
    found.lost = len(lost)
    found.left = len(left & acknowledged)
    found.twice_where_detected = len(twice_where_detected)
    found.twice_elsewhere = len(twice) - len(twice_where_detected)
    if lost:
        found.problems.append(f"{len(lost)} acknowledged messages are nowhere, such as {sorted(lost)[0]}")
    if found.left:
        found.problems.append(f"{found.left} acknowledged messages did not come home")
    if twice_where_detected:
        some = f"{len(twice_where_detected)} messages are there twice where duplicates are detected"
        found.problems.append(f"{some}, such as {twice_where_detected[0]}")
    if found.close_most_s > CLOSE_S:
        found.problems.append(f"a factory took {found.close_most_s:.1f} s to close")


def growth_problems(name: str, samples: list[Sample]) -> list[str]:
    """Growth of a process that lived all the time: memory and sockets of the last quarter beside those of the
    second."""
    quarter = len(samples) // 4
    if quarter < QUARTER_MIN:  # connections are still being made for the first time
        return []
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    problems = []
    sockets = (statistics.median(each[1] for each in early), statistics.median(each[1] for each in late))
    if sockets[1] > sockets[0] * GROWTH + GROWTH_SOCKETS:
        problems.append(f"{name} had {sockets[0]:.0f} sockets, and {sockets[1]:.0f} at the end")
    memory_kb = (statistics.median(each[2] for each in early), statistics.median(each[2] for each in late))
    if memory_kb[1] > memory_kb[0] * GROWTH + GROWTH_KB:
        problems.append(f"{name} had {memory_kb[0]:.0f} KB in memory, and {memory_kb[1]:.0f} at the end")
    return problems


class Week:
    """`show` is called with a line for people."""

    def __init__(
        self,
        plan: PlayPlan,
        minutes: float,
        pause_s: float,
        directory: Path,
        guard: Guard,
        show: Callable[[str], None],
        library: Path | None = None,
    ) -> None:
        self.plan = plan
        self.seconds = minutes * 60.0
        self.pause_s = pause_s
        self.directory = directory
        self.guard = guard
        self.show = show
        self.library = "" if library is None else str(library)
        (directory / PLAN_FILE).write_text(plan.to_text())
        self.history = History(directory, "lab")
        self.stage = Stage(plan, directory, guard, self.history)
        self.callers: list[Client] = []
        self.clients: dict[str, Client] = {}
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.syphon_lives = 0
        self.failures: list[BaseException] = []
        self.over = threading.Event()
        self.begun_s = 0.0

    def run(self) -> dict[str, Any]:
        """Numbers, samples and problems."""
        try:
            self._start()
            self._act()
            self._come_home()
            self._close()
            self.stage.note_where_all_is()
        finally:
            self.over.set()
            for process in (*self.clients.values(), *self.stage.brokers.values()):
                process.end()
            self.history.close()
        found = judge(read_lines(self.directory), self.plan)
        for name in ("asyncio", "sync"):
            found.problems += growth_problems(name, self.samples[name])
        return self._facts(found)

    # -- the processes --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for broker in self.stage.brokers.values():
            broker.start()
        for name, role, front in (
            ("asyncio", "week-caller", plans.ASYNCIO),
            ("sync", "week-caller", plans.SYNC),
            ("consumer", "week-consumer", ""),
            ("syphon", "syphon", ""),
        ):
            self.clients[name] = self._client(name, role, front)
            self.clients[name].spawn()
        for client in self.clients.values():
            client.wait_ready()
        self.callers = [self.clients["asyncio"], self.clients["sync"]]

    def _client(self, name: str, role: str, front: str) -> Client:
        spec = {
            "name": name,
            "role": role,
            "front": front,
            "directory": str(self.directory),
            "plan": str(self.directory / PLAN_FILE),
            "library": self.library,
            "pairing_name": PAIRING_NAME,
            "primary": self.stage.primary.connection_string,
            "secondary": self.stage.secondary.connection_string,
            "secondary_ca_file": self.stage.secondary.ca_file,
            "timeout_s": TIMEOUT_S,
            "callers": CALLERS // 2,
            "pause_s": self.pause_s,
        }
        return Client("field.host", spec, self.directory, self.guard)

    # -- the week -------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        self.begun_s = time.monotonic()
        for caller in self.callers:
            caller.send_go()
        threads = [threading.Thread(target=self._guarded, args=(self._lane, side)) for side in (PRIMARY, SECONDARY)]
        threads += [threading.Thread(target=self._guarded, args=(each,)) for each in (self._sample, self._syphon)]
        for thread in threads:
            thread.start()
        self.over.wait(self.seconds)
        self.over.set()
        for thread in threads:
            thread.join()
        if self.failures:
            raise LabError(f"the week could not go on: {self.failures[0]}")
        for caller in self.callers:
            caller.send_go()
        for caller in self.callers:
            caller.wait_ready()

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.failures.append(error)
            self.over.set()

    def _lane(self, side: str) -> None:
        for number, ailment in enumerate(self.plan.ailments):
            if ailment.side != side:
                continue
            if self.over.wait(max(0.0, self.begun_s + ailment.at_s - time.monotonic())):
                return
            self.show(f"{ailment.at_s:6.1f} s: {ailment.what} of the {side}, for {ailment.lasts_s:g} s")
            self.history.write(ILL, n=number, side=side, what=ailment.what, paths=ailment.paths)
            self.stage.apply(ailment)
            time.sleep(ailment.lasts_s)
            self.history.write(MENDING, n=number)
            self.stage.mend(ailment)
            self.history.write(HEALED, n=number)

    def _syphon(self) -> None:
        """Run the syphon, which is killed and started again now and then; a start that meets an outage is tried
        again."""
        chance = random.Random(self.plan.seed)
        while not self.over.wait(chance.uniform(*SYPHON_LIVES_S)):
            self.show("the syphon is killed, and started again")
            self.clients["syphon"].end()
            self._start_syphon()

    def _start_syphon(self) -> None:
        while True:
            self.syphon_lives += 1
            syphon = self.clients["syphon"] = self._client("syphon", "syphon", "")
            syphon.spawn()
            try:
                syphon.wait_ready()
            except LabError:  # the secondary was away when it paired
                syphon.end()
                time.sleep(1.0)
            else:
                return

    def _sample(self) -> None:
        while not self.over.wait(SAMPLE_S):
            at_s = round(time.monotonic() - self.begun_s, 1)
            everybody: dict[str, Process] = {**self.clients, **self.stage.brokers}
            for name, process in everybody.items():
                if (pid := process.pid) is not None:
                    self.samples[name].append((at_s, count_sockets(pid), resident_kb(pid)))

    # -- the end --------------------------------------------------------------------------------------------------

    def _come_home(self) -> None:
        """Until no broker holds a message."""
        self.show("all is well again; everything comes home")
        until_s = time.monotonic() + HOME_S
        before, moved_s = -1, time.monotonic()
        while time.monotonic() < until_s:
            count = count_stored([self.stage.primary, self.stage.secondary])
            if count == 0:
                return
            if count != before:
                before, moved_s = count, time.monotonic()
            elif time.monotonic() - moved_s > STALLED_S:
                self.stage.end_locks()
                moved_s = time.monotonic()
            time.sleep(1.0)

    def _close(self) -> None:
        for client in self.clients.values():
            client.send_go()
        for client in self.clients.values():
            if (how := client.how_it_ended(END_S)) is not None:
                self.history.write(UNCLEAN, text=how)

    def _facts(self, found: WeekVerdict) -> dict[str, Any]:
        ailments = Counter(f"{each.side} {each.what}" for each in self.plan.ailments)
        return {
            "seed": self.plan.seed,
            "minutes": self.seconds / 60.0,
            "callers": CALLERS,
            "entities": ENTITIES,
            "ailments": dict(sorted(ailments.items())),
            "syphon_restarts": self.syphon_lives,
            **vars(found),
            "samples": {name: thinned(samples) for name, samples in self.samples.items()},
        }


def thinned(samples: list[Sample]) -> list[Sample]:
    step = max(1, -(-len(samples) // SAMPLES_MAX))
    return samples[::step]
