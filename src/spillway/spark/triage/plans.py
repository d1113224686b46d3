"""What a resubmission is to do, written down before it does anything: a run that was killed goes on with it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spillway.spark.platform.job_directory import JobDirectory, JobDirectoryError
from spillway.spark.triage.planned import Planned, planned_of

DIRECTORY: Final = "plan"
READY: Final = f"{DIRECTORY}/ready.json"
MESSAGES_OF_FILE: Final = 5_000


@dataclass
class TriagePlan:
    """Chosen dead letters by entity. `new_ids`: of each destination whether messages get ids of their own."""

    by_entity: dict[str, list[Planned]] = field(default_factory=dict)
    new_ids: dict[str, bool] = field(default_factory=dict)
    more: int = 0  # chosen, but more than are taken at a time
    is_resumed: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.by_entity.values()))


def write_plan(directory: JobDirectory, plan: TriagePlan) -> None:
    """Nothing is there until all of it is."""
    remove_plan(directory)
    index = 0
    for entity, planned in plan.by_entity.items():
        for at in range(0, len(planned), MESSAGES_OF_FILE):
            part = [each.to_plain() for each in planned[at : at + MESSAGES_OF_FILE]]
            directory.write(f"{DIRECTORY}/{index:06d}.json", json.dumps({"entity": entity, "messages": part}) + "\n")
            index += 1
    directory.write(READY, json.dumps({"files": index, "new_ids": plan.new_ids, "more": plan.more}) + "\n")


def read_plan(directory: JobDirectory) -> TriagePlan | None:
    """None if there is none, or it was not written to its end: then nothing was done."""
    ready = _read(directory, READY)
    if ready is None:
        return None
    plan = TriagePlan(new_ids=ready["new_ids"], more=ready["more"], is_resumed=True)
    for index in range(ready["files"]):
        part = _read(directory, f"{DIRECTORY}/{index:06d}.json")
        if part is None:
            raise JobDirectoryError(f"checkpoint {directory.path}: {DIRECTORY}/{index:06d}.json is missing")
        entity = part["entity"]
        plan.by_entity.setdefault(entity, []).extend(planned_of(entity, each) for each in part["messages"])
    return plan


def remove_plan(directory: JobDirectory) -> None:
    """It is done, or is to be written."""
    directory.remove(READY)
    directory.remove_tree(DIRECTORY)


def _read(directory: JobDirectory, name: str) -> dict[str, Any] | None:
    text = directory.read(name)
    if text is None:
        return None
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise JobDirectoryError(f"checkpoint {directory.path}: {name} cannot be read")


def by_entity(planned: Sequence[tuple[str, Planned]]) -> dict[str, list[Planned]]:
    found: dict[str, list[Planned]] = {}
    for entity, each in planned:
        found.setdefault(entity, []).append(each)
    return found
