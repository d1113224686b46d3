"""Chosen dead letters, entity by entity: sent again, or deleted. It needs no Spark; it runs in the driver.

Deciding which and how is for executors. Moving is one connection's work, in order, at the rate that was asked for.
"""

from collections.abc import Callable, Sequence

from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.job_directory import JobDirectory
from spillway.spark.platform.operations import Operations
from spillway.spark.triage.journal import SENT, TriageJournal
from spillway.spark.triage.locked_pass import Acted, ChosenLetter, LockedPass, Outcome, PassOptions
from spillway.spark.triage.planned import Key, Planned
from spillway.spark.triage.plans import TriagePlan, remove_plan
from spillway.spark.triage.resubmission import (
    UNSURE_TEXT,
    Resubmission,
    ResubmissionOptions,
    ResubmissionTarget,
)
from spillway.spark.triage.summaries import MoveSummary, PurgeSummary, ResubmitSummary

DestinationOf = Callable[[str], ResubmissionTarget]


def resubmit(
    pool: ConnectionPool,
    plan: TriagePlan,
    directory: JobDirectory | None,
    destination_of: DestinationOf,
    options: PassOptions,
    sending: Callable[[bool], ResubmissionOptions],
    operations: Operations,
    summary: ResubmitSummary,
) -> None:
    """All of a plan. `sending` makes the options for a destination that needs new ids, or does not."""
    journal = TriageJournal(directory)
    settled: list[Key] = []
    for entity, planned in plan.by_entity.items():
        destination = destination_of(entity)
        acting = Resubmission(
            pool, sending(plan.new_ids[destination.path]), destination, journal, operations
        )  # fmt: skip

        async def work(
            entity: str = entity, planned: Sequence[Planned] = planned, acting: Resubmission = acting
        ) -> Outcome:
            try:
                return await LockedPass(pool, options, entity, planned, acting.act).run()
            finally:
                await acting.close()

        outcome = pool.run(work())
        _count(summary, outcome, len(planned))
        summary.lines[-1]["to"] = destination.path
        before = [key for key in outcome.gone if journal.state(key) == SENT]
        summary.done_before += len(before)
        summary.gone -= len(before)
        summary.lines[-1]["done"] += len(before)
        summary.unsure += sum(reason == UNSURE_TEXT for reason in outcome.kept.values())
        # What is sent and could not be taken from the dead letters has to be, whatever is chosen the next time.
        if options.stopped.is_set() or any(journal.state(key) == SENT for key in outcome.left):
            summary.is_ended = False
        settled += [*outcome.done, *outcome.gone]
        if options.stopped.is_set():
            break
    if directory is not None and summary.is_ended:
        journal.remove(settled)
        journal.compact()
        remove_plan(directory)


def purge(
    pool: ConnectionPool, plan: TriagePlan, options: PassOptions, operations: Operations, summary: PurgeSummary
) -> None:
    """Nothing is written down: whatever dies, the rest is there for the next run."""

    async def act(chosen: Sequence[ChosenLetter]) -> Acted:
        for _ in chosen:
            await operations.begin()
        return Acted(list(chosen), [])

    for entity, planned in plan.by_entity.items():
        outcome = pool.run(LockedPass(pool, options, entity, planned, act).run())
        _count(summary, outcome, len(planned))
        if options.stopped.is_set():
            return


def _count(summary: MoveSummary, outcome: Outcome, planned: int) -> None:
    summary.lines.append({"entity": outcome.entity, "messages": planned, "done": len(outcome.done)})
    summary.done += len(outcome.done)
    summary.gone += len(outcome.gone)
    summary.left += len(outcome.left)
    for key, reason in outcome.kept.items():
        summary.add_kept(outcome.entity, key.number, reason)
