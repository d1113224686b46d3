"""Days of a lake that were compacted: which files hold them, which files those replace, and what readers are to read.

    OUT/day=2026-11-16/batch=00000001-1f0c9a3e/entity=orders/part-….parquet    the rows of the day, each once, sorted
    OUT/_spillway/compacted/2026-11-16.00000001.json                           its manifest: from now on it is these
    OUT/_spillway/compacted/2026-11-16.00000001-1f0c9a3e.replaced.json         files that these replace

A manifest is written once and never changed. The one with the highest version counts, and a version belongs to whoever
makes its file first: of two compactions side by side one ends without effect. Files that it does not name are late
messages, or what a compaction left that was killed; their day is read with copies dropped, as a day that was never
compacted. So nothing is wrong at any moment: a manifest only says where dropping copies can be left out.

Files that were replaced stay for a grace time, for readers that have listed them. The list of them is written before
the manifest and deleted after them: without a list there are none, or they are read, with copies dropped.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.spark.platform.job_directory import FoundFile, JobDirectoryError
from spillway.spark.source.lake import BATCH, DAY, OURS, Lake
from spillway.syphon.crash import CLEANED, DELETING, crash_at

if TYPE_CHECKING:
    from collections.abc import Iterable

MANIFESTS: Final = f"{OURS}/compacted"
REPLACED: Final = "replaced.json"
READERS: Final = 8  # of manifests and directories: a store answers in tens of milliseconds, and a year has many
TRIES_MAX: Final = 5  # a manifest may be superseded, and deleted, between the listing and the reading


@dataclass(frozen=True)
class Manifest:
    """One version of a compacted day: which directory has its rows. Small, because readers read that of every day."""

    day: str
    version: int
    batch: str
    published: str
    messages: int

    @property
    def name(self) -> str:
        return f"{MANIFESTS}/{self.day}.{self.version:08d}.json"

    @property
    def replaced_name(self) -> str:
        return f"{MANIFESTS}/{self.day}.{self.batch}.{REPLACED}"

    @property
    def place(self) -> str:
        """The directory of its rows, from the directory of the lake."""
        return f"{DAY}={self.day}/{BATCH}={self.batch}"

    def is_older_than(self, grace_s: float, now: datetime) -> bool:
        return now - datetime.fromisoformat(self.published) >= timedelta(seconds=grace_s)


class Snapshot(NamedTuple):
    """What to read of a lake: paths with each message once, and paths that may hold copies."""

    plain: list[str]
    others: list[str]


def manifests_of(lake: Lake) -> dict[str, Manifest]:
    """The manifest that counts, of each compacted day."""
    for _ in range(TRIES_MAX):
        latest: dict[str, int] = {}
        for day, version in _versions(lake):
            latest[day] = max(version, latest.get(day, 0))
        with ThreadPoolExecutor(READERS) as readers:
            found = dict(zip(latest, readers.map(lambda each: _read(lake, *each), latest.items()), strict=True))
        whole = {day: manifest for day, manifest in found.items() if manifest is not None}
        if len(whole) == len(found):
            return whole
    raise JobDirectoryError(f"{lake.path}/{MANIFESTS} changes while it is read")


def _versions(lake: Lake) -> "Iterable[tuple[str, int]]":
    for name in lake.directory.names(MANIFESTS):
        day, _, rest = name.partition(".")
        digits, _, end = rest.partition(".")
        if end == "json" and digits.isdigit():
            yield day, int(digits)


def _read(lake: Lake, day: str, version: int) -> Manifest | None:
    name = f"{MANIFESTS}/{day}.{version:08d}.json"
    text = lake.directory.read(name)
    if text is None:
        return None
    try:
        return Manifest(**json.loads(text))
    except (ValueError, TypeError):
        raise JobDirectoryError(f"{lake.path}/{name} cannot be read") from None


def publish(lake: Lake, manifest: Manifest, replaced: "Iterable[str]") -> bool:
    """From now on the day is what the manifest says; False if another compaction was first.

    `replaced` are files, from the directory of the lake, whose rows the manifest's directory has.
    """
    # The name may be free again: an earlier version's manifest is deleted in the end.
    if any(day == manifest.day and version >= manifest.version for day, version in _versions(lake)):
        return False
    lake.directory.write(manifest.replaced_name, json.dumps(sorted(replaced)) + "\n")
    return lake.directory.create(manifest.name, json.dumps(asdict(manifest)) + "\n")


def replaced_of(lake: Lake, manifest: Manifest | None) -> frozenset[str]:
    """Files that a manifest replaced. To be asked before files are listed: they are deleted before their list is."""
    text = None if manifest is None else lake.directory.read(manifest.replaced_name)
    return frozenset() if text is None else frozenset(json.loads(text))


def files_of(lake: Lake, day: str) -> list[FoundFile]:
    """Files of a day that have rows, replaced ones too."""
    found = lake.directory.files(f"{DAY}={day}")
    return [file for file in found if not file.name.rpartition("/")[2].startswith(("_", "."))]


def current_files(lake: Lake, day: str, manifest: Manifest | None) -> list[FoundFile]:
    """Files of a day without those that were replaced."""
    replaced = replaced_of(lake, manifest)
    return [file for file in files_of(lake, day) if file.name not in replaced]


def is_clean(files: "Iterable[FoundFile]", manifest: Manifest | None) -> bool:
    """Whether these, the current files of a day, are those of its manifest alone."""
    return manifest is not None and all(file.name.startswith(f"{manifest.place}/") for file in files)


def snapshot_of(lake: Lake) -> Snapshot:
    """What to read now. It stays right while captures and compactions go on, for as long as replaced files are kept."""
    manifests = manifests_of(lake)
    with ThreadPoolExecutor(READERS) as readers:
        days = list(readers.map(lambda day: _snapshot_of_day(lake, day, manifests.get(day)), lake.days()))
    return Snapshot([path for day in days for path in day.plain], [path for day in days for path in day.others])


def _snapshot_of_day(lake: Lake, day: str, manifest: Manifest | None) -> Snapshot:
    place = f"{DAY}={day}"
    if manifest is None:
        return Snapshot([], [f"{lake.path}/{place}"])
    batches = lake.directory.names(place)
    own = f"{BATCH}={manifest.batch}"
    rows = [f"{lake.path}/{manifest.place}"] if own in batches else []
    # Most days have nothing else, and their files need not be listed here.
    files = current_files(lake, day, manifest) if set(batches) - {own} else []
    late = [f"{lake.path}/{file.name}" for file in files if not is_clean([file], manifest)]
    return Snapshot([], rows + late) if late else Snapshot(rows, [])


def clean(lake: Lake, manifest: Manifest) -> int:
    """Delete what a manifest replaced, and what tells of versions before it; how many files were deleted."""
    own = f"{manifest.place}/"
    replaced = {name for name in replaced_of(lake, manifest) if not name.startswith(own)}
    if not replaced:
        return 0  # an earlier run has done it, and nothing has to be listed
    there = [file.name for file in files_of(lake, manifest.day) if file.name in replaced]
    for name in there:
        crash_at(DELETING)
        lake.directory.remove(name)
    _remove_empty(lake, manifest, {name.split("/")[1] for name in replaced})
    crash_at(CLEANED)
    _remove_older(lake, manifest)
    lake.directory.remove(manifest.replaced_name)
    return len(there)


def _remove_older(lake: Lake, manifest: Manifest) -> None:
    """Manifests of earlier versions, and lists of those and of compactions that came second."""
    keep = {manifest.name, manifest.replaced_name}
    for name in lake.directory.names(MANIFESTS):
        day, _, rest = name.partition(".")
        # A later version may be on its way: its list comes before its manifest.
        if day == manifest.day and rest[:8].isdigit() and int(rest[:8]) <= manifest.version:
            if f"{MANIFESTS}/{name}" not in keep:
                lake.directory.remove(f"{MANIFESTS}/{name}")


def _remove_empty(lake: Lake, manifest: Manifest, replaced: set[str]) -> None:
    """Directories of batches of which nothing is left. The day's own stays: a batch may be on its way there."""
    place = f"{DAY}={manifest.day}"
    for batch in replaced & set(lake.directory.names(place)):
        for name in lake.directory.names(f"{place}/{batch}"):
            lake.directory.remove_if_empty(f"{place}/{batch}/{name}")
        lake.directory.remove_if_empty(f"{place}/{batch}")


def now_text(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="milliseconds")
