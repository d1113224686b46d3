"""The verdict: every lie is found in a history that has exactly this one, and honest histories are believed."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from spillway.lab.histories import BEGINS, COMPLETED, DELIVERED, FAIL, INFO, MENDED, OK, SEND, SUFFIX
from tests.lab.lines import (
    Line,
    completion,
    delivery,
    event,
    fault,
    judged,
    ledger,
    left,
    outage,
    send,
    unclean,
    whole,
)

FOUR = [line for number in range(4) for line in whole(f"producer0-{number}", number + 1, 1.0 + number)]


def problem(lines: list[Line], **expected: int | bool) -> str:
    (only,) = judged(lines, **expected).problems
    return only


def test_an_honest_history_is_believed_and_counted() -> None:
    found = judged(FOUR + outage(), diverted_min=2, duplicated_max=0, failed_max=0)
    assert found.problems == []
    assert (found.sent, found.acknowledged, found.delivered, found.lost, found.duplicated) == (4, 4, 4, 0, 0)
    assert (found.diverted, found.syphoned, found.pings, found.out_of_order) == (2, 2, 2, 0)
    assert (found.failover_s, found.return_s) == (2.0, 0.5)
    assert found.operations == {"send": 6, "receive": 6, "settle": 6, "ping": 2}


# -- each problem by itself -------------------------------------------------------------------------------------------


def test_an_acknowledged_message_that_is_nowhere_is_lost() -> None:
    lines = [*FOUR, send("producer0-4")]
    assert problem(lines) == "1 acknowledged messages are nowhere, such as producer0-4"
    assert (judged(lines).lost, judged(lines).false_acknowledgements) == (1, 1)


def test_a_message_that_nobody_acknowledged_may_be_nowhere() -> None:
    found = judged([*FOUR, send("producer0-4", res=INFO)], messages=4)
    assert (found.problems, found.lost, found.failed_attempts) == ([], 0, 1)


def test_a_message_that_nobody_sent_came_from_nowhere() -> None:
    lines = [*FOUR, delivery("a stranger: application/vnd.ms-servicebus-ping", 9)]
    assert "1 messages came from nowhere, such as a stranger: application/vnd.ms-servicebus-ping" in problem(lines)


def test_a_stored_copy_that_is_handed_out_after_it_was_completed_came_back() -> None:
    lines = [*FOUR, delivery("producer0-2", 3, at_s=6.0)]
    assert problem(lines) == "1 messages came back after they were completed, such as producer0-2"


def test_a_delivery_that_was_locked_before_the_completion_and_read_later_did_not_come_back() -> None:
    assert judged([*FOUR, delivery("producer0-2", 3, at_s=6.0, locked_s=3.0)]).problems == []


def test_a_completion_whose_outcome_is_unknown_proves_nothing() -> None:
    lines = [send("producer0-0"), delivery("producer0-0", 1), completion("producer0-0", 1, res=INFO)]
    assert judged([*lines, delivery("producer0-0", 1, at_s=6.0)]).problems == []


def test_a_message_that_changed_on_its_way_is_seen() -> None:
    lines = [send("producer0-0"), delivery("producer0-0", 1, digest="other")]
    assert problem(lines) == "1 messages were not delivered as they were sent, such as producer0-0"
    assert judged(lines).false_acknowledgements == 1


def test_a_message_that_was_said_to_be_unsent_must_not_be_delivered() -> None:
    lines = [send("producer0-0", res=FAIL), send("producer0-0", 1.5, attempt=1), delivery("producer0-0", 1)]
    assert "1 messages were delivered although the sender got the answer that they were not sent" in problem(lines)
    assert judged(lines).false_acknowledgements == 1
    lines[-1] = delivery("producer0-0", 1, attempt=1)
    assert (judged(lines).problems, judged(lines).false_acknowledgements) == ([], 0)


def test_a_message_that_stays_in_the_backlog_is_not_lost_but_did_not_come_home() -> None:
    lines = [*FOUR, send("producer0-4"), left("producer0-4", "secondary/x/0")]
    assert problem(lines) == "1 messages did not come home, such as producer0-4 in secondary/x/0"
    assert judged(lines).lost == 0


def test_messages_that_are_not_acknowledged_at_the_end_are_missing() -> None:
    assert problem(FOUR, messages=5) == "4 of 5 messages were acknowledged at the end"


def test_too_few_and_too_many_diverted_messages_are_seen() -> None:
    few = problem(FOUR + outage(), diverted_min=3)
    assert few == "only 2 messages diverted; at least 3 were to be: send more of them, or slower"
    assert problem(FOUR + outage(), diverted_max=0) == "2 messages were diverted; at most 0 were to be"


def test_what_the_secondary_took_counts_also_if_the_library_tells_of_no_diverted_message() -> None:
    lines = [*FOUR, ledger("secondary", send=3)]
    said = "the secondary took 3 messages; 0 are said to be diverted, and at most 0 were to be"
    assert problem(lines, diverted_max=0) == said
    assert judged([*FOUR, ledger("secondary", receive=3)], diverted_max=0).problems == []


def test_a_client_that_did_not_end_as_it_should_is_a_problem_of_the_run() -> None:
    how = "producer1 did not end within 20 s: it wrote nothing"
    assert problem([*FOUR, unclean(how)]) == how


def test_what_the_library_says_about_diverted_messages_is_compared_with_the_secondarys_ledger() -> None:
    lines = [line if line.get("namespace") != "secondary" else ledger("secondary", send=1) for line in outage()]
    assert problem(FOUR + lines) == "2 messages said to be diverted; the secondary took 1"


def test_two_stored_copies_are_a_duplicate_and_a_redelivery_is_none() -> None:
    lines = [send("producer0-0"), delivery("producer0-0", 1), delivery("producer0-0", 1, 3.0)]
    assert judged(lines, duplicated_max=0).problems == []
    lines.append(delivery("producer0-0", 2))
    assert judged(lines).duplicated == 1
    assert problem(lines, duplicated_max=0) == "1 message delivered twice; at most 0 were to be"


def test_an_error_that_a_held_caller_hears_is_seen() -> None:
    lines = [*FOUR, send("producer0-0", 0.5, INFO, attempt=7)]
    assert problem(lines, failed_max=0) == "callers heard 1 errors; at most 0 were to be"


def test_a_producer_that_stays_away_did_not_return() -> None:
    lines = [*FOUR, *outage(), event("failed-over", 8.7)]
    assert problem(lines) == "producer0 did not return to the primary"
    assert judged(lines).return_s is None


# -- times and order --------------------------------------------------------------------------------------------------


def test_the_slowest_producer_counts() -> None:
    second_one = [
        event("failed-over", 5.0, "producer1"),
        event("diverted", 6.5, "producer1"),
        event("recovered", 9.5, "producer1"),
        ledger("secondary", send=1),
    ]
    found = judged(FOUR + outage() + second_one)
    assert (found.failover_s, found.return_s) == (3.5, 1.5)


def test_who_was_back_before_the_fault_was_known_to_be_mended_returned_in_no_time() -> None:
    lines = [fault(BEGINS, 3.0), event("failed-over", 4.0), event("recovered", 7.0), fault(MENDED, 8.0)]
    assert judged(FOUR + lines).return_s == 0.0


def test_without_failover_there_are_no_times() -> None:
    lines = [fault(BEGINS, 3.0), event("suspected", 3.5), event("recovered", 4.0), fault(MENDED, 8.0)]
    found = judged(FOUR + lines)
    assert (found.failover_s, found.return_s) == (None, None)


def test_out_of_order_is_what_is_stored_behind_a_later_one_of_the_same_producer() -> None:
    order = ["producer0-1", "producer1-0", "producer0-0", "producer0-3", "producer0-2", "producer0-3"]
    lines = [send(identity, 0.5) for identity in set(order)]
    lines += [delivery(identity, number, 9.0 - number) for number, identity in enumerate(order)]
    assert judged(lines).out_of_order == 2


# -- many -------------------------------------------------------------------------------------------------------------


def honest(chance: random.Random) -> list[Line]:
    """A toy broker that loses nothing: unknown sends that arrive or not, redeliveries, copies, another order."""
    lines: list[Line] = []
    number = 0
    for at in range(chance.randrange(1, 60)):
        identity = f"producer{at % 2}-{at // 2}"
        at_s = 1.0 + at / 10
        attempts = chance.choice((1, 1, 1, 2, 3))
        stored = []
        for attempt in range(attempts):
            is_last = attempt == attempts - 1
            res = OK if is_last else chance.choice((FAIL, INFO))
            lines.append(send(identity, at_s + attempt / 100, res, attempt, f"{identity}/{attempt}"))
            if is_last or (res == INFO and chance.random() < 0.5):
                number += 1
                stored.append((attempt, number))
        for attempt, sequence_number in stored:
            first_s = at_s + chance.random() * 5
            for again in range(chance.choice((1, 1, 2))):
                digest = f"{identity}/{attempt}"
                lines.append(delivery(identity, sequence_number, first_s + again, attempt, digest))
            lines.append(completion(identity, sequence_number, first_s + 1.5))
    chance.shuffle(lines)
    return lines


@pytest.mark.parametrize("seed", range(200))
def test_honest_histories_of_any_shape_are_believed(seed: int) -> None:
    lines = honest(random.Random(seed))
    found = judged(lines)
    assert found.problems == []
    assert found.delivered == found.acknowledged == found.sent


@pytest.mark.parametrize("seed", range(50))
def test_any_one_loss_in_them_is_found(seed: int) -> None:
    chance = random.Random(seed)
    lines = honest(chance)
    gone = chance.choice([line["id"] for line in lines if line["op"] == SEND])
    found = judged([line for line in lines if line["op"] not in (DELIVERED, COMPLETED) or line["id"] != gone])
    assert found.lost == 1
    assert found.problems == [f"1 acknowledged messages are nowhere, such as {gone}"]


# -- the process ------------------------------------------------------------------------------------------------------


def write(directory: Path, lines: list[Line]) -> None:
    for process in {line["p"] for line in lines}:
        text = "".join(json.dumps(line) + "\n" for line in lines if line["p"] == process)
        (directory / (process + SUFFIX)).write_text(text)


def run_verdict(directory: Path, messages: int) -> "subprocess.CompletedProcess[str]":
    (directory / "run.json").write_text(json.dumps({"scenario": "kill", "messages": messages}))
    return subprocess.run(
        [sys.executable, "-m", "spillway.lab.verdict", str(directory)], capture_output=True, text=True, check=False
    )


def test_the_process_reads_the_files_says_one_line_and_ends_with_0_or_1(tmp_path: Path) -> None:
    write(tmp_path, FOUR)
    done = run_verdict(tmp_path, 4)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["acknowledged"] == 4
    done = run_verdict(tmp_path, 5)
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"] == ["4 of 5 messages were acknowledged at the end"]


def test_the_verdict_has_the_keys_that_programs_read_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, FOUR)
    keys = list(json.loads(run_verdict(tmp_path, 4).stdout))
    assert keys == [
        "scenario", "sent", "acknowledged", "diverted", "syphoned", "delivered", "duplicated", "lost", "out_of_order",
        "failover_s", "return_s", "pings", "operations", "failed_attempts", "false_acknowledgements", "problems",
    ]  # fmt: skip


def test_a_line_that_a_killed_process_did_not_finish_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, FOUR)
    with (tmp_path / f"producer0{SUFFIX}").open("a") as file:
        file.write('{"t":1,"p":"producer0","op":"send","id":"producer0-')
    assert run_verdict(tmp_path, 4).returncode == 0
