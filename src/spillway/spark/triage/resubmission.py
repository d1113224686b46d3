"""Dead letters are sent again: once, whatever dies in between, as far as anybody can know.

Before messages are sent it is written down that they have begun, and afterwards that they are sent; then they go from
the dead letters. What is found begun and not sent may have arrived. It is sent again with the same id where the
destination drops duplicates for long enough. Elsewhere the destination is looked through for its mark: if it is there
it was sent. If it is not, somebody may have received it already: it stays a dead letter and is reported, or is sent if
that was asked for.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from spillway.client import ClientError, ConnectionLost, LinkClosed, OperationTimeout, Sender
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.operations import Operations
from spillway.spark.platform.patience import Patience, is_transient, pause
from spillway.spark.triage.journal import BEGUN, SENT, TriageJournal
from spillway.spark.triage.locked_pass import Acted, ChosenLetter
from spillway.spark.triage.planned import Key
from spillway.spark.triage.resubmitted import CannotEdit, mark_in, resubmitted
from spillway.syphon import crash
from spillway.syphon.outcomes import reason_of
from spillway.syphon.policy import failure_of, is_of_message

KEEP: Final = "keep"
SEND: Final = "send"
UNSURE_TEXT: Final = "a run that died may have sent it, and nobody can tell"
LOOKED_AT_MAX: Final = 200_000  # messages of a destination that are looked through
PEEKED_AT_ONCE: Final = 500
PURPOSE: Final = "resubmission"

Outcome = ClientError | None
NOT_POSTED: Final = LinkClosed("the link ended before the message was sent")


class ResubmissionTarget(NamedTuple):
    """Where messages go. `detects` is None where nobody can say whether it drops duplicates."""

    path: str
    detects: bool | None = None
    window_ms: int = 0


@dataclass(frozen=True)
class ResubmissionOptions:
    """`has_new_ids`: with ids that the destination cannot remember from before."""

    access: Access
    namespace: str
    has_new_ids: bool
    unsure: str = KEEP


class Resubmission:
    """What is done with chosen dead letters that all go to one destination."""

    def __init__(
        self,
        pool: ConnectionPool,
        options: ResubmissionOptions,
        destination: ResubmissionTarget,
        journal: TriageJournal,
        operations: Operations,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool
        self._options = options
        self._destination = destination
        self._journal = journal
        self._operations = operations
        self._clock = clock
        self._patience = Patience(options.access, destination.path, "Send")
        self._sender: Sender | None = None

    async def act(self, chosen: Sequence[ChosenLetter]) -> Acted:
        """All of them are sent, or it is known why not. `NamespaceError` when waiting does not help any more."""
        acted = Acted([], [])
        while len(acted.done) + len(acted.kept) < len(chosen):
            try:
                await self._send(await self._sorted(chosen, acted), acted)
                self._patience.on_answered()
            except ClientError as error:
                await pause(self._patience.after(error))
        return acted

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close(timeout=1.0)

    # -- what is known ----------------------------------------------------------------------------------------------

    async def _sorted(self, chosen: Sequence[ChosenLetter], acted: Acted) -> list[ChosenLetter]:
        """Those to be sent. What was sent before only goes from the dead letters."""
        done = {each.planned.key for each in acted.done} | {each.planned.key for each, _ in acted.kept}
        states = [(each, self._journal.state(each.planned.key)) for each in chosen if each.planned.key not in done]
        acted.done.extend(each for each, state in states if state == SENT)
        unsure = [each for each, state in states if state == BEGUN and not self._is_repeatable(each.planned.key)]
        kept: set[Key] = set()
        if unsure:
            kept = await self._judge(unsure, acted)
        return [each for each, state in states if state != SENT and each.planned.key not in kept]

    def _is_repeatable(self, key: Key) -> bool:
        """Whether the destination would drop it, if it has come."""
        if not (self._destination.detects and self._options.has_new_ids):
            return False
        return self._clock() * 1000 - self._journal.entries[key].at_ms < self._destination.window_ms

    async def _judge(self, unsure: Sequence[ChosenLetter], acted: Acted) -> set[Key]:
        """Begun, and not known to be sent: the keys of those that are not to be sent now."""
        there = await self._marks()
        found = [each for each in unsure if self._mark(each) in there]
        self._journal.end([each.planned.key for each in found], [])
        acted.done.extend(found)
        settled = {each.planned.key for each in found}
        if self._options.unsure == KEEP:
            rest = [each for each in unsure if each.planned.key not in settled]
            acted.kept.extend((each, UNSURE_TEXT) for each in rest)
            settled |= {each.planned.key for each in rest}
        return settled

    async def _marks(self) -> set[str]:
        """Of the messages that the destination has now; none if it cannot be looked into, as a topic."""
        found: set[str] = set()
        at = looked_at = 0
        try:
            connection = await self._pool.connection(self._options.access, PURPOSE)
            management = self._pool.management(connection, self._destination.path)
            while looked_at < LOOKED_AT_MAX:
                messages = await management.peek(at, PEEKED_AT_ONCE, omit_body=True)
                if not messages:
                    break
                found.update(mark for each in messages if (mark := mark_in(each.application_properties)))
                at = (messages[-1].sequence_number or at) + 1
                looked_at += len(messages)
        except ClientError as error:
            if is_transient(error):
                raise
        return found

    def _mark(self, chosen: ChosenLetter) -> str:
        return chosen.planned.key.mark(self._options.namespace)

    # -- sending ----------------------------------------------------------------------------------------------------

    async def _send(self, chosen: Sequence[ChosenLetter], acted: Acted) -> None:
        """Raises what the destination said of itself; what was said of messages is in `acted`."""
        raws = self._encoded(chosen, acted)
        if not raws:
            return
        sender = await self._attached()
        self._journal.begin([each.planned.key for each, _ in raws], int(self._clock() * 1000))
        crash.crash_at(crash.BEGUN)
        outcomes = await self._outcomes(sender, raws)
        crash.crash_at(crash.SENT)
        error = self._note(sender, [each for each, _ in raws], outcomes, acted)
        crash.crash_at(crash.NOTED)
        if error is not None:
            raise error.with_traceback(None)

    def _encoded(self, chosen: Sequence[ChosenLetter], acted: Acted) -> list[tuple[ChosenLetter, bytes]]:
        found: list[tuple[ChosenLetter, bytes]] = []
        now_ms = int(self._clock() * 1000)
        for each in chosen:
            try:
                raw = resubmitted(
                    each.message.raw,
                    self._mark(each),
                    each.planned.edits,
                    now_ms,
                    has_new_id=self._options.has_new_ids,
                )
            except CannotEdit as error:
                acted.kept.append((each, str(error)))
            else:
                found.append((each, raw))
        return found

    async def _attached(self) -> Sender:
        if self._sender is None or self._sender.error is not None:
            connection = await self._pool.connection(self._options.access, PURPOSE)
            self._sender = await connection.sender(self._destination.path)
        return self._sender

    async def _outcomes(self, sender: Sender, raws: Sequence[tuple[ChosenLetter, bytes]]) -> list[Outcome]:
        """In order. One that never left has `NOT_POSTED`."""
        posted: list[asyncio.Future[None]] = []
        for _, raw in raws:
            await self._operations.begin()
            try:
                await sender.ready()
            except ClientError:
                break
            posted.append(sender.post_raw(raw))
        found: list[Outcome] = []
        for outcome in await asyncio.gather(*posted, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, ClientError):
                raise outcome
            found.append(outcome)
        assert len(found) <= len(raws), "a message was posted once, or not at all"
        return found + [NOT_POSTED] * (len(raws) - len(found))

    def _note(
        self, sender: Sender, chosen: Sequence[ChosenLetter], outcomes: Sequence[Outcome], acted: Acted
    ) -> ClientError | None:
        """Write down what is known, and return what stands in the way of the others."""
        sent: list[Key] = []
        free: list[Key] = []
        trouble: ClientError | None = None
        for each, outcome in zip(chosen, outcomes, strict=True):
            if outcome is None:
                sent.append(each.planned.key)
                acted.done.append(each)
            elif outcome is NOT_POSTED:
                free.append(each.planned.key)
                trouble = trouble or sender.error or outcome
            elif _is_unknown(outcome, sender):
                trouble = trouble or outcome
            else:
                free.append(each.planned.key)
                if is_of_message(failure_of(outcome)):
                    acted.kept.append((each, reason_of(outcome)))
                else:
                    trouble = trouble or outcome
        self._journal.end(sent, free)
        return trouble


def _is_unknown(error: ClientError, sender: Sender) -> bool:
    """Whether the destination may have the message all the same."""
    if sender.error is error or isinstance(error, (ConnectionLost, LinkClosed, OperationTimeout)):
        return True
    failure = failure_of(error)
    return failure.is_outcome_unknown or failure.ends_link
