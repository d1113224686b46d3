"""`make spark-month`: its script, its judge, and the two days of it that continuous integration has time for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.test_runs import left_behind
from tools import spark_month_script as script
from tools.spark_month_judge import (
    CHECKPOINT_FILES,
    MEMORY_MAX,
    Arrival,
    Line,
    file_problems,
    memory_problems,
    order_problems,
)
from tools.spark_month_stage import STREAMS

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 1_200  # two or three minutes on a machine that does nothing else; sixteen were seen at a load of 16
MESSAGES_LEAST = 50  # of each stream

# -- the script -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [8, 30])
def test_a_month_has_every_kind_of_trouble_spread_over_its_days_and_is_the_same_for_the_same_seed(days: int) -> None:
    events = script.script_of(7, days)
    assert {event.what for event in events} == set(script.KINDS)
    assert {event.day for event in events} == set(range(1, days + 1))
    assert [event.day for event in events] == sorted(event.day for event in events)
    assert events == script.script_of(7, days) != script.script_of(8, days)


def test_outages_last_from_seconds_to_an_hour_and_one_is_longer_than_the_patience() -> None:
    events = script.script_of(1, 30)
    lasted = [event.passes_s for event in events if event.what == script.KILLED]
    assert max(lasted) == script.HOUR_S and min(lasted) < 60
    (long,) = [event for event in events if event.what == script.LONG]
    assert long.seconds > script.PATIENCE_S
    assert {event.side for event in events} == {script.PRIMARY, script.SECONDARY}
    assert all(event.seconds > script.LOCK_S for event in events if event.what == script.SLOW_BATCH)


# -- the judge --------------------------------------------------------------------------------------------------------


def line(*arrived: Arrival, is_once: bool = True, acknowledged: int = 3) -> Line:
    return Line("browse", is_once, 5, set(range(acknowledged)), list(arrived))


def arrivals(*numbers: int) -> list[Arrival]:
    return [Arrival(number, f"at {number}") for number in numbers]


def test_what_was_acknowledged_has_to_come_out_and_what_was_not_may() -> None:
    assert line(*arrivals(0, 1, 2)).problems() == []
    assert line(*arrivals(2, 0, 1, 4)).problems() == []
    assert line(*arrivals(0, 2)).problems() == ["browse: 1 acknowledged messages never came out, such as 1"]
    assert line(*arrivals(0, 1, 2, 5)).problems() == ["browse: 1 came out that were never sent, such as 5"]
    assert line(acknowledged=0).problems() == ["browse: nothing was acknowledged, so nothing was shown"]


def test_once_is_held_against_those_alone_who_promise_it_and_copies_have_to_be_told() -> None:
    twice = arrivals(0, 1, 2, 1)
    assert line(*twice).problems() == ["browse: 1 messages came out more than once, such as 1"]
    assert line(*twice, is_once=False).problems() == []
    assert line(*twice, is_once=False).counts()["copies"] == line(*twice).counts()["doubled"] == 1
    unlike = [*arrivals(0, 1, 2), Arrival(1, "at another place")]
    assert line(*unlike, is_once=False).problems() == ["browse: copies of 1 messages cannot be told, such as 1"]


def test_dead_letters_and_messages_that_stay_behind_are_problems() -> None:
    found = line(*arrivals(0, 1, 2))
    found.dead, found.left = 2, 1
    assert found.problems() == [
        "browse: 2 messages were dead-lettered",
        "browse: 1 messages are left in the entity",
    ]


def test_order_is_that_of_each_session_and_of_first_arrivals() -> None:
    def came(*numbers: int) -> list[Arrival]:
        return [Arrival(number, session="even" if number % 2 == 0 else "odd") for number in numbers]

    assert order_problems("sessions", came(1, 3, 0, 2, 5)) == []
    assert order_problems("sessions", came(0, 2, 0, 2, 4)) == []  # a batch that came again
    assert order_problems("sessions", came(0, 4, 2, 1, 3)) == ["sessions: session even: 1 out of order"]


def test_every_day_of_the_lake_ends_as_one_file_and_checkpoints_stay_small() -> None:
    assert file_problems({"day=1": 1, "day=2": 1}, {"browse": CHECKPOINT_FILES}) == []
    assert file_problems({"day=1": 2}, {"browse": CHECKPOINT_FILES + 1}) == [
        "the lake has 2 files of day=1",
        f"the checkpoint of browse has {CHECKPOINT_FILES + 1} files, where {CHECKPOINT_FILES} are enough",
    ]
    assert file_problems({}, {}, [9] * 30) == []
    grows = "the lake: 50 files beyond one a day in the second week, 130 in the last"
    assert file_problems({}, {}, [5 * day for day in range(30)]) == [grows]


def test_memory_is_flat_from_the_second_week_on_and_never_too_much() -> None:
    flat = [{"driver": 80 + day % 7} for day in range(30)]
    assert memory_problems(flat) == []
    assert memory_problems([{"driver": 100 + 8 * day} for day in range(30)]) == [
        "driver: 180 MB in the second week, 308 in the last"
    ]
    most = MEMORY_MAX["worker"]
    assert memory_problems([{"worker": most + 1}]) == [f"worker: {most + 1} MB, where {most} are enough"]
    assert memory_problems([{"worker": most}, {}]) == []


# -- two days of it ---------------------------------------------------------------------------------------------------


@pytest.mark.spark_processes
@pytest.mark.timeout(RUN_S_MAX + 60)
def test_a_stream_of_each_kind_comes_through_two_days_of_trouble_with_nothing_lost_and_nothing_doubled(
    tmp_path: Path,
) -> None:
    kept, out = tmp_path / "kept", tmp_path / "month.json"
    line = [sys.executable, str(ROOT / "tools" / "spark_month.py"), "--short", "--day-seconds", "4"]
    line += ["--out", str(out), "--keep", str(kept)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as month:
        try:
            said, _ = month.communicate(timeout=RUN_S_MAX)
        finally:
            month.terminate()  # if it was cut off: it takes along what it has started
    assert month.returncode == 0, said
    found = json.loads(out.read_text())
    assert found["problems"] == []

    # There was something to come through, and something that came through it.
    assert [event["what"] for event in found["events"]] == [event.what for event in script.short_script()]
    assert found["drivers"] == 2
    assert set(found["streams"]) == set(STREAMS)
    for stream in found["streams"].values():
        assert stream["acknowledged"] >= MESSAGES_LEAST
        assert (stream["lost"], stream["dead_lettered"], stream["left"]) == (0, 0, 0)
        assert stream.get("doubled", 0) == 0
    assert all(night["compacted_days"] for night in found["nights"][:2])
    assert set(found["files"]["checkpoints"]) == set(STREAMS)
    assert left_behind(kept) == []
    assert not kept.exists()
