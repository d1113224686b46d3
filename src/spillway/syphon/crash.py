"""Places in the mover and the jobs where a test can make its process die as if it were killed.

`SPILLWAY_CRASH_AT` names the place: `received` (messages are locked, nothing is sent), `sent` (the primary has them,
and the backlog still has them too) or `completed` (the backlog has let go of them). Those of a compaction are
`staged` (a day is written anew, beside the lake), `placed` (it lies in the lake, and no manifest names it), `published`
(the manifest is there), `deleting` (before each replaced file) and `cleaned` (before manifests of earlier versions).
Dead letters that are sent again have `begun` (it is written down what will be sent) and `noted` (what was sent, too)
before and after `sent`, where only the destination knows of it.

With `SPILLWAY_CRASH_ONCE`, the path of a file that does not exist, only the first process that gets there dies, and
leaves the file behind. `SPILLWAY_CRASH_AFTER` is how often a process passes the place first, 0 if it
is not given.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NoReturn

RECEIVED: Final = "received"
SENT: Final = "sent"
COMPLETED: Final = "completed"
PLACES: Final = (RECEIVED, SENT, COMPLETED)
STAGED: Final = "staged"
PLACED: Final = "placed"
PUBLISHED: Final = "published"
DELETING: Final = "deleting"
CLEANED: Final = "cleaned"
COMPACTION_PLACES: Final = (STAGED, PLACED, PUBLISHED, DELETING, CLEANED)
BEGUN: Final = "begun"
NOTED: Final = "noted"
RESUBMISSION_PLACES: Final = (RECEIVED, BEGUN, SENT, NOTED, COMPLETED)

AT: Final = "SPILLWAY_CRASH_AT"
ONCE: Final = "SPILLWAY_CRASH_ONCE"
AFTER: Final = "SPILLWAY_CRASH_AFTER"

_passed: dict[str, int] = {}


def crash_at(place: str) -> None:
    """Die here, by `kill -9`, if that is what the environment asks for. Nothing is flushed, closed or said."""
    wanted = os.environ.get(AT)
    if wanted is None or wanted != place:
        return
    once = os.environ.get(ONCE)
    if once and os.path.exists(once):
        return
    count = _passed[place] = _passed.get(place, 0) + 1
    if count <= int(os.environ.get(AFTER, "0")):
        return
    if once:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return  # another process was first
    _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


@contextmanager
def variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of the driver, in a worker, for one task: it serves others after it."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
