"""The verdict on a random play: each invariant, broken in a history made by hand, is found."""

from typing import Any

import pytest

from spillway.lab.field.draw import ENTITIES
from spillway.lab.field.judge import PlayJudge, PlayVerdict
from spillway.lab.field.plan import PlayPlan, Program
from spillway.lab.histories import NS

PLAN = PlayPlan(
    seed=0,
    backlog_queues=1,
    cool_down_s=60.0,
    closing="well",
    entities=ENTITIES,
    programs=(Program("asyncio", "asyncio", 0.0, "raise", 10.0, 2), Program("sync", "sync", 2.0, "hold", 10.0, 2)),
    ailments=(),
    sends=(),
)
Line = dict[str, Any]


def line(op: str, at_s: float, process: str = "asyncio", **fields: Any) -> Line:
    return {"op": op, "t": int(at_s * NS), "p": process, **fields}


def call(identity: str, begin_s: float, end_s: float, error: str = "", **fields: Any) -> Line:
    said = {"res": "info", "error": error, "text": "no"} if error else {"res": "ok"}
    usual: dict[str, Any] = {
        "t0": int(begin_s * NS),
        "ids": [identity],
        "h": ["same"],
        "path": "plain",
        "kind": "good",
        "how": "one",
    }
    return line("call", end_s, **(usual | {"group": identity} | said | fields))


def stored(identity: str, number: int = 1, path: str = "plain", digest: str = "same") -> Line:
    return line("stored", 99, "lab", id=identity, h=digest, seq=number, path=path)


def ill(number: int, side: str, what: str, begin_s: float, end_s: float, *paths: str) -> list[Line]:
    return [
        line("ill", begin_s, "lab", n=number, side=side, what=what, paths=list(paths or ("*",))),
        line("mending", end_s, "lab", n=number),
        line("healed", end_s, "lab", n=number),
    ]


def event(name: str, at_s: float, path: str = "plain") -> Line:
    return line("event", at_s, name=name, path=path, count=1, error="", before="")


def judged(*lines: Line) -> PlayVerdict:
    judge = PlayJudge(PLAN)
    judge.accept(lines)
    return judge.judge()


def broken(*lines: Line) -> list[str]:
    return [problem.invariant for problem in judged(*lines).problems]


def test_what_was_told_safe_is_there_once_and_unchanged() -> None:
    assert broken(call("a", 1, 2), stored("a")) == []
    assert broken(call("a", 1, 2)) == ["told safe, delivered"]
    found = judged(call("a", 1, 2), line("left", 99, "lab", id="a", q="field/x-servicebus-transfer/0"))
    assert "is still in field/x-servicebus-transfer/0" in found.problems[0].text
    assert broken(call("a", 1, 2), stored("a", digest="other")) == ["content unchanged"]
    assert broken(call("a", 1, 2), stored("a", 1), stored("a", 2)) == ["exactly once"]
    loose = call("a", 1, 2, path="loose")
    assert broken(loose, stored("a", 1, "loose"), stored("a", 2, "loose")) == [], "nobody detects duplicates there"


def test_who_was_told_that_nothing_was_sent_was_told_the_truth() -> None:
    away = ill(0, "primary", "kill", 0, 9) + ill(1, "secondary", "kill", 0, 9)
    unsent = call("a", 1, 2, "BacklogUnavailableError", res="fail")
    assert broken(unsent, *away) == []
    assert broken(unsent, stored("a"), *away) == ["told not sent, not delivered"]


def test_a_good_message_that_somebody_could_take_is_not_refused() -> None:
    assert broken(call("a", 1, 2, "BacklogUnavailableError")) == ["a way for every good message"]
    away = ill(0, "primary", "kill", 0, 9)
    assert broken(call("a", 1, 2, "BacklogUnavailableError"), *away) == ["a way for every good message"]
    assert broken(call("a", 1, 2, "ServiceBusServerBusyError"), *ill(0, "primary", "busy", 0, 9)) == []


def test_nothing_follows_from_a_machine_that_had_no_time() -> None:
    refused = call("a", 1, 9, "BacklogUnavailableError")
    assert broken(refused, *(line("pulse", at_s, "lab", slowdown=1.2) for at_s in range(10))) != []
    starved = judged(refused, *(line("pulse", at_s, "lab", slowdown=6.0) for at_s in range(10)))
    assert (starved.problems, starved.starved_share) == ([], 1.0)
    assert broken(call("a", 1, 9), *(line("pulse", at_s, "lab", slowdown=6.0) for at_s in range(10))) != []


def test_an_odd_message_may_be_refused_for_what_it_is() -> None:
    assert broken(call("a", 1, 2, "ValueError", kind="decimal")) == []
    assert broken(call("a", 1, 2, "BacklogUnavailableError", kind="decimal")) == ["a way for every good message"]


def test_a_bad_message_is_its_callers_error() -> None:
    bare = line("bare", 0, kind="no-session", path="grouped", error="ServiceBusError")
    bad = {"kind": "no-session", "path": "grouped"}
    assert broken(bare, call("a", 1, 2, "ServiceBusError", **bad)) == []
    assert broken(bare, call("a", 1, 2, **bad)) == ["a bad message is its caller's error"]
    assert broken(bare, call("a", 1, 2, "BacklogUnavailableError", **bad)) == ["a bad message is its caller's error"]
    away = ill(0, "primary", "kill", 0, 9)
    unsent = call("a", 1, 9, "BacklogUnavailableError", **bad)
    assert broken(bare, unsent, *away) == ["a bad message is its caller's error"]
    assert broken(bare, unsent, *away, *(line("pulse", at_s, "lab", slowdown=6.0) for at_s in range(10))) == []
    assert broken(bare, call("a", 1, 2, **bad), *away) == [], "the primary alone knows that it is bad"
    long = {"kind": "long-id", "path": "plain"}
    said = line("bare", 0, kind="long-id", path="plain", error="ServiceBusError")
    assert broken(said, call("a", 1, 2, **long), stored("a"), *away) == ["a bad message is its caller's error"]


def test_nothing_is_failed_over_or_out_of_rotation_without_a_reason() -> None:
    sent = (call("a", 1, 5), stored("a"))
    assert broken(*sent, event("failed-over", 2)) == ["failed over for a reason"]
    assert broken(*sent, event("failed-over", 2), *ill(0, "primary", "kill", 0, 3)) == []
    restarted = ill(0, "primary", "kill", -5, -1)
    assert broken(*sent, event("failed-over", 2), *restarted) == ["failed over for a reason"]
    busy = ill(0, "primary", "busy", 0, 3)
    assert broken(*sent, event("failed-over", 2), *busy) == ["failed over for a reason"]
    removed = event("backlog-queue-removed", 2, "field/x-servicebus-transfer/0")
    assert broken(*sent, removed) == ["out of rotation for a reason"]
    assert broken(*sent, removed, *ill(0, "secondary", "kill", 0, 3)) == []


def test_an_entity_that_is_still_ill_is_not_back() -> None:
    full = ill(0, "primary", "fill", 0, 20, "small")
    assert broken(event("recovered", 10, "small"), *full) == ["back when it is back"]
    assert broken(event("recovered", 21, "small"), *full) == []


def test_one_after_the_other_stays_so_inside_one_route() -> None:
    calls = [call("a", 1, 2, how="sequence", group="g"), call("b", 3, 4, how="sequence", group="g")]
    assert broken(*calls, stored("a", 1), stored("b", 2)) == []
    assert broken(*calls, stored("a", 2), stored("b", 1)) == ["order inside one route"]
    away = [event("failed-over", 2), *ill(0, "primary", "kill", 0, 3)]
    assert broken(*calls, stored("a", 2), stored("b", 1), *away) == []


@pytest.mark.parametrize(("what", "count"), [("sockets", 500), ("tasks", 500), ("rss_kb", 300_000)])
def test_what_grows_is_found(what: str, count: int) -> None:
    few: dict[str, Any] = {"sockets": 2, "tasks": 1, "rss_kb": 80_000}
    begin = line("vitals", 0, when="begin", **few)
    assert broken(begin, line("vitals", 9, when="end", **few)) == []
    assert broken(begin, line("vitals", 9, when="end", **(few | {what: count}))) == ["no growth"]


def test_sockets_that_outlive_their_factory_and_a_slow_close_are_found() -> None:
    few: dict[str, Any] = {"sockets": 2, "tasks": 1, "rss_kb": 80_000}
    begin, end = line("vitals", 0, when="begin", **few), line("vitals", 9, when="end", **few)
    assert broken(begin, end, line("vitals", 9, when="after close", **(few | {"sockets": 12}))) == ["no growth"]
    assert broken(line("closed", 9, what="primary", took_s=4.9)) == []
    assert broken(line("closed", 9, what="primary", took_s=7.0)) == ["closes within five seconds"]


def test_a_process_that_hung_is_found() -> None:
    assert broken(line("unclean", 9, "lab", text="sync did not end within 20 s")) == ["ends in peace"]
