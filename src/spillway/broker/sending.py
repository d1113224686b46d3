"""Messages that clients send or schedule: looked at for duplicates, refused or admitted, and answered."""

from spillway.broker.commands import Schedule, Send
from spillway.broker.decided import Decided
from spillway.broker.duplicates import Waiting
from spillway.broker.effects import Failed, Scheduled, SendSettled
from spillway.broker.entity import Entity
from spillway.broker.faulting import Faulting
from spillway.broker.ledger import count_sends
from spillway.broker.links import Links
from spillway.broker.throttle import Throttle
from spillway.broker.topic import Topic
from spillway.model.errors import BrokerError
from spillway.model.ledger import SCHEDULE
from spillway.model.message import Message
from spillway.model.records import Record


class Sending:
    def __init__(self, links: Links, faulting: Faulting, throttle: Throttle) -> None:
        self.links = links
        self.faulting = faulting
        self.throttle = throttle

    def send(self, command: Send, decided: Decided) -> None:
        entity = self.links.senders.get(command.link_id)
        if entity is None:
            self._refuse_late(command, decided)
            return
        if self.faulting.is_on and self.faulting.on_send(entity, command, decided):
            return
        duplicates = entity.duplicates
        if duplicates is None or duplicates.knows(command.messages, decided.now_ms):
            self.accept_send(entity, command, decided)
        else:
            duplicates.enqueue(WaitingSend(self, entity, command), decided)

    def _refuse_late(self, command: Send, decided: Decided) -> None:
        """The link was ended while the send was on its way. JavaScript does not take that for an answer."""
        error = self.links.ended.get(command.link_id)
        if error is not None and not command.is_settled:
            decided.emit(SendSettled(command.link_id, command.delivery_id, error))

    def accept_send(self, entity: Entity, command: Send, decided: Decided) -> None:
        error = self._refuse_send(entity, command.messages, decided)
        before = entity.counters.last_sequence_number
        if error is None:
            self._admit(entity, command.messages, decided)
            count_sends(entity.metered(decided), command.messages)
        if command.is_settled:
            return
        answer = SendSettled(command.link_id, command.delivery_id, error)
        if isinstance(entity, Topic):
            entity.owe(answer, before, decided)
        else:
            decided.emit(answer)

    def accept_schedule(self, entity: Entity, request: Schedule, decided: Decided) -> BrokerError | None:
        error = self._refuse_send(entity, request.messages, decided)
        if error is None:
            decided.emit(Scheduled(request.request_id, self._admit(entity, request.messages, decided)))
            for message in request.messages:
                entity.metered(decided).count(SCHEDULE, len(message.raw))
        return error

    def _refuse_send(self, entity: Entity, messages: list[Message], decided: Decided) -> BrokerError | None:
        now_ms = decided.now_ms
        error: BrokerError | None = None
        if decided.turn.size_bytes >= self.throttle.disk.growth_left:
            return self.throttle.refuse_writing(0, decided)
        if self.throttle.is_pressed:
            error = self.throttle.refuse_growth(now_ms)
        if error is None:
            error = entity.refuse_new(messages, now_ms)
        if error is None and entity.share is not None:
            return entity.share.refuse(len(messages) * entity.operations_per_message(), now_ms)
        return error

    def _admit(self, entity: Entity, messages: list[Message], decided: Decided) -> list[int]:
        """One group. A ping is answered and never stored (contract F2)."""
        group: list[Record] = []
        numbers: list[int] = []
        for message in messages:
            if not message.is_ping:
                numbers.append(entity.admit(message, group, decided))
        decided.remember(group)
        decided.mark_ready(entity)
        entity.use(decided.now_ms)
        return numbers

    def schedule(self, entity: Entity, request: Schedule, decided: Decided) -> BrokerError | None:
        duplicates = entity.duplicates
        if duplicates is None or duplicates.knows(request.messages, decided.now_ms):
            return self.accept_schedule(entity, request, decided)
        duplicates.enqueue(WaitingSchedule(self, entity, request), decided)
        return None


class WaitingSend(Waiting):
    def __init__(self, sending: Sending, entity: Entity, command: Send) -> None:
        super().__init__(command.messages)
        self.sending = sending
        self.entity = entity
        self.command = command

    def resume(self, decided: Decided) -> None:
        self.sending.accept_send(self.entity, self.command, decided)

    def abort(self, error: BrokerError, decided: Decided) -> None:
        if not self.command.is_settled:
            decided.emit(SendSettled(self.command.link_id, self.command.delivery_id, error))


class WaitingSchedule(Waiting):
    def __init__(self, sending: Sending, entity: Entity, request: Schedule) -> None:
        super().__init__(request.messages)
        self.sending = sending
        self.entity = entity
        self.request = request

    def resume(self, decided: Decided) -> None:
        error = self.sending.accept_schedule(self.entity, self.request, decided)
        if error is not None:
            decided.emit(Failed(self.request.request_id, error))

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.emit(Failed(self.request.request_id, error))
