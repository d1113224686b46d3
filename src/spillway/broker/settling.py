"""Locks of messages: settled, renewed and given back, over links and by request; and the credit that receivers give."""

from spillway.broker.commands import NOT_ASKED, Credit, RenewLocks, Settle, Undelivered, UpdateDisposition
from spillway.broker.decided import Decided
from spillway.broker.directory import Directory
from spillway.broker.effects import Done, Renewed, SettlementAnswered
from spillway.broker.faulting import Faulting
from spillway.broker.lane import Lane
from spillway.broker.links import Links
from spillway.broker.locks import Lock
from spillway.broker.message_sessions import session_lock_lost
from spillway.broker.queue import Queue
from spillway.broker.throttle import Throttle
from spillway.model import limits
from spillway.model.entity import entity_key
from spillway.model.errors import ArgumentError, BrokerError, MessageLockLost
from spillway.model.ledger import RENEW
from spillway.model.settlement import COMPLETE, RELEASE, Settlement


class Settling:
    def __init__(self, directory: Directory, links: Links, faulting: Faulting, throttle: Throttle) -> None:
        self.directory = directory
        self.links = links
        self.faulting = faulting
        self.throttle = throttle
        self.release = Settlement(RELEASE)

    def settle(self, command: Settle, decided: Decided) -> None:
        link = self.links.receivers.by_number.get(command.link_id)
        if link is None:
            return
        queue = self.links.received_from[command.link_id]
        if self.faulting.is_on and self.faulting.on_settle(queue, link, command, decided):
            return
        error = self._settle_token(queue, link.lane, command.lock_token, command.settlement, decided)
        if not command.is_settled:
            decided.emit(SettlementAnswered(command.link_id, command.delivery_id, command.settlement.kind, error))

    def _settle_token(
        self, queue: Queue, lane: Lane, token: bytes, settlement: Settlement, decided: Decided
    ) -> BrokerError | None:
        error: BrokerError | None = None
        is_completed = settlement.kind == COMPLETE  # which is the usual one, and never refused
        if not is_completed:
            error = queue.refuse_settlement(settlement)
            if error is not None:
                return error
        lock = queue.find_lock(lane, token, decided.now_ms)
        if lock is None:
            return _lock_lost(queue)
        if not is_completed:
            if settlement.properties:
                error = queue.refuse_changes(lock, settlement)
            if error is None:
                error = self.throttle.refuse_settling(settlement, lock.size_bytes, decided)
            if error is not None:
                return error
        self._settle_lock(queue, lane, lock, settlement, decided)
        return None

    def _settle_lock(self, queue: Queue, lane: Lane, lock: Lock, settlement: Settlement, decided: Decided) -> None:
        lane.locks.remove(lock.token)
        queue.settle(lock, settlement, decided)
        queue.metered(decided).settle()
        queue.mark_lane_ready(lane, decided)

    def credit(self, command: Credit, decided: Decided) -> None:
        link = self.links.receivers.by_number.get(command.link_id)
        if link is None:
            return
        queue = self.links.received_from[command.link_id]
        link.credit_number = command.number
        if self.faulting.is_on and self.faulting.on_credit(queue, link, command, decided):
            return
        link.limit = command.limit
        if command.drains:
            link.drains = True
        elif command.asks != NOT_ASKED:
            link.drains = False  # it has asked again before it was answered: what it got was enough
        if command.asks != NOT_ASKED:
            queue.ask(link, command.asks, decided)
        queue.mark_lane_ready(link.lane, decided)
        queue.note_use(decided)

    def undelivered(self, command: Undelivered, decided: Decided) -> None:
        queue = self.directory.queues.get(entity_key(command.path))
        if queue is None:
            return
        for lane in [queue.lane] if queue.sessions is None else list(queue.sessions.locked.values()):
            lock = lane.locks.remove(command.lock_token)
            if lock is not None:
                queue.settle(lock, self.release, decided)
                queue.mark_lane_ready(lane, decided)

    def renew(self, queue: Queue, request: RenewLocks, decided: Decided) -> BrokerError | None:
        lane = _lane_for(queue, request.session_id)
        locks: list[Lock] = []
        for token in request.lock_tokens:
            lock = None if lane is None else queue.find_lock(lane, token, decided.now_ms)
            if lock is None:
                return _lock_lost(queue)
            locks.append(lock)
        until_ms = decided.now_ms + queue.settings.lock_duration_ms
        for lock in locks:
            assert lane is not None, "a lock that was found is in a lane"
            lane.locks.renew(lock, until_ms)
        queue.metered(decided).count_many(RENEW, len(locks), len(locks), 0)
        decided.emit(Renewed(request.request_id, [until_ms] * len(locks)))
        return None

    def update_disposition(self, queue: Queue, request: UpdateDisposition, decided: Decided) -> BrokerError | None:
        error = queue.refuse_settlement(request.settlement)
        if error is not None:
            return error
        lane = _lane_for(queue, request.session_id)
        if lane is None:
            return session_lock_lost(queue, request.session_id or "")
        changed_bytes = request.settlement.changed_bytes() * len(request.lock_tokens)
        if changed_bytes > limits.BY_NUMBER_BYTES_MAX:
            return ArgumentError(
                f"The properties to modify have more than {limits.BY_NUMBER_BYTES_MAX} bytes together on "
                f"{len(request.lock_tokens)} messages: settle fewer at a time."
            )
        size_bytes = changed_bytes
        locks: dict[bytes, Lock] = {}
        for token in request.lock_tokens:
            lock = queue.find_lock(lane, token, decided.now_ms)
            if lock is None:
                return _lock_lost(queue)
            if changed_bytes:
                error = queue.refuse_changes(lock, request.settlement)
                if error is not None:
                    return error
            size_bytes += lock.size_bytes
            locks[token] = lock
        error = self.throttle.refuse_settling(request.settlement, size_bytes, decided)
        if error is not None:
            return error
        for lock in locks.values():
            self._settle_lock(queue, lane, lock, request.settlement, decided)
        decided.emit(Done(request.request_id))
        return None


def _lane_for(queue: Queue, session_id: str | None) -> Lane | None:
    """Where the locks are that a request speaks of. None: that session is held by nobody."""
    return queue.lane if queue.sessions is None else queue.lane_of(session_id)


def _lock_lost(queue: Queue) -> BrokerError:
    return MessageLockLost(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue "
        f"'{queue.path}'."
    )
