"""How a receiver ends its claim on a message."""

from typing import Final

COMPLETE: Final = 1
ABANDON: Final = 2
DEFER: Final = 3
DEAD_LETTER: Final = 4
RELEASE: Final = 5  # AMQP `released`: unlocked and not counted as a failed delivery


class Settlement:
    """What to do with a locked message. Property values are encoded AMQP values, opaque to the broker."""

    def __init__(
        self,
        kind: int,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[str, bytes] | None = None,
    ) -> None:
        self.kind = kind
        self.reason = reason
        self.description = description
        self.properties = properties

    def changed_bytes(self) -> int:
        """What the properties weigh, once for every message that is settled so."""
        size = 0
        if self.properties is not None:
            for name, value in self.properties.items():
                size += len(name) + len(value)
        return size
