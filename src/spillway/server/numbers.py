"""Numbers and names that must not repeat: links and requests, tracking ids, message ids for senders without one."""

import itertools
import os
import random
import uuid
from datetime import UTC, datetime


class Numbers:
    """Link and request numbers: one sequence per process life, none ever given twice."""

    def __init__(self) -> None:
        self.sequence = itertools.count(1)

    def next(self) -> int:
        return next(self.sequence)


class Tracking:
    """Ids for error texts and messages. Unique, not secret: they need no system call each."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.random = random.Random(os.urandom(32))

    def new_message_id(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def tracking_text(self, entity: str, now_ms: int) -> str:
        """The tail of an error description as Azure writes it (docs/wire.md, "Error conditions")."""
        tracking_id = uuid.UUID(int=self.random.getrandbits(128), version=4)
        at = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f" TrackingId:{tracking_id}_{self.namespace}, SystemTracker:{entity}, Timestamp:{at}"
