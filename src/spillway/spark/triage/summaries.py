"""What was found, or done: summaries of the three commands, for programs and for people."""

from dataclasses import dataclass, field
from typing import Any, Final

from spillway.model.texts import count_text

REASONS_SHOWN: Final = 20
SAMPLES: Final = 10


@dataclass
class ShowSummary:
    """Groups of dead letters, the largest first; `groups_count` also has those that are not among them."""

    namespace: str
    at: str
    by: list[str]
    where: str = ""
    entities: list[str] = field(default_factory=list)  # that were looked into
    messages: int = 0
    oldest: str = ""
    newest: str = ""
    groups_count: int = 0
    groups: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by reason, entity, age
    seconds: float = 0.0


@dataclass
class MoveSummary:
    """What became of chosen dead letters. `lines` has one for each entity."""

    chosen: int = 0
    more: int = 0  # beyond what one run takes
    is_dry: bool = False
    done: int = 0  # sent, or deleted, and gone from the dead letters
    done_before: int = 0  # by an earlier run of the same plan
    gone: int = 0  # somebody else took them meanwhile
    left: int = 0  # in somebody's lock, or behind too many others
    kept: list[dict[str, Any]] = field(default_factory=list)  # not taken: reason, messages, an example
    lines: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def add_kept(self, entity: str, number: int, reason: str) -> None:
        line = next((each for each in self.kept if (each["entity"], each["reason"]) == (entity, reason)), None)
        if line is None:
            line = {"entity": entity, "reason": reason, "messages": 0, "example": number}
            self.kept.append(line)
        line["messages"] += 1


@dataclass
class ResubmitSummary(MoveSummary):
    is_resumed: bool = False  # with the plan of a run that did not end
    is_ended: bool = True  # False: run it once more
    unsure: int = 0  # of those that were kept: perhaps sent by a run that died
    samples: list[dict[str, Any]] = field(default_factory=list)  # of a dry run


@dataclass
class PurgeSummary(MoveSummary):
    is_confirmed: bool = True


def resubmit_text(summary: ResubmitSummary) -> str:
    if summary.is_dry:
        return "\n".join([f"{count_text(summary.chosen, 'dead letter')} would be sent:", *_dry_lines(summary)])
    told = f"{count_text(summary.done + summary.done_before, 'dead letter')} sent again in {summary.seconds:.1f} s"
    if summary.done_before:
        told += f", {summary.done_before:,} of them by a run before"
    lines = [
        f"  {line['done']:,} of {line['messages']:,} of {line['entity']} to {line['to']}" for line in summary.lines
    ]
    if not summary.is_ended:
        lines.append("  not all is done: run it again, and it goes on")
    return "\n".join([told, *lines, *_rest(summary)])


def _dry_lines(summary: ResubmitSummary) -> list[str]:
    lines = []
    for line in summary.lines:
        ids = "with new ids" if line["new_ids"] else "with the ids they had"
        once = {True: "drops duplicates", False: "does not drop duplicates", None: "may or may not drop duplicates"}
        lines.append(
            f"  {line['messages']:,} of {line['entity']} to {line['to']}, {ids} ({line['to']} {once[line['detects']]})"
        )
    for sample in summary.samples:
        changes = ", ".join(f"{name} = {value!r}" for name, value in sample["set"].items())
        lines.append(f"  {sample['entity']} {sample['sequence_number']}: {changes or 'nothing is changed'}")
    return [*lines, *_rest(summary)]


def purge_text(summary: PurgeSummary) -> str:
    lines = [f"  {line['messages']:,} of {line['entity']}" for line in summary.lines]
    if summary.is_dry or not summary.is_confirmed:
        told = f"{count_text(summary.chosen, 'dead letter')} would be deleted:"
        if not summary.is_confirmed and not summary.is_dry:
            told = f"{count_text(summary.chosen, 'dead letter')} would be deleted. Nothing was: say --yes to delete"
        return "\n".join([told, *lines, *_rest(summary)])
    told = f"{count_text(summary.done, 'dead letter')} deleted in {summary.seconds:.1f} s"
    lines = [f"  {line['done']:,} of {line['messages']:,} of {line['entity']}" for line in summary.lines]
    return "\n".join([told, *lines, *_rest(summary)])


def _rest(summary: MoveSummary) -> list[str]:
    lines = []
    if summary.more:
        lines.append(f"  {summary.more:,} more were chosen than a run takes: run it again")
    if summary.gone:
        lines.append(f"  {summary.gone:,} were not there any more: somebody else has received them")
    if summary.left:
        lines.append(f"  {summary.left:,} are left: in somebody's lock, or not reached")
    for line in summary.kept[:REASONS_SHOWN]:
        lines.append(f"  {line['messages']:,} of {line['entity']} stay, as {line['example']}: {line['reason']}")
    if len(summary.kept) > REASONS_SHOWN:
        lines.append(f"  and {len(summary.kept) - REASONS_SHOWN:,} more reasons")
    return lines
