"""Where every message is: in the line, given back, locked, passed on, or left to the store. In exactly one of these.

This looks inside the core, on purpose: a message that is nowhere is delivered to nobody, and no answer ever says so.
"""

from spillway.broker.forwarding import Forwarding
from spillway.broker.lane import Lane
from spillway.broker.message_sessions import FindSessions, MessageSessions
from spillway.broker.namespace import Namespace
from spillway.broker.queue import Queue
from spillway.model import limits
from spillway.model.message import ACTIVE, DEFERRED
from tests.sim.reckoning import Place, Reckoning, Violation


def check_places(namespace: Namespace, reckoned: Reckoning, now_ms: int) -> None:
    directory = namespace.directory
    bytes_used = 0
    sizes: dict[int, int] = {}
    usages: dict[int, int] = {}
    for entity in directory.by_id.values():
        place = reckoned.places[entity.entity_id]
        place.check(entity.counters)
        sizes[id(entity.usage)] = entity.usage.size_bytes
        usages[id(entity.usage)] = usages.get(id(entity.usage), 0) + place.size_bytes
        if isinstance(entity, Queue):
            for lane in _lanes(entity):
                bytes_used += lane.window.resident_bytes + len(lane.window.resident) * limits.RESIDENT_MESSAGE_BYTES
            _check_queue(entity, place, now_ms)
    if bytes_used != directory.budget.bytes_used:
        raise Violation(f"{directory.budget.bytes_used} bytes are said to be resident, there are {bytes_used}")
    if sizes != usages:
        raise Violation("what entities hold against their quota is not what is in them")
    _check_links(namespace)


def _lanes(queue: Queue) -> list[Lane]:
    lanes = [queue.lane]
    if queue.sessions is not None:
        lanes += queue.sessions.locked.values()
    return lanes


def _check_links(namespace: Namespace) -> None:
    for link_id, link in namespace.links.receivers.by_number.items():
        held = [lock for lock in link.lane.locks.by_token.values() if lock.holder is link]
        if len(held) != link.locked_count:
            raise Violation(f"the link {link_id} is said to hold {link.locked_count} locks, it holds {len(held)}")
        if link.lane.is_closed:
            raise Violation(f"the link {link_id} receives from a lane that was given up")
    counts: dict[int, int] = {}
    for queue in namespace.links.received_from.values():
        counts[id(queue.usage)] = counts.get(id(queue.usage), 0) + 1
    for entity in namespace.directory.by_id.values():
        if entity.usage.receiver_count != counts.get(id(entity.usage), 0):
            raise Violation(f"{entity.path} is said to have {entity.usage.receiver_count} receivers")


def _check_queue(queue: Queue, place: Place, now_ms: int) -> None:
    locked: set[int] = set()
    for lane in _lanes(queue):
        for lock in lane.locks.by_token.values():
            if lock.sequence_number in locked:
                raise Violation(f"{queue.path}: message {lock.sequence_number} is locked twice")
            locked.add(lock.sequence_number)
            row = place.rows.get(lock.sequence_number)
            if row is None or row.state not in (ACTIVE, DEFERRED) or row.state != lock.state:
                raise Violation(f"{queue.path}: a lock on message {lock.sequence_number}, which is not there")
    active = {number: row for number, row in place.rows.items() if row.state == ACTIVE}
    if isinstance(queue.sessions, MessageSessions):
        _check_sessions(queue, queue.sessions, place, now_ms)
        for lane in queue.sessions.locked.values():
            of_lane = {number for number, row in active.items() if row.session_id == lane.session_id}
            _check_lane(queue, lane, of_lane, locked, queue.overdue & of_lane)
        return
    elsewhere = set(queue.overdue)
    if isinstance(queue.forwarder, Forwarding):
        if queue.forwarder.waiting is not None:
            elsewhere.update(stored.sequence_number for stored in queue.forwarder.waiting.stored)
        if queue.parent is not None:  # those that went too far stay for good
            elsewhere.update(number for number, row in active.items() if row.hops >= limits.FORWARD_HOPS_MAX)
        if queue.forwarder.is_stopping:
            return  # all of it is read again
    _check_lane(queue, queue.lane, set(active), locked, elsewhere)


def _check_lane(queue: Queue, lane: Lane, active: set[int], locked: set[int], elsewhere: set[int]) -> None:
    window = lane.window
    line = set(window.line)
    for number in active:
        waits = window.is_waiting(number)
        if (number in locked) + waits + (number in elsewhere and not waits) != 1:
            raise Violation(
                f"{queue.path}: message {number} is {'locked ' if number in locked else ''}"
                f"{'waiting' if waits else 'in no place'}"
            )
        if waits and number > window.upto and number > window.cold_upto:
            raise Violation(f"{queue.path}: nobody will read message {number} from the store")
        if waits and number <= window.upto and number not in line and number not in window.returned_numbers:
            raise Violation(f"{queue.path}: message {number} is in memory and not in the line")
    for number in [*window.resident, *window.returned_numbers]:
        if number not in active:
            raise Violation(f"{queue.path}: message {number} waits, and is not there")


def _check_sessions(queue: Queue, sessions: MessageSessions, place: Place, now_ms: int) -> None:
    if queue.lane.window.resident or queue.lane.window.returned_numbers or queue.lane.locks.by_token:
        raise Violation(f"{queue.path}: a message of a session lies outside of all sessions")
    steps = [queue.loads.under_way, *queue.loads.waiting]
    is_looking = any(isinstance(step, FindSessions) for step in steps)
    if sessions.is_searching and not is_looking:
        raise Violation(f"{queue.path}: it waits for sessions that nobody looks for")
    free = [name for name in place.active_of if name not in sessions.locked and place.has_living(name, now_ms)]
    if free and sessions.waiting and not is_looking:
        raise Violation(f"{queue.path}: somebody waits, and nobody gives it the session {free[0]!r}")


def check_rest(namespace: Namespace, now_ms: int) -> None:
    """When nothing is under way, nobody who could be served waits."""
    if namespace.directory.loads:
        raise Violation("a load was asked and is not under way")
    for link_id, link in namespace.links.receivers.by_number.items():
        queue = namespace.links.received_from[link_id]
        is_free = not link.is_muted and queue.share is None and link.locked_count < limits.UNSETTLED_PER_LINK_MAX
        if is_free and link.handed_count < link.limit and link.lane.window.may_have_more():
            raise Violation(f"{queue.path}: the link {link_id} asks for messages, and they wait")
        if link.lane.is_refilling:
            raise Violation(f"{queue.path}: a lane waits for rows that nobody reads")
    for queue in namespace.directory.queues.values():
        forwarder = queue.forwarder
        if isinstance(forwarder, Forwarding) and queue.settings.may_receive() and forwarder.due_ms() <= now_ms:
            if queue.lane.window.may_have_more() and forwarder.waiting is None and not forwarder.is_stopping:
                if forwarder.due_ms() == 0:
                    raise Violation(f"{queue.path}: messages that are to be passed on wait")
