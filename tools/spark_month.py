"""`make spark-month`: streams on Spark left alone for a month.

A stream of each kind (browse, receive, receive from sessions, sink, capture, syphon) runs in one driver while producers
send to all of them, and what tools/spark_month_script.py draws from the seed happens: outages from seconds to an hour,
throttling, a queue made anew, slow batches, killed workers, executors and drivers. Days pass by the brokers' movable
clocks; every night the lake is compacted. Ends with status 1 unless every acknowledged message came out of its stream,
once where once is promised, in order inside its session, and files and memory were bounded. Numbers are in `--out`; the
directory of a month that was not clean is kept.
"""

import argparse
import functools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

import pyarrow as arrow  # noqa: E402
import pyarrow.parquet as parquet  # noqa: E402

from spillway.client.faults import Fault, RemoteFaults  # noqa: E402
from tests.tools.commit import commit, machine  # noqa: E402
from tools import spark_month_script as script  # noqa: E402
from tools.spark_month_judge import Arrival, Line, file_problems, memory_problems  # noqa: E402
from tools.spark_month_script import Event  # noqa: E402
from tools.spark_month_stage import (  # noqa: E402
    BROKER_S,
    EMPTIED,
    ENDS,
    ENTITIES,
    PAIRING,
    STREAMS,
    Driver,
    Producers,
    Sampler,
    Stage,
    until,
)

START_S: Final = 600.0  # at most: a machine may be very busy
ONCE: Final = frozenset({"browse", "sink", "capture", "syphon"})  # of docs/spark.md and docs/pipeline.md
BUSY_PART: Final = 0.2
NIGHT_LOOK_S: Final = 0.5
LOCKS_END_S: Final = 15.0  # nothing moved for so long: what is left is in a lock of somebody who died

Say = Callable[[str], None]


@dataclass(frozen=True)
class Pace:
    """How quickly a month goes by, in real time."""

    day_s: float = 12.0  # at least
    trigger_s: float = 4.0  # six streams with a batch every two seconds are more than two cores can do
    pause_s: float = 0.5
    burst: int = 5
    # A stream that has brought nothing for so long is a problem. Six are started one after the other, on a machine
    # that may be very busy: Spark gives up on a Python process that has not begun after ten seconds.
    stands_still_s: float = 600.0


class Month:
    """One month, from two empty namespaces to the verdict."""

    def __init__(self, seed: int, days: int, events: Sequence[Event], pace: Pace, directory: Path, say: Say) -> None:
        self.seed = seed
        self.days = days
        self.events = events
        self.pace = pace
        self.directory = directory
        self.say = say
        self.chance = random.Random(seed)
        self.problems: list[str] = []
        self.happened: list[dict[str, Any]] = []
        self.nights: list[dict[str, Any]] = []
        self.began_s = time.monotonic()
        self.stage = Stage(directory, script.LOCK_S)
        self.producers = Producers(self.stage, pace.pause_s, pace.burst)
        self.driver = Driver(directory / "driver.log")
        self.sampler = Sampler(self.stage, self.driver)

    def run(self) -> dict[str, Any]:
        """The numbers; `problems` is empty if every promise held."""
        try:
            self.stage.start()
            self.producers.start()
            self._start_driver()
            self.sampler.start()
            self._see_that_all_go_on(0, {})
            for day in range(1, self.days + 1):
                self._day(day)
            self.producers.stop()
            self._drain()
            for _ in range(2):  # the last days are compacted, and what that replaced is deleted
                self._night(self.days)
            found = self._facts(self._lines())
            self.driver.stop(START_S)
            return found
        finally:
            self.sampler.stop()
            self.producers.stop()
            self.driver.end()
            for broker in self.stage.brokers.values():
                if broker.is_running:
                    broker.resume()
            self.stage.close()

    def _start_driver(self) -> None:
        spec = {
            "directory": str(self.directory),
            "primary": self.stage.primary.connection_string,
            "secondary": self.stage.secondary.connection_string,
            "pairing": PAIRING,
            "patience_s": script.PATIENCE_S,
            "trigger_s": self.pace.trigger_s,
            "ahead_s": (self.stage.clocks[script.PRIMARY].now() - datetime.now(UTC)).total_seconds(),
        }
        self.driver.start(spec, START_S)

    # -- days -------------------------------------------------------------------------------------------------------

    def _day(self, day: int) -> None:
        began_s = time.monotonic()
        for event in self.events:
            if event.day == day:
                self._play(event)
        before = self.driver.rows.copy()
        time.sleep(max(0.0, began_s + self.pace.day_s - time.monotonic()))
        self._see_that_all_go_on(day, before)
        self._night(day)

    def _see_that_all_go_on(self, day: int, before: "dict[str, int]") -> None:
        """Every stream has brought something since `before`: the last event of the day."""
        until_s = time.monotonic() + self.pace.stands_still_s
        while still := [name for name in STREAMS if self.driver.rows[name] <= before.get(name, 0)]:
            if time.monotonic() > until_s:
                self.problems.append(f"day {day}: {', '.join(still)} stood still for {self.pace.stands_still_s:g} s")
                return
            time.sleep(0.1)

    def _night(self, day: int) -> None:
        """The clocks go on to the next morning, and the lake is compacted; what everybody holds is written down."""
        now = self._sleep(day)
        try:
            done = self.driver.ask("compact", "compacted", START_S, now=now.isoformat())
        except RuntimeError as error:
            self.problems.append(f"night after day {day}: {error}")
            done = {}
        heap = self.driver.ask("heap", "heap", START_S)["mb"]
        night = {
            "day": day,
            "at_s": self._at_s(),
            "memory_mb": {**self.sampler.take(), "heap": heap},
            "lake_files": sum(self._lake().values()),
            "checkpoint_files": sum(self._checkpoints().values()),
            "compacted_days": done.get("days", 0),
        }
        self.nights.append(night)
        self.say(f"day {day} is over, it is {now:%Y-%m-%d %H:%M}: {json.dumps(night)}")

    def _sleep(self, day: int) -> datetime:
        """Nobody sends at night, and what was sent has been received before the clocks go on: a lock that is renewed
        all night would run out in a night that takes no time."""
        try:
            for stream in EMPTIED:
                self.producers.pause(stream)
            until(self._is_emptied, self.pace.stands_still_s, "everything of the day has come out", NIGHT_LOOK_S)
        except TimeoutError as error:
            self.problems.append(f"night after day {day}: {error}")
        finally:
            mornings = {side: clock.sleep_until_morning() for side, clock in self.stage.clocks.items()}
            for stream in EMPTIED:
                self.producers.resume(stream)
        return mornings[script.PRIMARY]

    def _is_emptied(self) -> bool:
        return all(self.stage.left(stream) == 0 for stream in EMPTIED)

    def _at_s(self) -> float:
        return round(time.monotonic() - self.began_s, 1)

    # -- what happens -----------------------------------------------------------------------------------------------

    def _play(self, event: Event) -> None:
        at_s = self._at_s()
        self.say(f"day {event.day}: {event.what} {event.side} {event.seconds:g} s, {event.passes_s:g} s by the clock")
        about: dict[str, Any] = {}
        try:
            about = PLAYS[event.what](self, event) or {}
        except (RuntimeError, TimeoutError) as error:  # the month goes on, and says so in the end
            self.problems.append(f"day {event.day}, {event.what}: {error}")
        self.happened.append({**asdict(event), "at_s": at_s, "took_s": round(self._at_s() - at_s, 1), **about})

    def _kill_broker(self, event: Event) -> None:
        broker = self.stage.brokers[event.side]
        broker.kill()
        time.sleep(event.seconds)
        broker.start(BROKER_S)
        if event.passes_s > event.seconds:
            self.stage.clocks[event.side].advance(event.passes_s - event.seconds)

    def _restart(self, event: Event) -> None:
        broker = self.stage.brokers[event.side]
        broker.stop()
        broker.start(BROKER_S)

    def _freeze(self, event: Event) -> None:
        broker = self.stage.brokers[event.side]
        broker.pause()
        time.sleep(event.seconds)
        broker.resume()

    def _throttle(self, event: Event) -> dict[str, Any]:
        """A part of everything that is asked of the primary."""
        faults = RemoteFaults(self.stage.primary.connection_string)
        busy = Fault("server-busy", probability=BUSY_PART, seed=self.chance.randrange(1 << 16))
        with faults.planted(busy) as planted:
            time.sleep(event.seconds)
            return {"refused": faults.get(planted.number).hit}

    def _make_anew(self, event: Event) -> dict[str, Any]:
        """Everything that was in it has been read: what is deleted before that no stream can have."""
        self.producers.pause("browse")
        acknowledged = self.producers.of["browse"].acknowledged
        patience_s = self.pace.stands_still_s
        try:
            until(lambda: acknowledged <= self._numbers("browse"), patience_s, "the browsed queue is read to its end")
            self.stage.clocks[event.side].advance(60)
            self.stage.make_anew(ENTITIES["browse"])
        finally:
            self.producers.resume("browse")
        return {"deleted": len(acknowledged)}

    def _slow_batch(self, event: Event) -> dict[str, Any]:
        said = self.driver.ask("slow", "was-slow", self.pace.stands_still_s + event.seconds, seconds=event.seconds)
        if said["lost"]:
            self.problems.append(f"day {event.day}: a batch of {event.seconds:g} s lost its locks")
        return {"lost": said["lost"]}

    def _kill_child(self, event: Event) -> dict[str, Any]:
        """A worker or the keeper; there may be none at this moment, for a while."""
        pids: list[int] = []

        def has_any() -> bool:
            pids[:] = self.driver.roles()[event.what]
            return bool(pids)

        until(has_any, self.pace.stands_still_s, f"there is a {event.what}")
        self.driver.kill(self.chance.choice(pids))
        return {"of": len(pids)}

    def _kill_driver(self, event: Event) -> None:
        self.driver.kill(self.driver.pid if event.what == script.DRIVER else self.driver.java)
        self.driver.clear_away()
        self._start_driver()

    # -- the end ----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Until all that was acknowledged has come out, or nothing moves any more."""
        self.say("nothing more is sent; everything comes out")
        until_s = time.monotonic() + self.pace.stands_still_s
        before, moved_s = -1, time.monotonic()
        while time.monotonic() < until_s:
            missing = self._missing()
            if missing == 0:
                return
            if missing != before:
                before, moved_s = missing, time.monotonic()
            elif time.monotonic() - moved_s > LOCKS_END_S:
                for clock in self.stage.clocks.values():
                    clock.advance(60)
                moved_s = time.monotonic()
            time.sleep(1.0)
        self.problems.append(f"{before} messages had not come out after {self.pace.stands_still_s:g} s")

    def _missing(self) -> int:
        left = sum(self.stage.left(stream) for stream in EMPTIED)
        return left + sum(
            len(self.producers.of[stream].acknowledged - self._numbers(stream)) for stream in ("browse", "sink")
        )

    def _numbers(self, stream: str) -> set[int]:
        try:
            return {arrival.number for arrival in self._arrived(stream)}
        except (OSError, arrow.ArrowInvalid):
            return set()  # a batch is being replaced

    def _arrived(self, stream: str) -> list[Arrival]:
        if stream in ENDS:
            bodies = self.stage.peek(self.stage.primary, ENDS[stream])
            return [Arrival(int(body)) for body in bodies]
        if stream == "capture":
            to = self.directory / "view.json"
            self.driver.ask("view", "viewed", START_S, to=str(to))
            return [Arrival(number) for number in json.loads(to.read_text())]
        return [arrival for path in self._tables(stream) for arrival in rows_of(path)]

    def _tables(self, stream: str) -> list[Path]:
        """Files that the stream has written, those of a batch that is done, in their order."""
        return sorted(each for mark in (self.directory / stream).glob("*/_SUCCESS") for each in files_of(mark.parent))

    def _lines(self) -> list[Line]:
        lines = []
        for stream, producer in self.producers.of.items():
            line = Line(stream, stream in ONCE, producer.sent, producer.acknowledged, self._arrived(stream))
            line.dead = self.stage.dead(stream)
            line.left = self.stage.left(stream) if stream in EMPTIED else 0
            lines.append(line)
        return lines

    def _lake(self) -> dict[str, int]:
        return {day.name: len(list(day.rglob("*.parquet"))) for day in (self.directory / "lake").glob("day=*")}

    def _checkpoints(self) -> dict[str, int]:
        places = (self.directory / "checkpoints").iterdir()
        return {place.name: sum(1 for each in place.rglob("*") if each.is_file()) for place in places}

    def _facts(self, lines: Sequence[Line]) -> dict[str, Any]:
        lake, checkpoints = self._lake(), self._checkpoints()
        memory = [night["memory_mb"] for night in self.nights]
        problems = [*self.problems, *(problem for line in lines for problem in line.problems())]
        pieces = [night["lake_files"] - night["day"] for night in self.nights]
        problems += file_problems(lake, checkpoints, pieces) + memory_problems(memory)
        return {
            "seed": self.seed,
            "days": self.days,
            "took_s": self._at_s(),
            "load": round(os.getloadavg()[0], 1),
            "streams": {line.name: {**line.counts(), **self._about(line.name)} for line in lines},
            "drivers": self.driver.lives,
            "warnings": dict(self.driver.warnings.most_common(20)),
            "files": {"lake": lake, "checkpoints": checkpoints},
            "problems": problems,
            "events": self.happened,
            "nights": self.nights,
        }

    def _about(self, stream: str) -> dict[str, Any]:
        deaths = self.driver.deaths.get(stream)
        refusals = dict(self.producers.of[stream].refusals)
        return {"refused_sends": refusals, "started_again": dict(deaths.most_common(5)) if deaths else {}}


PLAYS: Final[dict[str, Callable[[Month, Event], dict[str, Any] | None]]] = {
    script.KILLED: Month._kill_broker,
    script.LONG: Month._kill_broker,
    script.FROZEN: Month._freeze,
    script.RESTARTED: Month._restart,
    script.THROTTLED: Month._throttle,
    script.REMADE: Month._make_anew,
    script.SLOW_BATCH: Month._slow_batch,
    script.WORKER: Month._kill_child,
    script.KEEPER: Month._kill_child,
    script.DRIVER: Month._kill_driver,
    script.EXECUTOR: Month._kill_driver,
}


def files_of(directory: Path) -> list[Path]:
    return list(directory.glob("part-*.parquet"))


@functools.lru_cache(maxsize=4_096)
def rows_of(path: Path) -> list[Arrival]:
    """The rows of a file, in its order; copies of a message have the same place and time. No name is used twice."""
    table = parquet.ParquetFile(path).read()
    numbers, places = table["body"].to_pylist(), table["sequence_number"].to_pylist()
    times = table["enqueued_time"].cast(arrow.int64()).to_pylist()
    sessions = table["session_id"].to_pylist() if "session_id" in table.column_names else [None] * len(numbers)
    rows = zip(numbers, places, times, sessions, strict=True)
    return [Arrival(int(number), f"{place} {at}", session or "") for number, place, at, session in rows]


def write(path: Path, facts: dict[str, Any]) -> None:
    """Readable: an event and a night a line."""
    lists = {name: facts.pop(name) for name in ("events", "nights")}
    text = json.dumps(facts, indent=2)[:-2]
    for name, rows in lists.items():
        lines = ",\n    ".join(json.dumps(row) for row in rows)
        text += f',\n  "{name}": [\n    {lines}\n  ]'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n}\n")


def say(text: str) -> None:
    print(f"spark-month: {datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--day-seconds", type=float, default=Pace.day_s, help="of real time, at least")
    parser.add_argument(
        "--short", action="store_true", help="two days with every kind of trouble that two minutes have room for"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "spark-month.json")
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "spark-month", help="if it was not clean")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and nothing that it has started stays behind
    shutil.rmtree(chosen.keep, ignore_errors=True)
    chosen.keep.mkdir(parents=True)
    events = script.short_script() if chosen.short else script.script_of(chosen.seed, chosen.days)
    days = max(event.day for event in events) if chosen.short else chosen.days
    found = Month(chosen.seed, days, events, Pace(chosen.day_seconds), chosen.keep, say).run()
    about = {"machine": machine(), "commit": commit(), "ended": datetime.now(UTC).isoformat(timespec="seconds")}
    write(chosen.out, {**about, **found})
    say(json.dumps(found["streams"]))
    for problem in found["problems"]:
        say(f"NOT clean: {problem}")
    say(f"{len(found['problems'])} problems in {days} days; written to {chosen.out}")
    if found["problems"]:
        return 1
    shutil.rmtree(chosen.keep, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
