"""How `tools/suites/javascript.py` reads what mocha's reporter wrote, and counts it."""

import json

from tools.suites.javascript import Outcome, SpecFile, need_of, read_results, summary
from tools.suites.javascript_samples import Sample, problem_of


def lines(*said: tuple[str, str] | tuple[str, str, str]) -> list[str]:
    return [
        json.dumps({"outcome": each[0], "title": each[1], "error": each[2] if len(each) == 3 else None})
        for each in said
    ]


def test_the_last_word_on_a_test_counts_and_one_that_only_began_has_failed() -> None:
    read = read_results(
        lines(
            ("begun", "a"),
            ("passed", "a"),
            ("begun", "b"),
            ("failed", "b", "why"),
            ("skipped", "c"),
            ("begun", "d"),
        )
    )
    assert [(test.title, test.outcome, test.error) for test in read] == [
        ("a", "passed", None),
        ("b", "failed", "why"),
        ("c", "skipped", None),
        ("d", "failed", "has not ended"),
    ]


def test_tests_with_one_title_are_told_apart() -> None:
    read = read_results(lines(("begun", "a"), ("passed", "a"), ("begun", "a"), ("failed", "a", "why")))
    assert [(test.title, test.outcome) for test in read] == [("a", "passed"), ("a (2)", "failed")]


def test_a_hook_that_fails_is_a_failure_of_its_own() -> None:
    read = read_results(lines(("begun", "a"), ("passed", "a"), ("failed", 'a "after all" hook', "why")))
    assert [test.outcome for test in read] == ["passed", "failed"]


def test_what_needs_premium_or_entra_is_counted_apart() -> None:
    titles = {
        "with TokenCredentials PartitionedQueue: sends a message to the ServiceBus entity": "Entra",
        "with TokenCredentials throws error for invalid tokenCredentials": None,
        "Token credential - DefaultAzureCredential from `@azure/identity`": "Entra",
        'Premium namespaces - Sending "after all" hook': "Premium",
        "Schedule single message": None,
    }
    assert {title: need_of(title) for title in titles} == titles
    files = [
        SpecFile("public/b.spec.js", tests=[Outcome(title, "failed") for title in titles]),
        SpecFile("internal/unit/a.spec.js", tests=[Outcome("x", "passed"), Outcome("y", "skipped")]),
    ]
    told = summary(7, files, True, 0)
    assert (told["tests"], told["counted"], told["passed"], told["skipped"]) == (7, 3, 1, 1)
    assert (told["live_counted"], told["live_passed"], told["needs"]) == (2, 0, {"Entra": 2, "Premium": 1})
    assert list(told["files"]) == ["internal/unit/a.spec.js", "public/b.spec.js"]
    assert told["failed"] == [
        "public/b.spec.js: with TokenCredentials throws error for invalid tokenCredentials",
        "public/b.spec.js: Schedule single message",
    ]


def test_a_sample_is_good_if_it_ended_well_without_an_error_and_got_to_its_end() -> None:
    sample = Sample("Done.")
    assert problem_of(sample, 0, "Sending\nDone.\n") is None
    assert problem_of(sample, 1, "Sending\nDone.\n") == "ended with 1: Done."
    assert problem_of(sample, None, "Sending\n") == "has not ended after 180 s"
    assert problem_of(sample, 0, "Sending\n") == "did not say 'Done.'"
    assert problem_of(sample, 0, "X - Error occurred:  no\nDone.\n") == "X - Error occurred:  no"
