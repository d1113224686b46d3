"""Outages out of events: plain rules, also over events that are missing, late, twice, or of clocks that are apart."""

from collections.abc import Iterable

from spillway.spark.outages.entity_outages import (
    BACK,
    ENDED,
    MISSING,
    OPEN,
    VANISHED,
    BacklogDepth,
    Happening,
    OutageReading,
    Story,
)

BASE_US = 1_800_000_000_000_000
S = 1_000_000


def at(
    at_s: float, event: str, process: str = "a", count: int = 1, *, before: str = "", answered: bool | None = None,
    error: str = "", clock_s: float | None = None, number: int | None = None, closed: bool = False,
) -> Happening:  # fmt: skip
    at_us = int(at_s * S)
    clock_us = at_us if clock_s is None else int(clock_s * S)
    which = at_us * 10 + len(event) if number is None else number
    return Happening(BASE_US + at_us, process, which, event, count, clock_us, before, answered, error, closed)


def outage_of(process: str = "a", start_s: float = 0.0) -> list[Happening]:
    """Suspected, 10 s later away, 30 s later back; four pings, the last one answered; 100 messages around."""
    return [
        at(start_s, "suspected", process, before="healthy", error="OSError: no route"),
        at(start_s + 10, "failed-over", process, before="suspect", error="OSError: no route"),
        at(start_s + 10.5, "pinged", process, answered=False),
        at(start_s + 11, "diverted", process, 60),
        at(start_s + 20.5, "pinged", process, answered=False),
        at(start_s + 21, "diverted", process, 40),
        at(start_s + 30.5, "pinged", process, answered=False),
        at(start_s + 40, "pinged", process, answered=True),
        at(start_s + 40, "recovered", process, before="failed over"),
    ]


def read(*events: Iterable[Happening], until_s: float | None = None) -> Story:
    reading = OutageReading()
    happened = sorted((each for some in events for each in some), key=lambda each: (each.at_us, each.number))
    for each in happened:
        reading.add(each)
    until_us = happened[-1].at_us if until_s is None else BASE_US + int(until_s * S)
    return reading.finish(until_us)


# -- one process ------------------------------------------------------------------------------------------------------


def test_an_outage_has_its_times_pings_and_messages() -> None:
    story = read(outage_of(), [at(50, "syphoned", "home", 70), at(52, "syphoned", "home", 30)])
    (outage,) = story.outages
    assert (outage.began_us, outage.failed_over_us, outage.ended_us) == (BASE_US, BASE_US + 10 * S, BASE_US + 40 * S)
    assert (outage.end, outage.length_s, outage.to_fail_over_s, outage.to_return_s) == (BACK, 40.0, 10.0, 9.5)
    assert (outage.pings, outage.pings_answered, outage.diverted, outage.syphoned) == (4, 1, 100, 100)
    assert (outage.backlog_max, outage.emptied_us, outage.to_empty_s) == (100, BASE_US + 52 * S, 12.0)
    assert (outage.cause, outage.remarks, story.remarks) == ("OSError: no route", [], [])
    assert (story.away_s, story.diverted, story.syphoned, story.waiting) == (30.0, 100, 100, 0)
    assert story.absences[0].away_s == 30.0


def test_an_interval_of_zero_takes_no_time_to_fail_over() -> None:
    story = read([at(0, "failed-over", before="healthy"), at(5, "recovered", before="failed over")])
    assert [(each.to_fail_over_s, each.to_return_s) for each in story.outages] == [(0.0, 5.0)]


def test_a_suspicion_that_passes_is_no_outage() -> None:
    story = read([at(0, "suspected", before="healthy"), at(3, "recovered", before="suspect")])
    assert (story.outages, story.suspicions, story.away_s) == ([], 1, 0.0)


def test_two_outages_of_one_process_are_two() -> None:
    story = read(outage_of(), [at(60, "syphoned", "home", 100)], outage_of(start_s=500))
    assert [(each.number, each.diverted, each.syphoned) for each in story.outages] == [(1, 100, 100), (2, 100, 0)]
    assert story.waiting == 100
    assert [each.to_empty_s for each in story.outages] == [20.0, None]


def test_an_entity_that_refuses_for_good_is_marked_and_may_still_come_back() -> None:
    story = read(
        [
            at(0, "failed-over", before="healthy"),
            at(1, "entity-failed", before="failed over"),
            at(2, "failed-over", before="failed"),
            at(9, "recovered", before="failed over"),
        ]
    )
    (outage,) = story.outages
    assert (outage.is_refused, outage.end, outage.failed_over_us) == (True, BACK, BASE_US)


def test_messages_that_are_told_of_after_the_return_belong_to_the_outage() -> None:
    story = read(outage_of(), [at(40.5, "diverted", count=5)])
    assert story.outages[0].diverted == 105


def test_the_backlog_is_told_second_by_second_where_it_changes() -> None:
    reading = OutageReading()
    for each in [
        at(10.1, "diverted", count=3),
        at(10.2, "diverted", count=4),
        at(10.9, "syphoned", "b", 5),
        at(90.0, "syphoned", "b", 2),
    ]:
        reading.add(each)
    assert reading.drain_depths() == [BacklogDepth(BASE_US + 10 * S, 7, 5, 2, 7)]
    reading.finish(BASE_US + 90 * S)
    assert reading.drain_depths() == [BacklogDepth(BASE_US + 90 * S, 0, 2, 0, 0)]


def test_nothing_is_no_outage() -> None:
    story = OutageReading().finish(BASE_US)
    assert (story.outages, story.absences, story.remarks) == ([], [], [])


# -- several processes ------------------------------------------------------------------------------------------------


def test_what_two_processes_saw_of_one_outage_is_one() -> None:
    story = read(outage_of("a"), outage_of("b", 5))
    (outage,) = story.outages
    assert (outage.processes, outage.processes_back, outage.diverted, outage.pings) == (2, 2, 200, 8)
    assert (outage.began_us, outage.ended_us) == (BASE_US, BASE_US + 45 * S)
    assert (outage.to_fail_over_s, outage.to_return_s) == (10.0, 9.5)  # each by its own clock, the slowest
    assert len(story.absences) == 2


def test_clocks_that_are_apart_do_not_change_how_long_a_process_took() -> None:
    late = [
        Happening(each.at_us + 7 * S, "b", each.number, each.event, each.count, each.clock_us, each.before,
                  each.is_answered, each.error)
        for each in outage_of("a")
    ]  # fmt: skip
    story = read(outage_of("a"), late)
    assert len(story.outages) == 1
    assert {each.to_fail_over_s for each in story.absences} == {10.0}
    assert {each.away_s for each in story.absences} == {30.0}


def test_a_wall_clock_that_was_set_in_an_outage_does_not_change_how_long_it_took() -> None:
    story = read(
        [
            at(0, "suspected", before="healthy", clock_s=100),
            at(3610, "failed-over", before="suspect", clock_s=110),
            at(3640, "recovered", before="failed over", clock_s=140),
        ]
    )
    assert (story.absences[0].to_fail_over_s, story.absences[0].away_s) == (10.0, 30.0)


def test_messages_that_come_home_before_they_went_show_clocks_that_are_apart() -> None:
    story = read([at(0, "failed-over", before="healthy"), at(1, "syphoned", "home", 5), at(3, "diverted", count=5)])
    assert story.waiting == 0
    assert story.remarks == [
        "for 2.0 s more had come home than was diverted: the clocks of two machines are apart",
    ]


# -- what is missing --------------------------------------------------------------------------------------------------


def test_a_failover_whose_suspicion_is_missing_has_no_time_to_fail_over() -> None:
    (outage,) = read(outage_of()[1:]).outages
    assert (outage.to_fail_over_s, outage.remarks) == (None, ["when it was first suspected is missing"])


def test_a_return_whose_beginning_is_missing_is_an_outage_of_unknown_length() -> None:
    (outage,) = read(outage_of()[-1:]).outages
    assert (outage.end, outage.length_s, outage.to_return_s) == (BACK, 0.0, None)
    assert outage.remarks == ["its beginning is missing"]


def test_a_failover_that_is_missing_between_suspicion_and_return_is_said() -> None:
    events = outage_of()
    (outage,) = read([events[0], events[-1]]).outages
    assert (outage.began_us, outage.length_s, outage.to_fail_over_s) == (BASE_US, 40.0, None)
    assert outage.remarks == ["when it failed over is missing"]


def test_a_return_that_is_missing_ends_with_the_last_that_was_heard() -> None:
    story = read(outage_of()[:-1], outage_of(start_s=2000))
    first, second = story.outages
    assert (first.end, first.ended_us, first.to_return_s) == (MISSING, BASE_US + 40 * S, None)
    assert first.remarks == ["its end is missing: the same process began another one"]
    assert second.end == BACK


def test_a_suspicion_that_passed_after_a_return_that_is_missing_is_told_apart() -> None:
    story = read(outage_of()[:-1], [at(2000, "recovered", before="suspect")])
    assert ([each.end for each in story.outages], story.suspicions) == ([MISSING], 1)


def test_diverted_messages_without_any_failover_are_counted_and_remarked() -> None:
    story = read([at(0, "diverted", count=5), at(1, "diverted", count=5)])
    assert (story.outages, story.diverted, story.waiting) == ([], 10, 10)
    assert story.remarks == ["messages were diverted by a process whose failover is missing (2 times)"]


def test_more_that_came_home_than_went_is_remarked() -> None:
    story = read([at(0, "syphoned", count=5)])
    assert (story.waiting, story.syphoned) == (0, 5)
    assert "5 messages came home that no event says were diverted" in story.remarks[0]


def test_lines_that_are_there_twice_count_once() -> None:
    (outage,) = read(outage_of(), outage_of()).outages
    assert (outage.pings, outage.diverted, outage.processes) == (4, 100, 1)


# -- processes that end -----------------------------------------------------------------------------------------------


def test_a_process_that_is_away_and_still_pings_is_still_away() -> None:
    (outage,) = read(outage_of()[:-2], until_s=100).outages
    assert (outage.end, outage.length_s, outage.processes_back) == (OPEN, 100.0, 0)


def test_a_process_that_is_silent_for_too_long_has_vanished() -> None:
    (outage,) = read(outage_of()[:-2], until_s=1000).outages
    assert (outage.end, outage.length_s) == (VANISHED, 30.5)
    assert outage.remarks == ["1 of 1 processes ended before they returned"]


def test_a_process_that_pings_seldom_is_waited_for() -> None:
    pings = [at(each, "pinged", answered=False) for each in (1, 1801)]
    (outage,) = read([at(0, "failed-over", before="healthy")], pings, until_s=3700).outages
    assert outage.end == OPEN


def test_a_process_that_is_restarted_in_an_outage_goes_on_with_it() -> None:
    before = [at(0, "failed-over", "old", before="healthy", closed=True), at(9, "diverted", "old", 3, closed=True)]
    (outage,) = read(before, outage_of("new", 60)).outages
    assert (outage.began_us, outage.ended_us, outage.end) == (BASE_US, BASE_US + 100 * S, BACK)
    assert (outage.processes, outage.processes_back, outage.diverted) == (2, 1, 103)
    assert outage.remarks == ["1 of 2 processes ended before they returned"]


def test_a_process_that_ended_away_and_another_outage_much_later_are_two() -> None:
    before = [at(0, "failed-over", "old", before="healthy", closed=True)]
    assert [each.end for each in read(before, outage_of("new", 7200)).outages] == [ENDED, BACK]
