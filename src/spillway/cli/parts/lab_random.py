"""`spillway lab --scenario random`: a play drawn from a seed, or one that was edited by hand."""

import json
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from spillway.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from spillway.lab.field.plan import PlayPlan

RANDOM: Final = "random"
SEED_MAX: Final = 1_000_000


@dataclass(frozen=True)
class PlayOptions:
    """The options that only a random play has."""

    seed: int | None
    plan: Path | None
    is_shown: bool
    library: Path | None


def refuse_options(chosen: PlayOptions) -> None:
    """Refuse options that are for every other scenario."""
    given = {"--seed": chosen.seed, "--plan": chosen.plan, "--library": chosen.library}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} {value}: only with --scenario {RANDOM}")
    if chosen.is_shown:
        raise UsageError(f"--show-plan: only with --scenario {RANDOM}")


def play_random(chosen: PlayOptions, keep: Path | None, as_json: bool) -> None:
    plan = plan_for(chosen)
    if chosen.is_shown:
        sys.stdout.write(plan.to_text())
        return
    if chosen.library is not None and not (chosen.library / "spillway" / "paired").is_dir():
        raise UsageError(f"--library {chosen.library}: has no spillway/paired; name the source directory of a tree")
    found = play(plan, chosen.library, keep)
    if as_json:
        print(json.dumps(found), flush=True)
    else:
        sys.stdout.write("\n".join(words_of(found)) + "\n")
    if keep is not None:
        sys.stderr.write(f"Plan, histories, logs and data are kept in {keep}\n")
    if found["problems"]:
        raise typer.Exit(1)


def plan_for(chosen: PlayOptions) -> "PlayPlan":
    from spillway.lab.field.draw import plan_of
    from spillway.lab.field.plan import PlanError, read_plan

    if chosen.plan is not None and chosen.seed is not None:
        raise UsageError(f"--plan {chosen.plan}: a plan is played as it is; leave out --seed")
    if chosen.plan is None:
        return plan_of(random.randrange(SEED_MAX) if chosen.seed is None else chosen.seed)
    try:
        return read_plan(chosen.plan)
    except PlanError as error:
        raise UsageError(f"--plan {error}") from error


def play(plan: "PlayPlan", library: Path | None, keep: Path | None) -> dict[str, Any]:
    from spillway.client.control import ControlError
    from spillway.client.errors import ClientError
    from spillway.lab.field.play import Play
    from spillway.lab.guard import Guard
    from spillway.lab.processes import LabError

    root = keep or Path(tempfile.mkdtemp(prefix="spillway-lab-"))
    with Guard() as guard:
        if keep is None:
            guard.watch_directory(root)
        root.mkdir(parents=True, exist_ok=True)
        try:
            source = None if library is None else library.absolute()
            return Play(plan, root, guard, lambda line: print(line, file=sys.stderr, flush=True), source).run()
        except (LabError, ControlError, ClientError, OSError) as error:
            raise CommandError(f"the lab itself failed, which says nothing about any message: {error}") from error


def words_of(found: dict[str, Any]) -> list[str]:
    """The verdict, for people."""
    counts = f"{found['calls']} calls, {found['refused']} of them refused; {found['messages']} messages"
    more = (
        f"{found['acknowledged']} acknowledged, {found['delivered']} of these delivered, {found['diverted']} diverted"
    )
    lines = [f"seed {found['seed']}: {', '.join(found['ailments']) or 'nothing went wrong'}", f"{counts}, {more}"]
    lines += [f"BROKEN, {each['invariant']}: {each['text']}" for each in found["problems"]]
    return lines if found["problems"] else [*lines, "Every invariant held."]
