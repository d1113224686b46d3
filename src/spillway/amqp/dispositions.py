"""What is to be said of deliveries, gathered into one frame per run of consecutive ids."""

from spillway.amqp.performatives import Accepted, DeliveryState, Modified, Rejected, Released
from spillway.amqp.serial import MASK


class DispositionRun:
    """Deliveries of consecutive ids of which the same is to be said. `role` True: we received them."""

    def __init__(self, role: bool) -> None:
        self.role = role
        self.is_open = False
        self.first = 0
        self.last = 0
        self.settled = False
        self.state: DeliveryState | None = None

    def begin(self, delivery_id: int, settled: bool, state: DeliveryState | None) -> None:
        self.is_open = True
        self.first = delivery_id
        self.last = delivery_id
        self.settled = settled
        self.state = state

    def extend(self, delivery_id: int, settled: bool, state: DeliveryState | None) -> bool:
        """Take the delivery in, if one frame can say it too."""
        if delivery_id != (self.last + 1) & MASK or settled != self.settled:
            return False
        if state is not self.state and not is_said_alike(self.state, state):
            return False
        self.last = delivery_id
        return True


def is_said_alike(one: DeliveryState | None, other: DeliveryState | None) -> bool:
    """Whether one disposition can say both: plain states without anything particular to one delivery."""
    if one is None or other is None:
        return one is other
    if isinstance(one, Accepted):
        return isinstance(other, Accepted)
    if isinstance(one, Released):
        return isinstance(other, Released)
    if isinstance(one, Rejected):
        return isinstance(other, Rejected) and one.error is None and other.error is None
    if isinstance(one, Modified) and isinstance(other, Modified):
        return (
            one.delivery_failed == other.delivery_failed
            and one.undeliverable_here == other.undeliverable_here
            and one.message_annotations is None
            and other.message_annotations is None
        )
    return False
