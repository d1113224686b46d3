"""What was sent of dead letters: written down before, and after, so that a run that died does not send twice.

A file is written before messages are sent (they have *begun*) and one with what became of them (they are *sent*, or
were not taken). Between the two nobody but the destination knows. The files are numbered and never written anew: a run
that finds the next number taken has not read what another has done since, and stops.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from spillway.spark.platform.job_directory import JobDirectory, JobDirectoryError
from spillway.spark.triage.planned import Key

DIRECTORY: Final = "journal"
BEGUN: Final = "begun"
SENT: Final = "sent"
FREE: Final = "free"  # not taken, for certain: it may be sent again
SNAPSHOT: Final = "snapshot"
FILES_MAX: Final = 500  # then all that is known goes into one


class JournalEntry(NamedTuple):
    """`at_ms`: when a message was first under way, so that it cannot have arrived before."""

    state: str
    at_ms: int


class TriageJournal:
    """All that is known; without a directory only as long as the process lives."""

    def __init__(self, directory: JobDirectory | None) -> None:
        self._directory = directory
        self.entries: dict[Key, JournalEntry] = {}
        self._names: list[str] = []
        self._number = 0
        if directory is not None:
            self._read(directory)

    def begin(self, keys: Sequence[Key], at_ms: int) -> None:
        """They are about to be sent. Of those that have begun before the first time counts."""
        new = [key for key in keys if self.state(key) != BEGUN]
        if new:
            self._write({BEGUN: _plain(new), "at_ms": at_ms})
            self.entries.update(dict.fromkeys(new, JournalEntry(BEGUN, at_ms)))

    def end(self, sent: Sequence[Key], free: Sequence[Key]) -> None:
        """The destination has these, and has not taken those."""
        if not sent and not free:
            return
        self._write({SENT: _plain(sent), FREE: _plain(free)})
        self._note(SENT, sent)
        self._remove(free)

    def state(self, key: Key) -> str:
        entry = self.entries.get(key)
        return FREE if entry is None else entry.state

    def remove(self, keys: Iterable[Key]) -> None:
        """They are dead letters no more. Written down with the next snapshot: nobody asks for them again."""
        self._remove(keys)

    def compact(self) -> None:
        """One file instead of many."""
        if self._directory is None or not self._names:
            return
        old = self._names
        self._names = []
        self._write({SNAPSHOT: [[*key, *entry] for key, entry in self.entries.items()]}, is_last=True)
        assert len(self._names) == 1, "all that is known is in one file"
        for name in old:
            self._directory.remove(f"{DIRECTORY}/{name}")

    # -- files ------------------------------------------------------------------------------------------------------

    def _read(self, directory: JobDirectory) -> None:
        self._names = _journals(directory)
        for name in self._names:
            text = directory.read(f"{DIRECTORY}/{name}")
            try:
                self._apply(json.loads(text or ""))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise JobDirectoryError(f"checkpoint {directory.path}: {DIRECTORY}/{name} cannot be read") from None
            self._number = int(name.partition(".")[0])

    def _apply(self, plain: dict[str, Any]) -> None:
        if SNAPSHOT in plain:
            self.entries = {Key(*line[:3]): JournalEntry(*line[3:]) for line in plain[SNAPSHOT]}
        elif BEGUN in plain:
            self.entries.update((Key(*each), JournalEntry(BEGUN, plain["at_ms"])) for each in plain[BEGUN])
        else:
            self._note(SENT, [Key(*each) for each in plain[SENT]])
            self._remove(Key(*each) for each in plain[FREE])

    def _note(self, state: str, keys: Iterable[Key]) -> None:
        for key in keys:
            before = self.entries.get(key)
            self.entries[key] = JournalEntry(state, 0 if before is None else before.at_ms)

    def _remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.entries.pop(key, None)

    def _write(self, plain: dict[str, Any], is_last: bool = False) -> None:
        if self._directory is None:
            return
        if len(self._names) >= FILES_MAX and not is_last:
            self.compact()
        self._number += 1
        name = f"{self._number:09d}.json"
        path = f"{DIRECTORY}/{name}"
        is_new = self._directory.create(path, json.dumps(plain) + "\n")
        if is_new and _journals(self._directory)[-1] > name:  # the others have put earlier ones together since
            self._directory.remove(path)
            is_new = False
        if not is_new:
            raise JobDirectoryError(f"checkpoint {self._directory.path}: another run is at work there")
        assert name not in self._names, "a file is written once"
        self._names.append(name)


def _journals(directory: JobDirectory) -> list[str]:
    return [name for name in directory.names(DIRECTORY) if name.endswith(".json") and name[0].isdigit()]


def _plain(keys: Sequence[Key]) -> list[list[Any]]:
    return [list(key) for key in keys]
