"""The way of a call's messages: to the primary while it takes them, else to the backlog, until they are stored.

One loop. Where a message goes now is the entity's machine's to say (`failover.py`), what follows from a failure the
plan's (`plan.py`), what an error means the table's (`model/failures.py`), which backlog queue the rotation's
(`backlog.py`).
"""

import asyncio
import math
from collections import deque
from typing import Final

from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from spillway.model.failures import Blame
from spillway.paired.aliases import OutgoingBatch, for_backlog
from spillway.paired.backlog import BacklogQueue
from spillway.paired.errors import BacklogUnavailableError, EntityFailed, wrapped
from spillway.paired.failover import Route, State
from spillway.paired.ledger import SCHEDULE, SEND
from spillway.paired.messages import any_without_session, body_bytes, raw_of
from spillway.paired.namespace import FactoryNamespace
from spillway.paired.pairing import Pairing, PairingSlot
from spillway.paired.plan import Again, NoBacklog, Raise, SendPlan, Step
from spillway.paired.pool import SenderPool, SendFailed
from spillway.paired.requests import SendRequest
from spillway.paired.watch import PrimaryWatch

ERROR_CHARS_MAX: Final = 1_000


class Delivery:
    """The delivery of messages to one entity, for one sender."""

    def __init__(self, primary: FactoryNamespace, slot: PairingSlot, path: str) -> None:
        self.primary = primary
        self.slot = slot
        self.path = path
        self.watch: PrimaryWatch | None = None  # once the factory is paired
        self._pool: SenderPool | None = None
        self._queue: BacklogQueue | None = None  # its own, chosen at random (contract D14)
        self._choose_queue()

    @property
    def pool(self) -> SenderPool:
        if self._pool is None:
            self._pool = self.primary.pools.at(self.path)
        return self._pool

    async def deliver(self, request: SendRequest, timeout_s: float | None) -> None:
        """Returns when every message is stored on one side or the other. Ends with the factory, wherever it is."""
        watch = self.watch or self._begin_watch()
        plan = self._plan(watch, asyncio.get_running_loop().time(), timeout_s)
        bound, count, size_bytes = self.primary.in_flight, len(request.messages), request.size_bytes
        batches: deque[OutgoingBatch] = deque()  # what is left, as it goes to the backlog
        failed: SendFailed | None = None  # the last failure
        cause: Exception | None = None  # the last that is not about the time alone
        with self.primary.calls.limit(math.inf):
            if not bound.enter_now(count, size_bytes):
                await self._wait_for_room(count, size_bytes, plan.deadline_s)
            try:
                while request.messages:
                    route = Route.PRIMARY if watch is None else watch.machine.route()
                    if route is Route.PRIMARY:
                        step, failed = await self._try_primary(request, plan, watch)
                    elif route is Route.BACKLOG:
                        step, failed = await self._try_backlog(request, plan, watch, batches, failed)
                    else:
                        raise self._entity_failed(request, watch)
                    if failed is not None and (cause is None or not isinstance(failed.error, OperationTimeoutError)):
                        cause = failed.error
                    if isinstance(step, Again):
                        await self._wait(step, watch, route)
                    elif step is not None:
                        raise self._given_up(step, request, watch, failed, cause)
            finally:
                bound.leave(count, size_bytes)

    # -- the primary ----------------------------------------------------------------------------------------------

    async def _try_primary(
        self, request: SendRequest, plan: SendPlan, watch: PrimaryWatch | None
    ) -> tuple[Step | None, SendFailed | None]:
        loop = asyncio.get_running_loop()
        until_s = plan.primary_until_s(loop.time())
        entity = None if watch is None else watch.machine
        epoch = 0 if entity is None else entity.epoch
        try:
            if request.due is None:
                await self.pool.send(request, until_s)
            else:
                request.numbers += await self._schedule(request, until_s)
        except SendFailed as failed:
            self.primary.check_open()  # that it was closed says nothing about the entity
            request.note(failed.failure)
            step, change = plan.after_primary(failed.error, failed.failure, entity, epoch, loop.time())
            if watch is not None and change is not None:
                watch.follow(change)
            elif watch is not None and failed.failure.blame is Blame.MESSAGE:
                watch.on_refusal(failed.error, request.messages)
            return step, failed
        if watch is not None and (watch.machine.state is not State.HEALTHY or watch.machine.is_on_trial):
            watch.on_success()
        kind = SEND if request.due is None else SCHEDULE
        for size_bytes in request.body_sizes:
            self.primary.ledger.count(self.path, kind, size_bytes)
        request.messages = []
        return None, None

    async def _schedule(self, request: SendRequest, until_s: float) -> list[int]:
        messages, due = list(request.messages), request.due
        numbers: list[int] = await self.pool.call(
            lambda sdk, left_s: sdk.schedule_messages(messages, due, timeout=left_s),  # type: ignore[arg-type]
            until_s,
        )
        return numbers

    # -- the backlog ----------------------------------------------------------------------------------------------

    def _batches(self, request: SendRequest, watch: PrimaryWatch) -> list[OutgoingBatch]:
        refusal = watch.session_refusal
        if refusal is not None and any_without_session(request.messages):  # it would not take them when it is back
            raise self._raised(SendFailed(refusal, self.primary.judge(refusal)), None)
        try:
            return for_backlog(request.messages, self.path, request.due)
        except MessageSizeExceededError as error:
            raise MessageSizeExceededError(
                message=f"{error}. '{self.path}' is unavailable, so it could go nowhere else. "
                f"{request.fate().capitalize()}."
            ) from None

    async def _try_backlog(
        self,
        request: SendRequest,
        plan: SendPlan,
        watch: PrimaryWatch | None,
        batches: deque[OutgoingBatch],
        before: SendFailed | None,
    ) -> tuple[Step | None, SendFailed | None]:
        """Send one batch to one backlog queue."""
        pairing, loop = self.slot.pairing, asyncio.get_running_loop()
        assert watch is not None and pairing is not None, "who is not paired has one way"
        if not batches:
            batches.extend(self._batches(request, watch))
        left = sum(len(batch.messages) for batch in batches)
        assert left == len(request.messages), "the batches are what is left of the request"
        began_s = loop.time()
        queue = pairing.rotation.choose(began_s, plan.tried, self._queue)
        if queue is None:
            return plan.without_backlog(began_s), before
        self._queue = queue
        batch = batches[0]
        pairing.secondary.check_open()
        part = SendRequest(batch.messages, len(batch.messages) > 1, is_keyed=False, encoded=batch.encoded)
        try:
            await pairing.secondary.pools.at(queue.path).send(part, plan.backlog_until_s(began_s))
        except SendFailed as failed:
            self.primary.check_open()
            request.note(failed.failure)
            step, guilty = plan.after_backlog(queue.path, failed.failure, began_s, loop.time())
            if guilty is not None:
                pairing.backlog_failed(queue, failed.error)
            return step, failed
        doubted = plan.after_stored(queue.path)
        if doubted is not None and before is not None:
            pairing.backlog_failed(pairing.rotation.at(doubted), before.error)
        self._stored(request, batches.popleft(), queue, pairing)
        return None, None

    def _stored(self, request: SendRequest, batch: OutgoingBatch, queue: BacklogQueue, pairing: Pairing) -> None:
        for message in batch.messages:
            pairing.secondary.ledger.count(queue.path, SEND, body_bytes(raw_of(message)))
        pairing.backlog_took(queue, len(batch.messages), self.path)
        if request.due is not None:
            request.numbers += [self.primary.next_diverted_number() for _ in batch.messages]
        request.stored(len(batch.messages))

    def _choose_queue(self) -> None:
        if self.slot.pairing is not None:
            self._queue = self.slot.pairing.rotation.choose(asyncio.get_running_loop().time(), set())

    # -- waiting --------------------------------------------------------------------------------------------------

    def _begin_watch(self) -> PrimaryWatch | None:
        if self.slot.pairing is not None:
            self.watch = self.slot.pairing.watch(self.path)
        return self.watch

    def _plan(self, watch: PrimaryWatch | None, now_s: float, timeout_s: float | None) -> SendPlan:
        """A call that is held must be able to see the end of the interval."""
        operation_timeout_s = self.primary.operation_timeout_s
        if watch is None:
            return SendPlan(now_s, now_s + (timeout_s or operation_timeout_s), operation_timeout_s, False, False)
        interval_s = watch.machine.interval_s
        is_held = watch.options.pending == "hold"
        allowed_s = timeout_s or operation_timeout_s + (interval_s if is_held else 0.0)
        may_divert = is_held or interval_s <= 0 or watch.machine.is_on_trial
        return SendPlan(now_s, now_s + allowed_s, operation_timeout_s, may_divert, is_held)

    async def _wait(self, step: Again, watch: PrimaryWatch | None, route: Route) -> None:
        """Until then, or until something has changed. Who is throttled waits all that time (contract D7, I6), unless
        the other side would take it, or the factory is closed."""
        loop = asyncio.get_running_loop()
        while step.at_s > loop.time():
            if watch is None:
                await self.primary.rest(step.at_s)
            else:
                await watch.changed(step.at_s)
            self.primary.check_open()
            if not step.is_patient or (watch is not None and watch.machine.route() is not route):
                return

    async def _wait_for_room(self, count: int, size_bytes: int, deadline_s: float) -> None:
        bound = self.primary.in_flight
        try:
            async with asyncio.timeout_at(deadline_s):
                await bound.enter(count, size_bytes)
        except TimeoutError:
            error = OperationTimeoutError(
                message=f"{bound.count} messages of this factory are in flight, the most it may have "
                f"(max_in_flight, max_in_flight_bytes): '{self.path}' was not sent to within the time allowed."
            )
            raise wrapped(error, self.path, self.primary.judge(error)) from None
        if self.primary.is_closed:
            bound.leave(count, size_bytes)
            self.primary.check_open()

    # -- what the caller hears ------------------------------------------------------------------------------------

    def _given_up(
        self,
        step: Raise | NoBacklog,
        request: SendRequest,
        watch: PrimaryWatch | None,
        failed: SendFailed | None,
        cause: Exception | None,
    ) -> Exception:
        if isinstance(step, NoBacklog):
            return self._no_backlog(request, watch, cause)
        assert failed is not None, "nothing is raised without a failure"
        return self._raised(failed, cause)

    def _raised(self, failed: SendFailed, cause: Exception | None) -> Exception:
        """The SDK's error, and as its cause the original; of a time-out, what had gone wrong before time was up."""
        error = wrapped(failed.error, self.path, failed.failure)
        if error is not failed.error:
            is_time_up = isinstance(failed.error, OperationTimeoutError) and cause is not None
            error.__cause__ = cause if is_time_up else failed.error
        return error

    def _entity_failed(self, request: SendRequest, watch: PrimaryWatch | None) -> EntityFailed:
        assert watch is not None, "who is not paired has one way"
        error = EntityFailed(
            f"'{self.path}' is unavailable and waiting does not bring it back: {watch.machine.cause}. "
            f"{request.fate().capitalize()}. Mend the cause, then call mark_path_healthy if the next ping is too "
            "far off."
        )
        error.__cause__ = watch.machine.cause
        return error

    def _no_backlog(
        self, request: SendRequest, watch: PrimaryWatch | None, cause: Exception | None
    ) -> BacklogUnavailableError:
        assert watch is not None and self.slot.pairing is not None, "who is not paired has one way"
        causes = self.slot.pairing.rotation.causes() or str(cause or "there are none")
        error = BacklogUnavailableError(
            f"'{self.path}' is unavailable ({watch.machine.cause}), and {request.fate()}. "
            f"No backlog queue takes messages. {causes}"[:ERROR_CHARS_MAX]
        )
        error.is_outcome_unknown = request.is_outcome_unknown
        error.path = self.path
        error.__cause__ = cause or watch.machine.cause
        return error
