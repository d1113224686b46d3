"""Plans of random plays: drawn from a seed, written, edited, read again."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spillway.cli.app import make_app
from spillway.lab.field.content import BAD, GOOD, KINDS, ODD, digest_of_sent, make_message
from spillway.lab.field.draw import HEALED_S, plan_of
from spillway.lab.field.plan import PRIMARY, SECONDARY, PlanError, plan_problem, read_plan

MANY = range(1, 301)


def test_the_same_seed_is_the_same_plan_and_another_is_another() -> None:
    assert plan_of(7) == plan_of(7)
    assert plan_of(7) != plan_of(8)


def test_every_plan_can_be_played_written_and_read_again(tmp_path: Path) -> None:
    for seed in MANY:
        plan = plan_of(seed)
        assert plan_problem(plan) is None
        (tmp_path / "plan.json").write_text(plan.to_text())
        assert read_plan(tmp_path / "plan.json") == plan


def test_what_is_drawn_has_everything_and_ends_in_time() -> None:
    plans = [plan_of(seed) for seed in MANY]
    settings = {(each.front, each.interval_s, each.pending) for plan in plans for each in plan.programs}
    assert len(settings) == 8, "both fronts, both intervals, both ways to wait"
    assert {send.kind for plan in plans for send in plan.sends} == {GOOD, *BAD, *ODD} == set(KINDS)
    ailments = [ailment for plan in plans for ailment in plan.ailments]
    assert {each.what for each in ailments if each.side == PRIMARY} >= {"kill", "freeze", "fill", "delete", "busy"}
    assert {each.what for each in ailments if each.side == SECONDARY} >= {"kill", "freeze", "cut", "refuse"}
    assert max(each.at_s + each.lasts_s for each in ailments) <= HEALED_S


def test_a_line_taken_out_by_hand_is_a_smaller_plan(tmp_path: Path) -> None:
    text = plan_of(3).to_text()
    lines = text.splitlines()
    at = next(index for index, line in enumerate(lines) if '"at_s"' in line and '"kind"' in line)
    (tmp_path / "plan.json").write_text("\n".join(lines[:at] + lines[at + 1 :]))
    assert len(read_plan(tmp_path / "plan.json").sends) == len(plan_of(3).sends) - 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": 2}, "format 2 is not 1"),
        ({"programs": []}, "one of them is not in the plan"),
        ({"ailments": [{"at_s": 1.0, "lasts_s": 1.0, "side": "primary", "what": "cough", "paths": ["*"]}]}, "cough"),
        ({"sends": 7}, "is no plan"),
    ],
)
def test_what_cannot_be_played_says_why(tmp_path: Path, change: dict[str, object], text: str) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(json.loads(plan_of(1).to_text()) | change))
    with pytest.raises(PlanError, match=text):
        read_plan(tmp_path / "plan.json")


def test_ailments_of_one_side_do_not_overlap(tmp_path: Path) -> None:
    plain = json.loads(plan_of(1).to_text())
    one = {"at_s": 1.0, "lasts_s": 3.0, "side": "primary", "what": "kill", "paths": ["*"]}
    (tmp_path / "plan.json").write_text(json.dumps(plain | {"ailments": [one, one | {"at_s": 2.0}]}))
    with pytest.raises(PlanError, match="overlap"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_digest_of_a_message_is_of_its_content(kind: str) -> None:
    one, other = make_message(kind, "one", "s"), make_message(kind, "other", "s")
    assert digest_of_sent(one) == digest_of_sent(make_message(kind, "one", "s"))
    if digest_of_sent(one) is not None:
        assert digest_of_sent(one) != digest_of_sent(other)


def test_the_command_prints_a_plan_and_starts_nothing() -> None:
    done = CliRunner().invoke(make_app(), ["lab", "--scenario", "random", "--seed", "3", "--show-plan"])
    assert done.exit_code == 0
    assert done.output == plan_of(3).to_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--scenario", "kill", "--seed", "3"], "--seed 3: only with --scenario random"),
        (["--scenario", "kill", "--show-plan"], "--show-plan: only with --scenario random"),
        (["--scenario", "random", "--plan", "none.json"], "--plan none.json is no plan"),
        (["--scenario", "random", "--seed", "1", "--plan", "none.json"], "leave out --seed"),
        (["--scenario", "random", "--seed", "1", "--library", "nowhere"], "--library nowhere: has no spillway/paired"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(make_app(), ["lab", *arguments])
    assert done.exit_code != 0
    assert text in " ".join((done.output + str(done.exception)).split())
