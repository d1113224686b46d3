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
from spillway.paired.aliases import Batch, for_backlog
from spillway.paired.backlog import BacklogQueue
from spillway.paired.errors import BacklogUnavailableError, EntityFailed, wrapped
from spillway.paired.failover import Route, State
from spillway.paired.ledger import SCHEDULE, SEND
from spillway.paired.messages import body_bytes, raw_of
from spillway.paired.namespace import Namespace
from spillway.paired.pairing import Pairing, PairingSlot
from spillway.paired.plan import Again, NoBacklog, Plan, Raise, Step
from spillway.paired.pool import SenderPool, SendFailed
from spillway.paired.requests import SendRequest
from spillway.paired.watch import Watch

ERROR_CHARS_MAX: Final = 1_000


class Delivery:
    """To one entity, for one sender."""

    def __init__(self, primary: Namespace, slot: PairingSlot, path: str) -> None:
        self.primary = primary
        self.slot = slot
        self.path = path
        self.watch: Watch | None = None  # once the factory is paired
        self._pool: SenderPool | None = None
        self._queue: BacklogQueue | None = None  # its own, chosen at random (contract D14)
        self._choose_queue()

    @property
    def pool(self) -> SenderPool:
        if self._pool is None:
            self._pool = self.primary.pools.at(self.path)
        return self._pool

    async def deliver(self, request: SendRequest, size_bytes: int, timeout_s: float | None) -> None:
        """Returns when every message is stored on one side or the other. Ends with the factory, wherever it is."""
        watch = self.watch or self._begin_watch()
        plan = self._plan(watch, asyncio.get_running_loop().time(), timeout_s)
        count = len(request.messages)
        bound, calls = self.primary.in_flight, self.primary.calls
        try:
            if not bound.enter_now(count, size_bytes):
                await calls.limit(self._wait_for_room(count, size_bytes, plan.deadline_s), math.inf)
            try:
                await calls.limit(self._deliver(request, plan, watch), math.inf)
            finally:
                bound.leave(count, size_bytes)
        except TimeoutError:
            self.primary.check_open()
            raise

    # -- the loop -------------------------------------------------------------------------------------------------

    async def _deliver(self, request: SendRequest, plan: Plan, watch: Watch | None) -> None:
        batches: deque[Batch] = deque()  # what is left, as it goes to the backlog
        failed: SendFailed | None = None  # the last failure
        cause: Exception | None = None  # the last that is not about the time alone
        while request.messages:
            route = Route.PRIMARY if watch is None else watch.machine.route()
            step: Step | None
            if route is Route.PRIMARY:
                step, failed = await self._try_primary(request, plan, watch)
            else:
                assert watch is not None and self.slot.pairing is not None, "who is not paired has one way"
                if route is Route.NOWHERE:
                    raise self._entity_failed(request, watch)
                if not batches:
                    batches = self._batches(request, watch)
                step, failed = await self._try_backlog(request, plan, batches, self.slot.pairing, failed)
            if step is None:
                continue
            if failed is not None and (cause is None or not isinstance(failed.error, OperationTimeoutError)):
                cause = failed.error
            if isinstance(step, Raise):
                assert failed is not None, "nothing is raised without a failure"
                raise self._raised(failed, cause)
            if isinstance(step, NoBacklog):
                raise self._no_backlog(request, watch, cause)
            await self._wait(step, watch, route)

    async def _try_primary(
        self, request: SendRequest, plan: Plan, watch: Watch | None
    ) -> tuple[Step | None, SendFailed | None]:
        loop = asyncio.get_running_loop()
        until_s = plan.primary_until_s(loop.time())
        epoch = 0 if watch is None else watch.machine.epoch
        try:
            if request.due is None:
                await self.pool.send(request, until_s)
            else:
                request.numbers += await self._schedule(request, until_s)
        except SendFailed as failed:
            self.primary.check_open()  # that it was closed says nothing about the entity
            request.note(failed.failure)
            return self._after_primary(request, plan, watch, failed, epoch), failed
        if watch is not None and (watch.machine.state is not State.HEALTHY or watch.machine.is_on_trial):
            watch.on_success()
        kind = SEND if request.due is None else SCHEDULE
        for size_bytes in request.body_sizes:
            self.primary.ledger.count(self.path, kind, size_bytes)
        request.messages = []
        return None, None

    def _after_primary(
        self, request: SendRequest, plan: Plan, watch: Watch | None, failed: SendFailed, epoch: int
    ) -> Step:
        failure = failed.failure
        now_s = asyncio.get_running_loop().time()
        again = plan.is_tried_again(failure, now_s)
        if again is not None:
            return again
        if watch is None:
            return plan.after_primary(failure, now_s, is_away=False)
        if failure.blame is Blame.MESSAGE:
            watch.on_refusal(failed.error, failure, request.messages)
        elif failure.counts_against_entity and (plan.is_fair or not isinstance(failed.error, OperationTimeoutError)):
            watch.on_failure(failed.error, epoch)
        is_away = watch.machine.route() is not Route.PRIMARY
        return plan.after_primary(failure, now_s, is_away, is_outdated=watch.machine.epoch != epoch)

    async def _schedule(self, request: SendRequest, until_s: float) -> list[int]:
        messages, due = list(request.messages), request.due
        numbers: list[int] = await self.pool.call(
            lambda sdk, left_s: sdk.schedule_messages(messages, due, timeout=left_s),  # type: ignore[arg-type]
            until_s,
        )
        return numbers

    # -- the backlog ----------------------------------------------------------------------------------------------

    def _batches(self, request: SendRequest, watch: Watch) -> deque[Batch]:
        refusal = watch.refuse_without_session(request.messages)
        if refusal is not None:
            raise self._raised(SendFailed(refusal, self.primary.judge(refusal)), None)
        try:
            return deque(for_backlog(request.messages, self.path, request.due))
        except MessageSizeExceededError as error:
            raise MessageSizeExceededError(
                message=f"{error}. '{self.path}' is away, so it could go nowhere else. {request.fate().capitalize()}."
            ) from None

    async def _try_backlog(
        self,
        request: SendRequest,
        plan: Plan,
        batches: deque[Batch],
        pairing: Pairing,
        before: SendFailed | None,
    ) -> tuple[Step | None, SendFailed | None]:
        """One batch to one queue."""
        loop = asyncio.get_running_loop()
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

    def _stored(self, request: SendRequest, batch: Batch, queue: BacklogQueue, pairing: Pairing) -> None:
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

    def _begin_watch(self) -> Watch | None:
        if self.slot.pairing is not None:
            self.watch = self.slot.pairing.watch(self.path)
        return self.watch

    def _plan(self, watch: Watch | None, now_s: float, timeout_s: float | None) -> Plan:
        """A call that is held must be able to see the end of the interval."""
        operation_timeout_s = self.primary.operation_timeout_s
        if watch is None:
            return Plan(now_s, now_s + (timeout_s or operation_timeout_s), operation_timeout_s, False, False)
        interval_s = watch.machine.interval_s
        is_held = watch.options.pending == "hold"
        allowed_s = timeout_s or operation_timeout_s + (interval_s if is_held else 0.0)
        may_divert = is_held or interval_s <= 0 or watch.machine.is_on_trial
        return Plan(now_s, now_s + allowed_s, operation_timeout_s, may_divert, is_held)

    async def _wait(self, step: Again, watch: Watch | None, route: Route) -> None:
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

    def _raised(self, failed: SendFailed, cause: Exception | None) -> Exception:
        """The SDK's error, and as its cause the original; of a time-out, what had gone wrong before time was up."""
        error = wrapped(failed.error, self.path, failed.failure)
        if error is not failed.error:
            is_time_up = isinstance(failed.error, OperationTimeoutError) and cause is not None
            error.__cause__ = cause if is_time_up else failed.error
        return error

    def _entity_failed(self, request: SendRequest, watch: Watch) -> EntityFailed:
        error = EntityFailed(
            f"'{self.path}' is away and waiting does not bring it back: {watch.machine.cause}. "
            f"{request.fate().capitalize()}. Mend the cause, then call mark_path_healthy if the next ping is too "
            "far off."
        )
        error.__cause__ = watch.machine.cause
        return error

    def _no_backlog(
        self, request: SendRequest, watch: Watch | None, cause: Exception | None
    ) -> BacklogUnavailableError:
        assert watch is not None and self.slot.pairing is not None
        causes = self.slot.pairing.rotation.causes() or str(cause or "there are none")
        error = BacklogUnavailableError(
            f"'{self.path}' is away ({watch.machine.cause}), and {request.fate()}. "
            f"No backlog queue takes messages. {causes}"[:ERROR_CHARS_MAX]
        )
        error.is_outcome_unknown = request.is_outcome_unknown
        error.path = self.path
        error.__cause__ = cause or watch.machine.cause
        return error
