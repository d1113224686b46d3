"""The syphon: takes messages out of the backlog queues and delivers them to the entities they were sent to.

At least once: a message leaves the backlog only after the primary accepted it. Messages are grouped by destination, and
a destination that refuses holds nobody else up: its messages are kept, tried again after a pause, and reported. Nor
does a message that is refused for what it is hold up those behind it. Only what no paired sender can have written is
dead-lettered.

One task owns a receiver of the SDK, which is not made for two and settles one message after the other; one task per
destination sends. Every backlog queue has one that waits for messages. While there are many and the process has time
to spare, others help it: they end when there is nothing left, so that an idle queue costs no more than one long poll
after the other.
"""

import asyncio
import datetime
import math
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError

from spillway.model.aliases import Malformed
from spillway.paired import events
from spillway.paired.aliases import restore, to_ms
from spillway.paired.batches import MESSAGE_OVERHEAD_BYTES, body_bytes, split
from spillway.paired.ending import close_quietly, end
from spillway.paired.ledger import EMPTY_RECEIVE, RECEIVE, RENEW, SEND, SETTLE
from spillway.paired.outlet import GRACE_S, Parcel, coalescing_key
from spillway.paired.overdue import Overdue
from spillway.paired.policy import Verdict, is_missing
from spillway.paired.refusals import is_of_message
from spillway.paired.sender import BUSY_WAIT_S

if TYPE_CHECKING:
    from spillway.paired.pairing import Pairing

T = TypeVar("T")
BATCH: Final = 200  # messages asked of a backlog queue at a time
HELPERS_MAX: Final = 3  # of one backlog queue, while it has more than a batch
SPARE_SHARE: Final = 0.6  # of a core: a process that uses more gains nothing by doing more at once
SPARE_LOOK_S: Final = 1.0
OUTSTANDING_MAX: Final = 1_000  # received and not yet settled, of one backlog queue
OUTSTANDING_BYTES_MAX: Final = 16 * 1024 * 1024
SHORT_POLL_S: Final = 0.2  # while something waits to be settled
PROGRESS_S: Final = 1.0  # to look again whether anything can go on
BLOCKED_PACE_S: Final = 10.0  # between two looks for other destinations, behind as many held messages as are allowed
RENEW_BEFORE_S: Final = 20.0  # the end of a lock
HOLD_S: Final = 300.0  # after that a lock is let go: another syphon may have better luck
PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 10.0
REFUSED_MAX: Final = 100  # messages that one destination refuses in a row, each for itself, before a pause
REFUSED_PAUSE_S: Final = 1.0
RESTART_S: Final = 1.0
RESTART_MAX_S: Final = 30.0


class Item:
    """A message of the backlog, on its way home."""

    def __init__(self, received: ServiceBusReceivedMessage, home: AmqpAnnotatedMessage, now_s: float) -> None:
        self.received = received
        self.home = home
        self.since_s = now_s
        self.body_bytes = body_bytes(home)
        self.size_bytes = MESSAGE_OVERHEAD_BYTES + self.body_bytes
        self.key = coalescing_key(home)


class Destination:
    """One entity of the primary, as this backlog queue's syphon finds it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.items: deque[Item] = deque()
        self.sending: list[Item] = []
        self.blocked_until_s = 0.0
        self.pause_s = PAUSE_S
        self.refused_count = 0  # since it last took one
        self.task: asyncio.Task[None] | None = None
        self.is_reported = False

    @property
    def held_count(self) -> int:
        return len(self.items) + len(self.sending)


class Spare:
    """Whether the process waits for the network more than it works."""

    def __init__(self) -> None:
        self.is_some = False  # before it is known: a small backlog is not worth another connection
        self._since_s = time.monotonic()
        self._cpu_s = time.process_time()

    def look(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._since_s >= SPARE_LOOK_S:
            cpu_s = time.process_time()
            self.is_some = cpu_s - self._cpu_s < SPARE_SHARE * (now_s - self._since_s)
            self._since_s, self._cpu_s = now_s, cpu_s
        return self.is_some


class Syphon:
    """All backlog queues of a pairing. `counters` of the factory say what it did.

    Those too that pairing did not get to: other programs may have, and what they divert there must come home.
    """

    def __init__(self, pairing: "Pairing") -> None:
        spare = Spare()
        paths = [queue.path for queue in pairing.rotation.queues] + pairing.options.missed_backlog_paths
        self.queues = [QueueSyphon(pairing, path, spare) for path in paths]
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(queue.run()) for queue in self.queues]

    async def tried(self) -> Exception | None:
        """Wait until the first queue's receiver is connected; or why it is not."""
        await self.queues[0].tried.wait()
        return self.queues[0].refusal

    @property
    def outstanding_count(self) -> int:
        """Messages that are received and not yet settled."""
        return sum(lane._outstanding() for queue in self.queues for lane in (queue, *queue.helpers.values()))

    async def close(self) -> None:
        await end(*self.tasks)


class QueueSyphon:
    """One receiver of one backlog queue. A helper ends when nothing is left; else it is served for ever."""

    def __init__(self, pairing: "Pairing", path: str, spare: Spare | None = None, is_helper: bool = False) -> None:
        self.pairing = pairing
        self.path = path
        self.spare = spare or Spare()
        self.is_helper = is_helper
        self.helpers: dict[asyncio.Task[None], QueueSyphon] = {}
        self.destinations: dict[str, Destination] = {}
        self.done: deque[Item] = deque()  # the primary has them: to be completed
        self.progress = asyncio.Event()
        self.reported: set[int] = set()  # numbers of messages that are kept for a reason of their own
        self.held_bytes = 0
        self.look_further_s: float | None = None  # while it is full and nothing can go on
        self.passed: deque[tuple[ServiceBusReceivedMessage, int]] = deque()  # over, for lack of room; with its size
        self.passed_bytes = 0
        self.is_drained = True  # the SDK holds no message back
        self.tried = asyncio.Event()  # to connect, for the first time
        self.refusal: Exception | None = None  # what became of that
        self.is_missing = False  # the queue, when it was last tried
        self.overdue = Overdue()

    # -- the life of it -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        restart_s = RESTART_S
        while True:
            began_s = asyncio.get_running_loop().time()
            try:
                await self._live()
            except Exception as error:
                if not self.tried.is_set():
                    self.refusal = error
                    self.tried.set()
                was_missing, self.is_missing = self.is_missing, is_missing(error)
                if not (was_missing and self.is_missing):  # a queue that nobody has made is said to be missing once
                    self.pairing.events.tell(events.SYPHON_INTERRUPTED, self.path, error=error)
            if self.is_helper:
                return
            if asyncio.get_running_loop().time() - began_s > RESTART_MAX_S:
                restart_s = RESTART_S  # it went well for a while
            await asyncio.sleep(restart_s)
            restart_s = min(RESTART_MAX_S, restart_s * 2)

    async def _live(self) -> None:
        """As long as one receiver does."""
        receiver = self.pairing.secondary.backlog_receiver(self.path)
        self.is_drained = not self.is_helper
        try:
            await self._in_time(receiver.__aenter__())  # connects: the wait of a receive is for messages alone
            self.tried.set()
            self.is_missing = False
            await self._serve(receiver)
        finally:
            sending = [each.task for each in self.destinations.values() if each.task is not None]
            try:
                await end(*self.helpers, *sending)
            finally:
                self._forget()
                self.overdue.close()
                await close_quietly(receiver)

    def _call_help(self) -> None:
        if self.is_helper or len(self.helpers) >= HELPERS_MAX:
            return
        now_s = asyncio.get_running_loop().time()
        are_held_up = any(each.blocked_until_s > now_s for each in self.destinations.values())
        if not are_held_up and self.spare.look():
            helper = QueueSyphon(self.pairing, self.path, self.spare, is_helper=True)
            helper.reported = self.reported
            task = asyncio.get_running_loop().create_task(helper.run())
            self.helpers[task] = helper
            task.add_done_callback(self.helpers.pop)

    def _forget(self) -> None:
        """What was received on a link that is gone comes back by itself; a send under way may still arrive."""
        self.destinations.clear()
        self.done.clear()
        self.passed.clear()
        self.held_bytes = self.passed_bytes = 0

    async def _serve(self, receiver: ServiceBusReceiver) -> None:
        while True:
            await self._sort_passed(receiver)
            if self._may_receive():
                messages = await self._receive(receiver)
                for message in messages:
                    await self._sort(receiver, message)
                if len(messages) >= BATCH:
                    self._call_help()
                elif self.is_helper and self.is_drained:
                    return
            self._send_what_can_be_sent()
            await self._settle(receiver)
            await self._renew(receiver)
            await self._rest()

    async def _receive(self, receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
        # The SDK may have been handed more than it was asked for. It returns the rest with the next receive, but only
        # when the wait of that is over: before a long one all is taken out, or it would lie there past its locks.
        is_idle = self._outstanding() == 0
        is_long = is_idle and self.is_drained and not self.is_helper
        wait_s = self.pairing.options.syphon_long_poll.total_seconds() if is_long else SHORT_POLL_S
        messages = await self._in_time(receiver.receive_messages(BATCH, max_wait_time=wait_s), wait_s + GRACE_S)
        self.is_drained = is_idle and not messages
        ledger = self.pairing.secondary.ledger
        for message in messages:
            ledger.count(self.path, RECEIVE, body_bytes(message.raw_amqp_message))
        if not messages:
            ledger.count(self.path, EMPTY_RECEIVE)
        if is_long:
            self.pairing.events.tell(events.SYPHON_POLLED, self.path, received=len(messages))
        return messages

    async def _rest(self) -> None:
        """Not a receive after the other while nothing can be sent: each is paid for."""
        waiting = [each for each in self.destinations.values() if each.items or each.sending]
        if not waiting or self.done:
            return
        now_s = asyncio.get_running_loop().time()
        are_all_blocked = all(each.blocked_until_s > now_s for each in waiting)
        if are_all_blocked or self._is_full():
            self.progress.clear()
            wake_s = min(each.blocked_until_s for each in waiting) if are_all_blocked else now_s + PROGRESS_S
            try:
                async with asyncio.timeout(max(0.01, min(wake_s - now_s, PROGRESS_S))):
                    await self.progress.wait()
            except TimeoutError:
                return

    def _may_receive(self) -> bool:
        """As long as there is room; and now and then without, for destinations that those in front do not block."""
        if not self._is_full():
            self.look_further_s = None
            return True
        now_s = asyncio.get_running_loop().time()
        if self.look_further_s is None:
            self.look_further_s = now_s + BLOCKED_PACE_S
        if (
            self.is_helper
            or self.done
            or any(each.items and each.blocked_until_s <= now_s for each in self.destinations.values())
        ):
            return False
        if now_s < self.look_further_s:
            return False
        self.look_further_s = now_s + BLOCKED_PACE_S
        return True

    def _is_full(self) -> bool:
        if self.is_helper:  # it is there to settle, not to hold
            return self._outstanding() >= BATCH or self.held_bytes >= OUTSTANDING_BYTES_MAX // 4
        return self._outstanding() >= OUTSTANDING_MAX or self.held_bytes >= OUTSTANDING_BYTES_MAX

    def _outstanding(self) -> int:
        return len(self.done) + sum(each.held_count for each in self.destinations.values())

    # -- what comes in --------------------------------------------------------------------------------------------

    async def _sort(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        """To its destination; or, if it has none, to the dead letters."""
        loop = asyncio.get_running_loop()
        try:
            path, home = restore(message, self._age_ms(message))
            item = Item(message, home, loop.time())
        except Malformed as error:
            await self._in_time(receiver.dead_letter_message(message, error.reason, error.description))
            self.pairing.secondary.ledger.count(self.path, SETTLE)
            self.pairing.events.tell(events.SYPHON_DEAD_LETTERED, self.path, error=error)
            return
        except Exception as error:  # `Inexpressible`, or what nobody thought of: its own, not the receiver's
            self._keep(message, error)
            return
        key = path.strip("/").lower()
        destination = self.destinations.get(key)
        if destination is None:
            destination = self.destinations[key] = Destination(path)
        if destination.blocked_until_s > loop.time() and self._is_full():
            self._pass_over(message, item.size_bytes)
            return
        destination.items.append(item)
        self.held_bytes += item.size_bytes

    def _pass_over(self, message: ServiceBusReceivedMessage, size_bytes: int) -> None:
        """For now: its turn comes when there is room, if that is before its lock ends by itself."""
        while self.passed and _lock_left_s(self.passed[0][0]) < RENEW_BEFORE_S:
            self._next_passed()
        if len(self.passed) < OUTSTANDING_MAX and self.passed_bytes < OUTSTANDING_BYTES_MAX:
            self.passed.append((message, size_bytes))
            self.passed_bytes += size_bytes

    def _next_passed(self) -> ServiceBusReceivedMessage:
        message, size_bytes = self.passed.popleft()
        self.passed_bytes -= size_bytes
        return message

    async def _sort_passed(self, receiver: ServiceBusReceiver) -> None:
        while self.passed and not self._is_full():
            message = self._next_passed()
            if _lock_left_s(message) >= RENEW_BEFORE_S:
                await self._sort(receiver, message)

    def _age_ms(self, message: ServiceBusReceivedMessage) -> int | None:
        enqueued = message.enqueued_time_utc
        if self.pairing.options.ttl == "restart" or enqueued is None:
            return None
        return max(0, to_ms(datetime.datetime.now(datetime.UTC)) - to_ms(enqueued))

    def _keep(self, message: ServiceBusReceivedMessage, error: BaseException) -> None:
        """It stays in the backlog: its lock ends by itself, and it is said once why."""
        number = message.sequence_number or 0
        if number not in self.reported and len(self.reported) < 10_000:
            self.reported.add(number)
            self.pairing.events.tell(events.SYPHON_KEPT, self.path, error=error, sequence_number=number)

    # -- what goes home -------------------------------------------------------------------------------------------

    def _send_what_can_be_sent(self) -> None:
        loop = asyncio.get_running_loop()
        for key, destination in list(self.destinations.items()):
            if destination.task is not None:
                continue
            if destination.items and destination.blocked_until_s <= loop.time():
                destination.task = loop.create_task(self._send_all(destination))
            elif not destination.items and destination.blocked_until_s <= loop.time():
                del self.destinations[key]  # nothing is known of it that is worth keeping

    async def _send_all(self, destination: Destination) -> None:
        try:
            while destination.items:
                destination.sending = self._next_batch(destination)
                await self._send_batch(destination, destination.sending)
                destination.sending = []
        except Exception as error:
            self._block(destination, error)
        finally:
            destination.items.extendleft(reversed(destination.sending))
            destination.sending = []
            destination.task = None
            self.progress.set()

    def _next_batch(self, destination: Destination) -> list[Item]:
        """Those in front that may go in one batch."""
        first = destination.items.popleft()
        batch = [first]
        while destination.items and len(batch) < BATCH and destination.items[0].key == first.key:
            batch.append(destination.items.popleft())
        return batch

    async def _send_batch(self, destination: Destination, batch: list[Item]) -> None:
        """Parts of it that are accepted are done, whatever becomes of the rest."""
        left = list(batch)  # a copy: what was sent is taken out of `batch` itself
        try:
            parts = split([item.home for item in left])
        except Exception:  # one of them cannot be encoded
            await self._send_each(destination, left)
            return
        for part in parts:
            count = len(part.messages)
            items, left = left[:count], left[count:]
            try:
                await self._send_group(destination, items, part.encoded)
            except Exception as error:
                if not is_of_message(error, self.pairing.options.policy):
                    raise
                if len(items) == 1:
                    await self._refused(destination, items[0], error)
                else:
                    await self._send_each(destination, items)

    async def _send_each(self, destination: Destination, items: list[Item]) -> None:
        """One of them is to blame for the refusal of all: each for itself."""
        for item in items:
            try:
                await self._send_group(destination, [item], None)
            except Exception as error:
                if not is_of_message(error, self.pairing.options.policy):
                    raise
                await self._refused(destination, item, error)

    async def _refused(self, destination: Destination, item: Item, error: BaseException) -> None:
        """For what it is: it stays behind, alone."""
        self._keep(item.received, error)
        destination.sending.remove(item)
        self.held_bytes -= item.size_bytes
        destination.refused_count += 1
        if destination.refused_count % REFUSED_MAX == 0:  # it may refuse them all, and each try is paid for
            pause_s = min(PAUSE_MAX_S, REFUSED_PAUSE_S * destination.refused_count / REFUSED_MAX)
            destination.blocked_until_s = asyncio.get_running_loop().time() + pause_s  # nobody is called to help
            await asyncio.sleep(pause_s)

    async def _send_group(
        self, destination: Destination, items: list[Item], encoded: ServiceBusMessageBatch | None
    ) -> None:
        primary = self.pairing.primary
        deadline_s = asyncio.get_running_loop().time() + primary.operation_timeout_s
        parcel = Parcel([item.home for item in items], len(items) > 1, encoded=encoded)
        await primary.outlet(destination.path).send(parcel, deadline_s)
        for item in items:
            destination.sending.remove(item)
            self.done.append(item)
            primary.ledger.count(destination.path, SEND, item.body_bytes)
        destination.pause_s = PAUSE_S
        destination.refused_count = 0
        destination.is_reported = False
        self.pairing.events.tell(events.SYPHONED, destination.path, len(items), queue=self.path)
        self.progress.set()

    def _block(self, destination: Destination, error: BaseException) -> None:
        """Missing, disabled, full, unauthorised, busy or out of reach: kept, tried again later, reported once."""
        is_busy = self.pairing.options.policy.judge(error) is Verdict.BUSY
        pause_s = max(BUSY_WAIT_S, destination.pause_s) if is_busy else destination.pause_s
        destination.blocked_until_s = asyncio.get_running_loop().time() + pause_s
        destination.pause_s = min(PAUSE_MAX_S, destination.pause_s * 2)
        if not destination.is_reported:
            destination.is_reported = True
            held = destination.held_count
            self.pairing.events.tell(events.SYPHON_KEPT, destination.path, error=error, queue=self.path, held=held)

    # -- settling -------------------------------------------------------------------------------------------------

    async def _settle(self, receiver: ServiceBusReceiver) -> None:
        while self.done:
            item = self.done.popleft()
            self.held_bytes -= item.size_bytes
            try:
                await self._in_time(receiver.complete_message(item.received))
            except (MessageLockLostError, MessageAlreadySettled) as error:
                # The primary has it; the backlog will hand it out again. The duplicate window makes one of the two.
                self.pairing.events.tell(events.SYPHON_REPEATED, self.path, error=error)
            else:
                self.pairing.secondary.ledger.count(self.path, SETTLE)

    async def _in_time(self, call: Coroutine[Any, Any, T], wait_s: float = 0.0) -> T:
        """Beyond its wait. The SDK waits a minute for the answer to a settlement, then asks again another way.
        A secondary that has fallen silent ends this receiver, and the next one is handed the message again."""
        until_s = asyncio.get_running_loop().time() + wait_s + self.pairing.secondary.operation_timeout_s
        return await self.overdue.limit(call, until_s)

    async def _renew(self, receiver: ServiceBusReceiver) -> None:
        """Locks of what takes long, for a while; what cannot be renewed is somebody else's now."""
        now_s = asyncio.get_running_loop().time()
        for destination in self.destinations.values():
            lost: list[Item] = []
            for item in [*destination.items, *destination.sending]:
                if not self._ends_soon(item):
                    continue
                if now_s - item.since_s > HOLD_S or not await _renewed(receiver, item.received):
                    lost.append(item)
                else:
                    self.pairing.secondary.ledger.count(self.path, RENEW)
            waiting = [item for item in lost if item in destination.items]  # a send under way goes on
            for item in waiting:
                destination.items.remove(item)
                self.held_bytes -= item.size_bytes

    def _ends_soon(self, item: Item) -> bool:
        return _lock_left_s(item.received) < RENEW_BEFORE_S


def _lock_left_s(message: ServiceBusReceivedMessage) -> float:
    until: datetime.datetime | None = message.locked_until_utc
    if until is None:
        return math.inf
    return (until - datetime.datetime.now(datetime.UTC)).total_seconds()


async def _renewed(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> bool:
    try:
        await receiver.renew_message_lock(message, timeout=RENEW_BEFORE_S / 2)
    except Exception:
        return False
    return True
