"""What a caller asks to be sent: its messages, and what is known so far of what became of them."""

import datetime
from collections.abc import Sequence
from typing import Any

from azure.servicebus import ServiceBusMessageBatch

from spillway.model.failures import Failure
from spillway.paired.messages import MESSAGE_OVERHEAD_BYTES, Outgoing, coalescing_key


class SendRequest:
    """One message, or several that belong together (`is_whole`: all or nothing)."""

    def __init__(
        self,
        messages: list[Outgoing],
        is_whole: bool,
        body_sizes: Sequence[int] = (),
        *,
        is_keyed: bool = True,
        due: datetime.datetime | None = None,
        encoded: ServiceBusMessageBatch | None = None,
    ) -> None:
        self.messages = messages
        self.is_whole = is_whole
        self.body_sizes = body_sizes  # bytes of each message's body, for whoever counts them
        self.is_keyed = is_keyed
        self.due = due  # scheduled for then
        self.encoded = encoded  # the same messages, if they have been encoded as a batch already
        self.numbers: list[int] = []  # of those that were scheduled
        self.is_outcome_unknown = False  # some attempt may have been stored, and nobody heard of it

    @property
    def key(self) -> str | None:
        """Session or partition: only messages of one go into a batch together."""
        return coalescing_key(self.messages[0]) if self.is_keyed else None

    @property
    def size_bytes(self) -> int:
        """About what the messages of the request take in memory."""
        return sum(self.body_sizes) + MESSAGE_OVERHEAD_BYTES * len(self.messages)

    @property
    def content(self) -> Any:
        """The messages as the SDK takes them."""
        if self.encoded is not None:
            return self.encoded
        return list(self.messages) if self.is_whole else self.messages[0]

    def note(self, failure: Failure) -> None:
        """An attempt ended like this."""
        if failure.is_outcome_unknown:
            self.is_outcome_unknown = True

    def stored(self, count: int) -> None:
        """The first so many are safe, and are not sent again; the rest may still go to either side."""
        assert 0 < count <= len(self.messages), "no more is stored than was left"
        self.messages = self.messages[count:]
        self.body_sizes = self.body_sizes[count:]
        self.encoded = None
        if self.messages:
            self.is_outcome_unknown = True  # part of it is there, if the rest is refused

    def fate(self) -> str:
        return "whether it was sent is not known" if self.is_outcome_unknown else "nothing was sent"
