"""One call of the program that sends: how long it may take, and what is known of its messages so far."""

import datetime
from typing import Final

from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
)

from spillway.paired.outlet import Parcel

PRIMARY_SHARE: Final = 0.6  # of a call's time, where the rest may be needed for the backlog
FAIR_SHARE: Final = PRIMARY_SHARE / 2  # less says nothing about the primary
# After these nobody knows whether the service has stored what was sent.
OUTCOME_UNKNOWN: Final = (OperationTimeoutError, ServiceBusConnectionError, ServiceBusCommunicationError, OSError)


class Call:
    numbers: tuple[int, ...] = ()  # of messages that were scheduled already

    def __init__(self, parcel: Parcel, due: datetime.datetime | None, began_s: float, deadline_s: float) -> None:
        self.parcel = parcel
        self.due = due
        self.began_s = began_s
        self.deadline_s = deadline_s
        self.is_outcome_unknown = False  # some attempt may have been stored, and nobody heard of it

    def note(self, error: Exception) -> None:
        """An attempt ended like this."""
        if isinstance(error, OUTCOME_UNKNOWN):
            self.is_outcome_unknown = True

    def stored(self, count: int) -> None:
        """The first so many are safe, and are not sent again; the rest may still go to either side."""
        parcel = self.parcel
        self.parcel = Parcel(parcel.messages[count:], parcel.is_whole, parcel.is_keyed, parcel.body_sizes[count:])
        self.is_outcome_unknown = True  # part of it is there, if the rest is refused

    def fate(self) -> str:
        return "whether it was sent is not known" if self.is_outcome_unknown else "nothing was sent"

    def is_fair(self, share_s: float, operation_timeout_s: float) -> bool:
        """Whether a time-out after `share_s` says something about the entity. What is left of a call that was held, or
        that waited for its turn, may be too little for anybody."""
        return share_s >= min(operation_timeout_s, self.deadline_s - self.began_s) * FAIR_SHARE
