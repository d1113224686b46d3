"""`running.json` of a data directory: where its namespaces were last served, for commands that look for the broker."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from spillway.server.files import READABLE, write_whole
from spillway.store.own_files import read_own

RUNNING_FILE: Final = "running.json"


@dataclass(frozen=True)
class Running:
    """How a broker serves a data directory. No secrets."""

    host: str
    is_clear_text: bool
    is_development: bool
    ports: dict[str, int]  # by namespace


def write_running(data: Path, running: Running) -> None:
    write_whole(data / RUNNING_FILE, json.dumps(asdict(running)).encode() + b"\n", READABLE)


def read_running(data: Path) -> Running:
    """`OSError` if it cannot be read, `NotOurFile` among them; `ValueError` if it is something else."""
    facts = json.loads(read_own(data / RUNNING_FILE))
    try:
        ports = {str(name): int(port) for name, port in facts["ports"].items()}
        return Running(str(facts["host"]), bool(facts["is_clear_text"]), bool(facts["is_development"]), ports)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{RUNNING_FILE} is none that a broker wrote") from error
