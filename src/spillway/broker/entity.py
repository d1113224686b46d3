"""What queues and topics have in common: they are sent to, hold scheduled messages, and something in them falls due."""

from spillway.broker.decided import Decided, Servable
from spillway.broker.duplicates import Duplicates
from spillway.broker.loads import Loads
from spillway.broker.throttle import Share
from spillway.model import limits
from spillway.model.entity import FOR_EVER_MS, EntitySettings
from spillway.model.errors import ArgumentError, BrokerError, MessageTooLarge, QuotaExceeded, entity_disabled
from spillway.model.ledger import Tally
from spillway.model.message import NEVER, NO_TTL, SCHEDULED, Message, Overlay, StoredMessage
from spillway.model.records import Counters, EntityRow, MessageAdded, Record


class Usage:
    """What is held against one quota: by a queue and its dead-letter queue, or a topic and all below it."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.receiver_count = 0
        self.wanted_bytes = 1  # by the last send that found no room: with less than that, an entity is full to a ping


class Origin:
    """The origin of a message that another entity passes on: its first number, and what was changed on its way."""

    def __init__(self, first_number: int, overlay: Overlay) -> None:
        self.first_number = first_number
        self.overlay = overlay


class Entity(Servable):
    def __init__(self, entity_id: int, path: str, settings: EntitySettings, loads: Loads, usage: Usage) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.path = path
        self.settings = settings
        self.loads = loads
        self.usage = usage
        self.counters = Counters()
        self.is_changed = False  # the counters must be remembered with this turn
        self.tally: Tally | None = None  # of the ledger; made when something is first counted
        self.duplicates: Duplicates | None = None  # set by the directory where they are looked for
        self.sender_link_ids: dict[int, bool] = {}
        self.is_part = False  # a dead-letter queue: it comes and goes with another
        self.owners: list[Entity] = []  # what it belongs to, which is used when it is
        self.use_noted_ms = 0  # when its use was last remembered for its own sake
        self.idle_floor_ms = 0  # it is not deleted before this, however idle it is
        self.next_due_ms: int = NEVER  # no scheduled or hidden message is due before this
        self.is_sweeping_due = False
        self.share: Share | None = None  # of the operations a second; None: they are not counted
        self.noted_bytes = 0  # what the namespace has counted of it in its store
        self.damaged_numbers: set[int] = set()  # of messages that the store could not read, said already
        self.timer_ms = 0  # the namespace's: when it will call on_time, 0 if not at all

    def recover(self, row: EntityRow) -> None:
        """The entity begins with the counters that the store remembers."""
        self.counters = row.counters
        self.next_due_ms = row.next_due_ms
        self.usage.size_bytes += row.counters.size_bytes
        if self.duplicates is not None:
            self.duplicates.recover(row.oldest_id_ms)

    # -- taking in ------------------------------------------------------------------------------------------

    def refuse_send(self, messages: list[Message]) -> BrokerError | None:
        """Why these messages cannot be taken, or None."""
        if not self.settings.may_send():
            return entity_disabled(self.path, self.settings.status)
        total = 0
        for message in messages:
            size = len(message.raw)
            total += size
            if size > limits.MESSAGE_BYTES_MAX:
                return MessageTooLarge(
                    f"The message has {size} bytes; '{self.path}' takes at most {limits.MESSAGE_BYTES_MAX}."
                )
        if self.settings.is_partitioned:
            error = refuse_keys(self.path, messages)
            if error is not None:
                return error
        usage = self.usage
        room = self.settings.max_size_mb * limits.MIB - usage.size_bytes
        if messages and total > room:
            return self._full()
        if room < usage.wanted_bytes:
            return self._full() if messages and are_pings(messages) else None
        usage.wanted_bytes = 1
        return None

    def _full(self) -> QuotaExceeded:
        size_max = self.settings.max_size_mb * limits.MIB
        return QuotaExceeded(
            f"'{self.path}' holds {self.usage.size_bytes} bytes of the {size_max} it may hold, dead-letter queues "
            "included. Receive messages, or raise its MaxSizeInMegabytes."
        )

    def operations_per_message(self) -> int:
        """What sending one counts against the operations a second."""
        return 1

    def refuse_new(self, messages: list[Message], now_ms: int) -> BrokerError | None:
        """The same without those that will be dropped as duplicates: they take no room."""
        error = self.refuse_send(messages)
        if error is None:
            return None
        if self.duplicates is not None:
            messages = self.duplicates.only_new(messages, now_ms)
            error = self.refuse_send(messages)
        if isinstance(error, QuotaExceeded) and not are_pings(messages):
            # A ping asks whether a message would be taken, and is itself smaller than any: what was refused last says
            # how large they are here. No larger than one message may be, or an empty entity might not have the room.
            self.usage.wanted_bytes = min(sum([len(message.raw) for message in messages]), limits.MESSAGE_BYTES_MAX)
        return error

    def admit(self, message: Message, group: list[Record], decided: Decided, origin: Origin | None = None) -> int:
        """Store one message that was not refused; its sequence number.

        Where duplicates are looked for, its id must be known (`Duplicates.knows`), and this is where one is dropped:
        its number is that of the message which was accepted first.
        """
        if self.duplicates is None:
            return self._admit(message, group, decided, origin)
        number = self.duplicates.first_number(message, decided.now_ms)
        if number == 0:
            number = self._admit(message, group, decided, origin)
            group.append(self.duplicates.remember(message, number, decided))
        return number

    def _admit(self, message: Message, group: list[Record], decided: Decided, origin: Origin | None) -> int:
        number = self.next_number()
        if message.scheduled_ms > decided.now_ms:
            self.schedule(message, number, number, None, group, decided.now_ms)
        else:
            self.enqueue(message, number, group, decided, origin)
        return number

    def next_number(self) -> int:
        self.is_changed = True
        self.counters.last_sequence_number += 1
        return self.counters.last_sequence_number

    def schedule(
        self,
        message: Message,
        number: int,
        first_number: int,
        overlay: Overlay | None,
        group: list[Record],
        now_ms: int,
    ) -> None:
        """A message is stored until its time has come."""
        stored = StoredMessage(message, number, now_ms)
        stored.enqueue_sequence_number = first_number
        stored.overlay = overlay
        stored.state = SCHEDULED
        stored.due_ms = message.scheduled_ms
        message.was_scheduled = True
        self.count(len(message.raw), SCHEDULED)
        group.append(MessageAdded(self.entity_id, stored))
        self.note_due(stored.due_ms)

    def note_due(self, due_ms: int) -> None:
        if self.next_due_ms == NEVER or due_ms < self.next_due_ms:
            self.next_due_ms = due_ms

    def enqueue(
        self, message: Message, number: int, group: list[Record], decided: Decided, origin: Origin | None
    ) -> None:
        """Take a message whose time is now."""
        raise AssertionError("queues and topics each do this in their own way")

    def activate(self, stored: StoredMessage, decided: Decided) -> None:
        """The time of a scheduled or hidden message has come."""
        raise AssertionError("queues and topics each do this in their own way")

    def expiry_of(self, message: Message, now_ms: int) -> int:
        """The message's own time to live, cut to the entity's."""
        ttl_ms = message.ttl_ms
        default_ms = self.settings.default_ttl_ms
        if default_ms != FOR_EVER_MS and (ttl_ms == NO_TTL or ttl_ms > default_ms):
            ttl_ms = default_ms
        if ttl_ms == NO_TTL:
            return NEVER
        return now_ms + ttl_ms

    # -- counting -------------------------------------------------------------------------------------------

    def count(self, size_bytes: int, state: int) -> None:
        self.is_changed = True
        self.usage.size_bytes += size_bytes
        self.counters.add(size_bytes, state, 1)

    def uncount(self, size_bytes: int, state: int) -> None:
        self.is_changed = True
        self.usage.size_bytes -= size_bytes
        self.counters.add(-size_bytes, state, -1)
        assert self.counters.is_sound(), "counted what is not there"

    def metered(self, decided: Decided) -> Tally:
        """Where operations on this entity are counted."""
        tally = self.tally
        if tally is None:
            tally = Tally(self.path, self.entity_id)
            self.tally = tally
        if not tally.is_unsaved or tally.minute != decided.ledger.minute:
            decided.ledger.enter(tally, decided.turn)
        return tally

    # -- being used -----------------------------------------------------------------------------------------

    def use(self, now_ms: int) -> None:
        """Somebody sends, receives or browses. In a turn that touches it."""
        self.counters.used_ms = now_ms
        if now_ms - self.use_noted_ms >= limits.USED_STEP_MS:
            self.use_noted_ms = now_ms
            self.is_changed = True  # else it is remembered with the next change of its counters

    def note_use(self, decided: Decided) -> None:
        """Notes a use of this entity and of what it belongs to."""
        self.use(decided.now_ms)
        decided.mark_ready(self)
        for owner in self.owners:
            owner.use(decided.now_ms)
            decided.mark_ready(owner)

    def idle_until_ms(self) -> int:
        """When the entity is deleted if nobody uses it before."""
        last_ms = max(self.counters.used_ms, self.settings.updated_ms)
        return max(last_ms + self.settings.auto_delete_ms, self.idle_floor_ms)

    # -- turns and time -------------------------------------------------------------------------------------

    def serve(self, decided: Decided) -> None:
        """Serves the entity at the end of a turn that marked it ready."""

    def on_time(self, decided: Decided) -> None:
        """Something is due."""

    def due_ms(self) -> int:
        """When something must happen by itself; 0 if nothing will."""
        due = 0 if self.is_sweeping_due else self.next_due_ms
        if self.duplicates is not None:
            due = earlier(due, self.duplicates.due_ms())
        if self.settings.auto_delete_ms == FOR_EVER_MS or self.is_part:
            return due
        return earlier(due, self.idle_until_ms())


def refuse_keys(path: str, messages: list[Message]) -> BrokerError | None:
    """On Azure one partition has all messages of a session and all of a partition key: they cannot be two."""
    for message in messages:
        key = message.partition_key
        if key is not None and message.session_id is not None and key != message.session_id:
            return ArgumentError(
                f"'{path}' is partitioned: a message that has both a SessionId and a PartitionKey must have the same "
                "in both. Leave the PartitionKey out, or set it to the SessionId."
            )
    return None


def are_pings(messages: list[Message]) -> bool:
    for message in messages:  # noqa: SIM110  (a plain loop is the faster one, compiled)
        if not message.is_ping:
            return False
    return True


def earlier(one_ms: int, other_ms: int) -> int:
    """The earlier of two times; 0 is no time."""
    if one_ms == 0 or (other_ms != 0 and other_ms < one_ms):
        return other_ms
    return one_ms
