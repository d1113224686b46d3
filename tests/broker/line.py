"""A core with one queue, and words to talk to it."""

from spillway.broker.commands import AttachReceiver, AttachSender, CreateEntity, Credit, Send, Settle
from spillway.broker.effects import Deliver, Effect
from spillway.model.entity import QUEUE, EntitySettings
from spillway.model.message import Message
from spillway.model.quotas import Quotas
from spillway.model.settlement import Settlement
from spillway.testing.core import CoreHarness, message

SENDER = 1
RECEIVER = 2
OTHER_RECEIVER = 3
DLQ_RECEIVER = 4


class Line(CoreHarness):
    """One queue `q`; sender link 1."""

    def __init__(self, settings: EntitySettings | None = None, quotas: Quotas | None = None) -> None:
        super().__init__(quotas=quotas)
        self.settings = settings or EntitySettings()
        self.apply(CreateEntity(900, QUEUE, "q", self.settings), AttachSender(SENDER, "q"))
        self.delivery_id = 0
        self.limits: dict[int, int] = {}

    def send(self, *messages: Message, link_id: int = SENDER, is_settled: bool = False) -> list[Effect]:
        self.delivery_id += 1
        batch = list(messages) or [message()]
        return self.apply(Send(link_id, self.delivery_id, batch, is_settled, sum(len(m.raw) for m in batch)))

    def send_many(self, count: int, body: bytes = b"x") -> None:
        for first in range(0, count, 500):
            self.send(*[message(body + b"%d" % n) for n in range(first, min(first + 500, count))])

    def attach(self, link_id: int = RECEIVER, path: str = "q", deletes: bool = False) -> list[Effect]:
        self.limits[link_id] = 0
        return self.apply(AttachReceiver(link_id, path, deletes))

    def credit(self, count: int, link_id: int = RECEIVER, drains: bool = False) -> list[Effect]:
        """`count` more than before."""
        self.limits[link_id] += count
        return self.apply(Credit(link_id, self.limits[link_id], drains))

    def receive(self, count: int = 1, link_id: int = RECEIVER) -> list[Deliver]:
        return delivered(self.credit(count, link_id))

    def settle(self, delivery: Deliver, settlement: Settlement, link_id: int | None = None) -> list[Effect]:
        return self.apply(Settle(link_id or delivery.to, 77, delivery.lock_token, settlement, False))

    def dead_letters(self) -> list[Deliver]:
        """Everything in the dead-letter queue, received and kept locked."""
        self.attach(DLQ_RECEIVER, "q/$DeadLetterQueue")
        return self.receive(1_000, DLQ_RECEIVER)


def delivered(effects: list[Effect]) -> list[Deliver]:
    return [effect for effect in effects if isinstance(effect, Deliver)]


def bodies(deliveries: list[Deliver]) -> list[bytes]:
    return [delivery.stored.message.raw for delivery in deliveries]
