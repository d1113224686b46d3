"""The directory that captures write: where what lies in it, and how a batch gets there.

    OUT/day=2026-11-16/batch=20261116T083000Z-1f0c9a3e-000004/entity=orders/part-….parquet
    OUT/_spillway/about.json                what the directory is
    OUT/_spillway/staging/…                 batches that are being written; nobody reads them

The day comes first: whoever asks for a day lists its directory and no other. A batch is written to the staging
directory, and then renamed into each of its days: a reader sees all of its files of a day, or none.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from spillway.spark.platform.access import OptionError
from spillway.spark.platform.job_directory import JobDirectory, JobDirectoryError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH: Final = "batch"
ENTITY: Final = "entity"
DAY: Final = "day"
OURS: Final = "_spillway"  # Spark passes over names that begin so when it reads
ABOUT: Final = f"{OURS}/about.json"
STAGING: Final = f"{OURS}/staging"
JOB: Final = "capture"
FORMAT: Final = 2
FORMAT_BATCH_FIRST: Final = 1  # OUT/batch=…/entity=…/day=…: read, and not written any more
MOMENT: Final = "%Y%m%dT%H%M%SZ"  # the beginning of a batch's name
DAYS: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:\.\.(\d{4}-\d{2}-\d{2}))?")
# No batch takes so long: what lies in the staging directory is of a job that died.
STAGING_KEPT: Final = timedelta(days=2)

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Lake:
    """One directory of captures."""

    def __init__(self, spark: "SparkSession | None", path: str) -> None:
        self.path = path.rstrip("/") or path
        self.directory = JobDirectory(spark, self.path)

    def format(self) -> int | None:
        """The number of its layout; None if no capture has written there."""
        text = self.directory.read(ABOUT)
        try:
            about: Any = None if text is None else json.loads(text)
        except ValueError:
            raise JobDirectoryError(f"{self.path}: {ABOUT} cannot be read") from None
        number = about.get("format") if isinstance(about, dict) and about.get("job") == JOB else None
        return number if isinstance(number, int) else None

    def claim(self, what: str) -> None:
        """Make it one, or see that it is; `what` names the option. Raises `JobDirectoryError`."""
        if self.format() == FORMAT_BATCH_FIRST:
            raise JobDirectoryError(
                f"{what} {self.path} has the layout of an earlier version, batch=…/entity=…/day=…, to which nothing is "
                "added any more: give another directory. What is in this one can still be read and replayed"
            )
        self.directory.claim(ABOUT, {"job": JOB, "format": FORMAT}, what)

    def days(self) -> list[str]:
        """Names of days that have a directory, in their order."""
        return sorted(name.partition("=")[2] for name in self.directory.names() if name.startswith(f"{DAY}="))

    def staging(self, name: str) -> str:
        """Where a batch is written."""
        return f"{self.path}/{STAGING}/{name}"

    def publish(self, name: str) -> list[str]:
        """Rename what was written for a batch, as `day=…/entity=…`, into its days; the answer is where it is now."""
        staged = f"{STAGING}/{name}"
        places = []
        for day in self.directory.names(staged):
            if day.startswith(f"{DAY}="):
                place = f"{day}/{BATCH}={name}"
                self.directory.move(f"{staged}/{day}", place)
                places.append(f"{self.path}/{place}")
        self.directory.remove_tree(staged)
        return places

    def sweep_staging(self, now: datetime) -> int:
        """Delete what jobs left there that died long ago; how many directories that were."""
        count = 0
        for name in self.directory.names(STAGING):
            moment = moment_of(name)
            if moment is not None and now - moment > STAGING_KEPT:
                self.directory.remove_tree(f"{STAGING}/{name}")
                count += 1
        return count


def days_of(text: str) -> tuple[date, date] | None:
    """The first and the last day of an option `day`; None if it is not given."""
    if not text:
        return None
    found = DAYS.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        first, last = date.fromisoformat(found[1]), date.fromisoformat(found[2] or found[1])
    except ValueError:
        raise OptionError("day: 2026-11-16, or 2026-11-01..2026-11-16 for all days from one to the other") from None
    if last < first:
        raise OptionError(f"day: {last} lies before {first}")
    return first, last


def moment_of(name: str) -> datetime | None:
    """When a batch began, by its name."""
    try:
        return datetime.strptime(name.partition("-")[0], MOMENT).replace(tzinfo=UTC)
    except ValueError:
        return None
