"""The dead-letters job: what died and why, sent again or deleted.

    spillway pipeline dead-letters show --entity orders
    spillway pipeline dead-letters resubmit --entity orders --where "reason = 'TooBusy'" --checkpoint again
    spark-submit …/spillway/spark/jobs/dead_letters.py purge --entity orders --where "age = 'older'" --yes
    show(spark, ShowConfig(("orders",), secret="env:BUS"))

Dead letters are browsed and judged on executors. Those that a condition chooses are planned; the driver receives them
under lock, sends them, or not, and completes them (triage/moving.py). What is sent is written down before and after, so
that a run that is killed and started again sends nothing twice (triage/resubmission.py).
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from spillway.client import ClientError
from spillway.model.texts import count_text
from spillway.spark.jobs.job import Family, Job
from spillway.spark.platform.connection_pool import NamespaceError, connection_pool
from spillway.spark.platform.java import SparkMissing
from spillway.spark.platform.job_directory import JobDirectoryError
from spillway.spark.platform.operations import Operations
from spillway.spark.platform.preflight import to_mend
from spillway.spark.platform.queries import stopped_by_signals
from spillway.spark.platform.reasons import is_of_spark, reason_of
from spillway.spark.platform.session import Say, build_session, check_spark, say_on_stderr
from spillway.spark.source.options import access_of
from spillway.spark.source.values import timestamp_text
from spillway.spark.triage import frames, moving
from spillway.spark.triage.frames import AGE, AGE_NAMES, ENTITY, GROUPS_MAX, KEYS, REASON
from spillway.spark.triage.locked_pass import CHUNK, PassOptions
from spillway.spark.triage.planned import settings_of
from spillway.spark.triage.plans import TriagePlan, by_entity, read_plan, write_plan
from spillway.spark.triage.report import write_report
from spillway.spark.triage.request import (
    AUTO_IDS,
    NEW_IDS,
    Checked,
    Choice,
    MoveConfig,
    PurgeConfig,
    ResubmitConfig,
    ShowConfig,
    check,
    claim,
    keys_of,
)
from spillway.spark.triage.resubmission import ResubmissionOptions, ResubmissionTarget
from spillway.spark.triage.show_text import show_text
from spillway.spark.triage.summaries import (
    SAMPLES,
    MoveSummary,
    PurgeSummary,
    ResubmitSummary,
    ShowSummary,
    purge_text,
    resubmit_text,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "DeadLettersError",
    "PurgeConfig",
    "PurgeSummary",
    "ResubmitConfig",
    "ResubmitSummary",
    "ShowConfig",
    "ShowSummary",
    "purge",
    "resubmit",
    "show",
]

APP: Final = "spillway dead-letters"

Clock = Callable[[], datetime]


class DeadLettersError(RuntimeError):
    """The job cannot go on. The text says why."""


ERRORS: Final = (DeadLettersError, NamespaceError, JobDirectoryError, SparkMissing, ClientError)


def utc_now() -> datetime:
    return datetime.now(UTC)


# -- the three of them ------------------------------------------------------------------------------------------------


class _Run:
    """What they have in common: rows, a plan, how to end."""

    def __init__(self, spark: "SparkSession", config: Choice, say: Say, clock: Clock, checked: Checked | None) -> None:
        self.spark = spark
        self.say = say
        self.clock = clock
        self.choice = config
        self.checked = checked or check(config)
        self.stopped = threading.Event()

    def rows(self, *expressions: str) -> "DataFrame":
        has_body = frames.names_body(self.choice.where, *expressions)
        found = frames.dead_letters(
            self.spark, self.choice.access, self.checked.entities, self.clock(), has_body=has_body
        )  # fmt: skip
        return frames.chosen(found, self.choice.where)

    def plan(self, config: MoveConfig, sets: Sequence[str] = ()) -> TriagePlan:
        if not self.checked.entities:
            return TriagePlan()
        settings = settings_of(sets)
        rows = self.rows(*(f"{each.name} {each.expression}" for each in settings))
        found, more = frames.planned(rows, settings, config.max_messages)
        return TriagePlan(by_entity(found), more=more)

    def pass_options(self, config: MoveConfig) -> PassOptions:
        access = access_of(config.access)
        chunk = min(CHUNK, max(1, int(config.rate))) if config.rate else CHUNK
        return PassOptions(access, config.patience_s, chunk, stopped=self.stopped)

    def stop(self) -> None:
        self.say("stopping after the messages under way")
        self.stopped.set()


class _Show(_Run):
    def __init__(
        self, spark: "SparkSession", config: ShowConfig, say: Say, clock: Clock, checked: Checked | None
    ) -> None:
        super().__init__(spark, config, say, clock, checked)
        self.config = config

    def run(self) -> ShowSummary:
        by = keys_of(self.config.by)
        at = timestamp_text(int(self.clock().timestamp() * 1000))
        entities = list(self.checked.entities)
        summary = ShowSummary(self.checked.namespace, at, by, self.config.where, entities)
        if entities:
            self._read(summary)
        if self.config.html:
            write_report(Path(self.config.html), summary)
        return summary

    def _read(self, summary: ShowSummary) -> None:
        """Once at the namespace; the groups are made of what was seen."""
        rows = self.rows().select(*KEYS, "sequence_number", "enqueued_time").persist()
        try:
            totals = frames.totals_of(rows, summary.by)
            summary.messages, summary.groups_count = totals["messages"], totals["groups"]
            summary.oldest, summary.newest = totals["oldest"], totals["newest"]
            summary.groups = frames.groups_of(rows, summary.by, self.config.top)
            for name in (REASON, ENTITY, AGE):
                lines = frames.groups_of(rows, [name], GROUPS_MAX)
                summary.totals[name] = [{name: line[name], "messages": line["messages"]} for line in lines]
            summary.totals[AGE].sort(key=lambda line: AGE_NAMES.index(line[AGE]))
        finally:
            rows.unpersist()


class _Resubmit(_Run):
    def __init__(
        self, spark: "SparkSession", config: ResubmitConfig, say: Say, clock: Clock, checked: Checked | None
    ) -> None:
        super().__init__(spark, config, say, clock, checked)
        self.config = config
        self.directory = claim(spark, config, self.checked)

    def run(self) -> ResubmitSummary:
        plan = self._plan()
        summary = ResubmitSummary(chosen=plan.count, more=plan.more, is_resumed=plan.is_resumed)
        if self.config.dry_run:
            return self._dry(plan, summary)
        went_on = "going on with " if plan.is_resumed else ""
        whose = count_text(len(plan.by_entity), "entity", "entities")
        self.say(f"{went_on}{count_text(plan.count, 'dead letter')} of {whose}")
        moving.resubmit(
            connection_pool(),
            plan,
            self.directory,
            self._destination,
            self.pass_options(self.config),
            self._sending,
            Operations(self.config.rate or None),
            summary,
        )
        return summary

    def _plan(self) -> TriagePlan:
        before = None if self.directory is None else read_plan(self.directory)
        if before is not None:
            return before
        plan = self.plan(self.config, self.config.sets)
        for entity in plan.by_entity:
            destination = self._destination(entity)
            plan.new_ids[destination.path] = self._has_new_ids(destination)
        if self.directory is not None:
            write_plan(self.directory, plan)
        return plan

    def _destination(self, entity: str) -> ResubmissionTarget:
        found = self.checked.destinations.get(entity)
        if found is None:  # of a plan of a run before, when there were others
            found = ResubmissionTarget(self.config.to.strip("/") or entity)
        return found

    def _has_new_ids(self, destination: ResubmissionTarget) -> bool:
        """Unless it is known that nobody remembers the old ones."""
        is_safe_to_keep = destination.detects is False
        return self.config.message_id == NEW_IDS or (self.config.message_id == AUTO_IDS and not is_safe_to_keep)

    def _sending(self, has_new_ids: bool) -> ResubmissionOptions:
        access = self.pass_options(self.config).access
        return ResubmissionOptions(access, self.checked.namespace, has_new_ids, self.config.unsure)

    def _dry(self, plan: TriagePlan, summary: ResubmitSummary) -> ResubmitSummary:
        summary.is_dry = True
        for entity, planned in plan.by_entity.items():
            to = self._destination(entity)
            ids = plan.new_ids[to.path]
            summary.lines.append(
                {"entity": entity, "to": to.path, "messages": len(planned), "new_ids": ids, "detects": to.detects}
            )
            for each in planned[: max(0, SAMPLES - len(summary.samples))]:
                changes = {edit.name: edit.text for edit in each.edits}
                summary.samples.append({"entity": entity, "sequence_number": each.key.number, "set": changes})
        return summary


class _Purge(_Run):
    def __init__(
        self, spark: "SparkSession", config: PurgeConfig, say: Say, clock: Clock, checked: Checked | None
    ) -> None:
        super().__init__(spark, config, say, clock, checked)
        self.config = config

    def run(self) -> PurgeSummary:
        plan = self.plan(self.config)
        summary = PurgeSummary(plan.count, plan.more, self.config.dry_run, is_confirmed=self.config.yes)
        if self.config.dry_run or not self.config.yes:
            summary.lines = [{"entity": name, "messages": len(those)} for name, those in plan.by_entity.items()]
            return summary
        operations = Operations(self.config.rate or None)
        moving.purge(connection_pool(), plan, self.pass_options(self.config), operations, summary)
        return summary


Summary = TypeVar("Summary", ShowSummary, ResubmitSummary, PurgeSummary)


def _ended(run: _Run, work: Callable[[], Summary]) -> Summary:
    began_s = time.monotonic()
    try:
        with stopped_by_signals(run.stop):
            summary = work()
    except Exception as error:
        if is_of_spark(error):
            raise DeadLettersError(reason_of(error)) from None
        raise
    summary.seconds = round(time.monotonic() - began_s, 3)
    return summary


def show(
    spark: "SparkSession",
    config: ShowConfig,
    say: Say = say_on_stderr,
    clock: Clock = utc_now,
    checked: Checked | None = None,
) -> ShowSummary:
    """Groups of dead letters. Raises `OptionError`, `NamespaceError` or `DeadLettersError`."""
    run = _Show(spark, config, say, clock, checked)
    return _ended(run, run.run)


def resubmit(
    spark: "SparkSession",
    config: ResubmitConfig,
    say: Say = say_on_stderr,
    clock: Clock = utc_now,
    checked: Checked | None = None,
) -> ResubmitSummary:
    """Send dead letters again. Raises as `show` does, and `JobDirectoryError`."""
    run = _Resubmit(spark, config, say, clock, checked)
    return _ended(run, run.run)


def purge(
    spark: "SparkSession",
    config: PurgeConfig,
    say: Say = say_on_stderr,
    clock: Clock = utc_now,
    checked: Checked | None = None,
) -> PurgeSummary:
    """Delete dead letters. Raises as `show` does."""
    run = _Purge(spark, config, say, clock, checked)
    return _ended(run, run.run)


def run_here(config: Choice, master: str | None = None) -> ShowSummary | ResubmitSummary | PurgeSummary:
    """In a session of this process."""
    with to_mend(*ERRORS):
        check_spark(master)
        checked = check(config)
        if isinstance(config, ResubmitConfig):
            claim(None, config, checked)
    # PySpark writes an error of analysis to stderr, with its traceback, before it raises it.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    session = build_session(APP, master=master)
    if isinstance(config, ShowConfig):
        return show(session, config, checked=checked)
    if isinstance(config, ResubmitConfig):
        return resubmit(session, config, checked=checked)
    assert isinstance(config, PurgeConfig), "there are three commands"
    return purge(session, config, checked=checked)


def text_of(summary: ShowSummary | MoveSummary) -> str:
    """The summary for people."""
    if isinstance(summary, ShowSummary):
        return show_text(summary)
    if isinstance(summary, ResubmitSummary):
        return resubmit_text(summary)
    assert isinstance(summary, PurgeSummary), "there are three commands"
    return purge_text(summary)


def status_of(summary: ShowSummary | MoveSummary) -> int:
    """1 for a purge that was not confirmed: it has done nothing."""
    return int(isinstance(summary, PurgeSummary) and not summary.is_confirmed and not summary.is_dry)


JOB: Final = Family(
    "dead-letters",
    "What is in the dead letters and why; send them again, or delete them.",
    (
        Job(
            "dead-letters show",
            "Group dead letters by reason, entity, age and error; nothing is locked or changed.",
            ShowConfig,
            run_here,
            text_of,
            ERRORS,
        ),
        Job(
            "dead-letters resubmit",
            "Send dead letters again, each once, whatever is killed meanwhile.",
            ResubmitConfig,
            run_here,
            text_of,
            ERRORS,
        ),
        Job(
            "dead-letters purge",
            "Delete dead letters for good.",
            PurgeConfig,
            run_here,
            text_of,
            ERRORS,
            status_of=status_of,
        ),
    ),
)
main: Final = JOB.main


if __name__ == "__main__":
    sys.exit(main())
