"""Numbers and names that must not repeat: links and requests, tracking ids, message ids for senders without one."""

import itertools
import logging
import os
import random
import uuid
from datetime import UTC, datetime
from typing import Final

log = logging.getLogger(__name__)

CBS: Final = "$cbs"
# A client with a wrong key comes again and again; its user needs one line, the disk of the log no more than that.
REFUSED_TOKEN_EVERY_MS: Final = 1_000


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
        self.quiet_until_ms = 0

    def new_message_id(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def tracking_text(self, entity: str, now_ms: int) -> str:
        """The tail of an error description as Azure writes it (wire-contract section 9)."""
        tracking_id = uuid.UUID(int=self.random.getrandbits(128), version=4)
        if entity == CBS:
            self.note_refused_token(tracking_id, now_ms)
        at = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f" TrackingId:{tracking_id}_{self.namespace}, SystemTracker:{entity}, Timestamp:{at}"

    def note_refused_token(self, tracking_id: uuid.UUID, now_ms: int) -> None:
        """The one refusal that SDKs keep from their users: Python shows no text, JavaScript retries for a minute."""
        if now_ms >= self.quiet_until_ms:
            self.quiet_until_ms = now_ms + REFUSED_TOKEN_EVERY_MS
            log.warning(
                "namespace=%s a client's token was refused: check SharedAccessKeyName and SharedAccessKey in its "
                "connection string, and its clock. TrackingId:%s",
                self.namespace,
                tracking_id,
            )
