"""What one namespace may use, as its operator set it. `NO_LIMIT` switches a limit off.

Azure Standard's quotas are the defaults. What protects one tenant of Azure from another (operations a second) is off
until it is asked for: a broker on hardware of its own has no neighbours. docs/limits.md has the whole table.
"""

from typing import Final

from spillway.model import limits

NO_LIMIT: Final = 0


class Quotas:
    """Each attribute is a limit of `--limit`, with `-` for `_`."""

    def __init__(self) -> None:
        # Over one of these a request is refused as server busy, for ten seconds.
        self.operations_per_second: int = NO_LIMIT
        self.entity_operations_per_second: int = NO_LIMIT
        self.memory_mb: int = NO_LIMIT
        self.store_mb: int = NO_LIMIT
        # Over one of these it is refused as quota exceeded.
        self.connections: int = limits.CONNECTIONS_MAX
        self.connections_without_token: int = limits.PENDING_CONNECTIONS_MAX
        self.connects_per_second: int = NO_LIMIT
        self.frames_per_second: int = NO_LIMIT
        self.sessions_per_connection: int = limits.CHANNEL_MAX + 1
        self.links_per_connection: int = limits.LINKS_PER_CONNECTION_MAX
        self.receivers_per_entity: int = limits.RECEIVERS_PER_ENTITY_MAX
        self.entities: int = limits.ENTITIES_MAX
        self.subscriptions: int = limits.SUBSCRIPTIONS_MAX
        self.subscriptions_per_topic: int = limits.SUBSCRIPTIONS_PER_TOPIC_MAX
        self.sql_filters_per_topic: int = limits.SQL_FILTERS_PER_TOPIC_MAX
        self.correlation_filters_per_topic: int = limits.CORRELATION_FILTERS_PER_TOPIC_MAX

    def value(self, name: str) -> int:
        """The value of a limit, by its name on the command line."""
        value = getattr(self, name.replace("-", "_"))
        assert isinstance(value, int), f"{name} is a number"
        return value

    def set(self, name: str, value: int) -> None:
        """`ValueError` says what is wrong with it."""
        bounds = SETTABLE.get(name)
        if bounds is None:
            raise ValueError(f"there is no limit {name!r}; there are: {', '.join(SETTABLE)}")
        least, most = bounds
        if value == NO_LIMIT and name in CAN_BE_OFF:
            least = NO_LIMIT
        if not least <= value <= most:
            off = ", or 0 for no limit" if name in CAN_BE_OFF else ""
            raise ValueError(f"{name} is between {bounds[0]} and {most}{off}, not {value}")
        setattr(self, name.replace("-", "_"), value)

    def resident_bytes_max(self) -> int:
        """Bodies of waiting messages in memory: a quarter of what there is, and never more than is of use."""
        if self.memory_mb == NO_LIMIT:
            return limits.RESIDENT_NAMESPACE_BYTES_MAX
        return min(limits.RESIDENT_NAMESPACE_BYTES_MAX, self.memory_mb * limits.MIB // 4)

    def lock_bytes_max(self) -> int:
        """Locks on messages: an eighth of what there is."""
        if self.memory_mb == NO_LIMIT:
            return limits.LOCK_BYTES_MAX
        return self.memory_mb * limits.MIB // 8

    def rules_bytes_max(self) -> int:
        """Rules of subscriptions: an eighth of what there is."""
        if self.memory_mb == NO_LIMIT:
            return limits.RULES_BYTES_MAX
        return self.memory_mb * limits.MIB // 8

    def held_bytes_max(self) -> int:
        """All that is held for clients beyond the turn it came in: a quarter of what there is."""
        if self.memory_mb == NO_LIMIT:
            return limits.HELD_BYTES_MAX
        return self.memory_mb * limits.MIB // 4

    def ids_in_memory_max(self) -> int:
        """Ids of accepted messages, to recognise duplicates: an eighth of what there is."""
        if self.memory_mb == NO_LIMIT:
            return limits.ID_MEMORY_MAX
        return min(limits.ID_MEMORY_MAX, self.memory_mb * limits.MIB // 8 // limits.ID_MEMORY_BYTES)

    def pending_bytes_pause(self) -> int:
        """Waiting for the disk: above this no socket is read. In memory each byte is there about twice."""
        if self.memory_mb == NO_LIMIT:
            return limits.PENDING_BYTES_PAUSE
        return min(limits.PENDING_BYTES_PAUSE, self.memory_mb * limits.MIB // 8)

    def log_batch_bytes(self) -> int:
        """In the log and not in the file yet, of which there may be four times as much: an eighth of what there is."""
        if self.memory_mb == NO_LIMIT:
            return limits.LOG_BATCH_BYTES
        return min(limits.LOG_BATCH_BYTES, self.memory_mb * limits.MIB // 32)


# By name, the least and the most that may be set.
SETTABLE: Final[dict[str, tuple[int, int]]] = {
    "operations-per-second": (1, 10_000_000),
    "entity-operations-per-second": (1, 10_000_000),
    "memory-mb": (128, 1 << 24),  # the broker alone needs some 70
    "store-mb": (1, 1 << 30),
    "connections": (1, 100_000),
    "connections-without-token": (1, 100_000),
    "connects-per-second": (1, 1_000_000),
    "frames-per-second": (10, 10_000_000),
    "sessions-per-connection": (1, limits.CHANNEL_MAX + 1),
    "links-per-connection": (4, limits.LINKS_PER_CONNECTION_MAX),  # two of them to $cbs
    "receivers-per-entity": (1, 100_000),
    "entities": (1, 1_000_000),
    "subscriptions": (1, 1_000_000),
    "subscriptions-per-topic": (1, 100_000),
    "sql-filters-per-topic": (1, 100_000),
    "correlation-filters-per-topic": (1, 1_000_000),
}
CAN_BE_OFF: Final = (
    "operations-per-second",
    "entity-operations-per-second",
    "memory-mb",
    "store-mb",
    "connects-per-second",
    "frames-per-second",
)
