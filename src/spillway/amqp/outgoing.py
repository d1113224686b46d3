"""The sending half of a session: the peer's window, the deliveries that wait for it, and those not settled yet [2.5.6].

Deliveries leave in the order in which they were sent, whatever their link, and ids never skip: qpid-proton and rhea end
a session over a missing one.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from spillway.amqp.events import SentDelivery
from spillway.amqp.fast import TransferHeads, transfer_frame
from spillway.amqp.frames import encode_frame
from spillway.amqp.performatives import Transfer
from spillway.amqp.serial import MASK, serial_add, serial_difference

if TYPE_CHECKING:
    from spillway.amqp.connection import Connection
    from spillway.amqp.link import Link

# frame header 8, descriptor 3, list8 3, handle 5, delivery-id 5, tag 2 + 32, format 5, seven of one byte; rounded up
TRANSFER_HEAD_BYTES_MAX: Final = 72
TAG_BYTES_MAX: Final = 32  # [2.8.7]
QUEUED_BYTES: Final = 500  # what a delivery that waits takes besides its payload
UNSETTLED_BYTES: Final = 250  # what a delivery that is not settled takes
UNSETTLED_STEP: Final = 256  # so many are paid for at a time


class OutgoingDelivery:
    """A delivery that waits for the peer's window, or stands half written before it."""

    def __init__(
        self, link: "Link", delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.payload = payload
        self.settled = settled
        self.message_format = message_format
        self.is_begun = False
        self.written = 0


class Outgoing:
    """What we send on one session."""

    def __init__(self, connection: "Connection", local_channel: int) -> None:
        self.connection = connection
        self.local_channel = local_channel
        self.heads: TransferHeads | None = None  # once something is sent
        self.next_outgoing_id: int = 0
        self.next_delivery_id: int = 0
        self.window: int = 0  # transfer frames the peer still takes
        self.queue: deque[OutgoingDelivery] = deque()
        self.unsettled: dict[int, SentDelivery] = {}
        # The receiver has said its outcome and the owner owes the settlement. What is said of them again is not heard:
        # a few bytes that name everything outstanding, over and over, would cost as much every time.
        self.disposed: dict[int, SentDelivery] = {}
        self.dead_count = 0  # of both, those whose link is over: cleared away when they are the half of them
        self.walked_count = 0  # deliveries looked at because links ended, for the test that it is few
        self.unsettled_paid = UNSETTLED_STEP  # how many of them are paid for; the first come with the session

    def set_window(self, next_incoming_id: int | None, incoming_window: int) -> bool:
        """The peer's window: next-incoming-id + incoming-window - our next-outgoing-id [2.5.6].

        Writes what was waiting for it; whether it was shut and is open again for more.
        """
        was_shut = self.window == 0 or len(self.queue) > 0
        # Before our begin has reached it, the peer cannot know our ids; ours start at 0.
        seen = 0 if next_incoming_id is None else next_incoming_id
        under_way = max(serial_difference(self.next_outgoing_id, seen), 0)
        self.window = max(incoming_window - under_way, 0)
        if not was_shut:
            return False
        self.write_queued()
        return self.window > 0 and not self.queue

    def send(self, link: "Link", tag: bytes, payload: bytes, settled: bool, message_format: int) -> int:
        """Write a delivery, or what the window takes of it; the rest waits."""
        assert len(tag) <= TAG_BYTES_MAX, "a delivery-tag has at most 32 bytes"
        delivery_id = self.next_delivery_id
        if message_format == 0 and self.write_head(link, tag, len(payload), settled):
            self.connection.append(payload)
            return delivery_id
        self.next_delivery_id = (delivery_id + 1) & MASK
        self.queue.append(OutgoingDelivery(link, delivery_id, tag, payload, settled, message_format))
        self.connection.account.charge(len(payload) + QUEUED_BYTES)
        link.unsent += 1
        self.write_queued()
        return delivery_id

    def write_head(self, link: "Link", tag: bytes, size: int, settled: bool) -> bool:
        """Write the head of a delivery whose payload of so many bytes is put behind it at once.

        False, and nothing is written: it is more than one frame, or must wait for the window or for others.
        """
        connection = self.connection
        if self.window <= 0 or size + TRANSFER_HEAD_BYTES_MAX > connection.frame_bytes_max or self.queue:
            return False
        delivery_id = self.next_delivery_id
        self.next_delivery_id = (delivery_id + 1) & MASK
        self.window -= 1
        self.next_outgoing_id = (self.next_outgoing_id + 1) & MASK
        if not settled:
            self.unsettled[delivery_id] = SentDelivery(link, delivery_id, tag)
            link.outstanding += 1
            if len(self.unsettled) > self.unsettled_paid:
                self.settle_up()
        heads = self.heads
        if heads is None:
            heads = self.heads = TransferHeads(self.local_channel)
        connection.append(heads.head(link.local_handle, delivery_id, tag, settled, size))
        return True

    def write_queued(self) -> None:
        """Write the queue as far as the window allows."""
        while self.queue and self.window > 0:
            head = self.queue[0]
            if not head.is_begun:
                head.is_begun = True
                head.link.unsent -= 1
                if not head.settled:
                    self.unsettled[head.delivery_id] = SentDelivery(head.link, head.delivery_id, head.tag)
                    head.link.outstanding += 1
                    if len(self.unsettled) > self.unsettled_paid:
                        self.settle_up()
            if self.write_frames(head):
                self.queue.popleft()
                self.release(head)
                if head.link.is_drained_due:
                    head.link.drained()

    def write_frames(self, delivery: OutgoingDelivery) -> bool:
        """Write frames of a delivery; whether it is complete."""
        room = self.connection.frame_bytes_max - TRANSFER_HEAD_BYTES_MAX
        size = len(delivery.payload)
        while self.window > 0:
            end = min(delivery.written + room, size)
            self.write_frame(delivery, delivery.payload[delivery.written : end], end < size)
            delivery.written = end
            if end == size:
                return True
        return False

    def write_frame(self, delivery: OutgoingDelivery, payload: bytes, more: bool) -> None:
        """One frame. Only the first names the delivery: the others are known by their handle."""
        channel = self.local_channel
        handle = delivery.link.local_handle
        settled = delivery.settled
        if delivery.written == 0:
            self.connection.append(
                transfer_frame(
                    channel, handle, delivery.delivery_id, delivery.tag, delivery.message_format, settled, more, payload
                )
            )
        else:
            self.connection.append(encode_frame(channel, Transfer(handle, settled=settled, more=more), payload))
        self.window -= 1
        self.next_outgoing_id = (self.next_outgoing_id + 1) & MASK

    def release(self, delivery: OutgoingDelivery) -> None:
        self.connection.account.charge(-len(delivery.payload) - QUEUED_BYTES)

    def settle_up(self) -> None:
        """Pay for as many deliveries as are not settled, a step at a time."""
        count = max(len(self.unsettled) + len(self.disposed), UNSETTLED_STEP)
        if count > self.unsettled_paid or count < self.unsettled_paid - 2 * UNSETTLED_STEP:
            paid = (count + UNSETTLED_STEP - 1) // UNSETTLED_STEP * UNSETTLED_STEP
            self.connection.account.charge((paid - self.unsettled_paid) * UNSETTLED_BYTES)
            self.unsettled_paid = paid

    def clear(self) -> None:
        """The session is over."""
        for delivery in self.queue:
            self.release(delivery)
        self.queue.clear()
        self.unsettled.clear()
        self.disposed.clear()
        self.dead_count = 0
        self.settle_up()

    def is_half_sent(self, link: "Link") -> bool:
        """Whether the delivery that stands half written before the window is of this link."""
        return len(self.queue) > 0 and self.queue[0].is_begun and self.queue[0].link is link

    def find_unsettled(self, first: int, count: int) -> list[SentDelivery]:
        """Deliveries of the range that we still know, in O(the smaller of range and outstanding).

        Those of links that are over are met once, and gone then.
        """
        unsettled = self.unsettled
        found: list[SentDelivery] = []
        dead: list[int] = []
        if not unsettled:
            return found
        if count <= len(unsettled):
            for step in range(count):
                delivery = unsettled.get((first + step) & MASK)
                if delivery is not None:
                    if delivery.link.is_unregistered:
                        dead.append(delivery.delivery_id)
                    else:
                        found.append(delivery)
        else:
            oldest = next(iter(unsettled))  # ids rise, so the first one known is the oldest
            span = (self.next_delivery_id - oldest) & MASK
            if (first - oldest) & MASK >= span and (oldest - first) & MASK >= count:
                return found  # a range beside all that is outstanding: nothing to look through
            for delivery_id, known in unsettled.items():
                if (delivery_id - first) & MASK < count:
                    if known.link.is_unregistered:
                        dead.append(delivery_id)
                    else:
                        found.append(known)
        for delivery_id in dead:
            del unsettled[delivery_id]
        self.dead_count -= len(dead)
        return found

    def pop_disposed(self, delivery_id: int) -> bool:
        """Forget a delivery that is settled; whether we knew it."""
        found = self.disposed.pop(delivery_id, None) or self.unsettled.pop(delivery_id, None)
        if found is None:
            return False
        if found.link.is_unregistered:
            self.dead_count -= 1
            return False
        found.link.outstanding -= 1
        return True

    def withdraw(self, link: "Link") -> None:
        """Take a link's deliveries that were never begun out of the queue, and close up the ids behind them."""
        if link.unsent == 0:
            return
        kept: deque[OutgoingDelivery] = deque()
        removed = 0
        for delivery in self.queue:
            if delivery.link is link and not delivery.is_begun:
                link.unsent_tags.append(delivery.tag)
                self.release(delivery)
                removed += 1
            else:
                delivery.delivery_id = serial_add(delivery.delivery_id, -removed)
                kept.append(delivery)
        self.queue = kept
        self.next_delivery_id = serial_add(self.next_delivery_id, -removed)
        link.unsent = 0
        link.credit += removed
        link.delivery_count = serial_add(link.delivery_count, -removed)

    def unregister(self, link: "Link") -> None:
        """The link is over: nothing of it is sent any more, and nothing said of its deliveries is heard."""
        self.withdraw(link)
        if self.is_half_sent(link):
            self.release(self.queue.popleft())
        link.is_unregistered = True
        self.dead_count += link.outstanding
        link.outstanding = 0
        if self.dead_count * 2 > len(self.unsettled) + len(self.disposed):
            self._clear_dead()

    def _clear_dead(self) -> None:
        """So seldom that a link which ends costs what it had outstanding itself, whatever is outstanding beside it."""
        self.walked_count += len(self.unsettled) + len(self.disposed)
        is_all_dead = self.dead_count == len(self.unsettled) + len(self.disposed)
        for known in (self.unsettled, self.disposed):
            if is_all_dead:
                known.clear()
                continue
            for delivery_id in [
                delivery_id for delivery_id, delivery in known.items() if delivery.link.is_unregistered
            ]:
                del known[delivery_id]
        self.dead_count = 0
        self.settle_up()
