"""Lanes and the receiving links they feed, served in turn so that none starves another."""

from spillway.broker.loads import LoadStep
from spillway.broker.locks import Holder, LockShare, LockTable
from spillway.broker.window import ResidentBudget, Window


class ReceiverLink(Holder):
    """`limit` deliveries in all may be handed to it; `handed_count` were. `deletes`: ReceiveAndDelete."""

    def __init__(self, link_id: int, deletes: bool, lane: "Lane") -> None:
        super().__init__()
        self.link_id = link_id
        self.deletes = deletes
        self.lane = lane  # where its messages come from
        self.limit = 0
        self.handed_count = 0
        self.drains = False
        self.credit_number = 0  # of the last `Credit`
        # A fault keeps everything from it: it seems to have no credit, and has this much again when the fault ends.
        self.is_muted = False
        self.withheld_limit = 0
        self.withheld_drains = False
        self.is_asking = False  # a call to receive is under way, see `Queue.ask`
        self.asked_at = 0  # `handed_count` when it began


class ReceiverLinks:
    """All receiving links of a namespace, by their number. Who makes or ends one says so here."""

    def __init__(self) -> None:
        self.by_number: dict[int, ReceiverLink] = {}

    def add(self, link: ReceiverLink) -> None:
        self.by_number[link.link_id] = link

    def remove(self, link_id: int) -> ReceiverLink | None:
        return self.by_number.pop(link_id, None)


class Receivers:
    def __init__(self) -> None:
        self.links: list[ReceiverLink] = []
        self.next_index = 0

    def add(self, link: ReceiverLink) -> None:
        self.links.append(link)

    def remove(self, link: ReceiverLink) -> None:
        self.links.remove(link)

    def are_waiting(self) -> bool:
        for link in self.links:  # noqa: SIM110  (a plain loop is the faster one, compiled)
            if link.handed_count < link.limit:
                return True
        return False

    def only_delete(self) -> bool:
        """Whether none of them holds anything: what they are handed is gone."""
        for link in self.links:  # noqa: SIM110  (a plain loop is the faster one, compiled)
            if not link.deletes:
                return False
        return True

    def rotation(self) -> list[ReceiverLink]:
        """All links, another one first each time."""
        count = len(self.links)
        if count < 2:
            return self.links
        self.next_index = (self.next_index + 1) % count
        return self.links[self.next_index :] + self.links[: self.next_index]


class Lane:
    """Where deliveries come from: a window, the receivers it feeds and the locks they hold.

    A plain queue has one lane for ever. Where sessions are required, every locked message session is a lane of its own
    with one receiver; messages of sessions that nobody holds are only in the store.
    """

    def __init__(self, budget: ResidentBudget, session_id: str | None, share: LockShare) -> None:
        self.session_id = session_id
        self.window = Window(budget)
        self.receivers = Receivers()
        self.locks = LockTable(share)
        self.is_refilling = False
        self.is_closed = False  # given up: what comes back to it is found in the store again
        self.refill_step: LoadStep | None = None  # see refill.py
