"""The receiving links of an entity, served in turn so that none starves another."""

from spillway.broker.locks import Holder


class ReceiverLink(Holder):
    """`limit` deliveries in all may be handed to it; `handed_count` were. `deletes`: ReceiveAndDelete."""

    def __init__(self, link_id: int, deletes: bool) -> None:
        super().__init__()
        self.link_id = link_id
        self.deletes = deletes
        self.limit = 0
        self.handed_count = 0
        self.drains = False


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

    def rotation(self) -> list[ReceiverLink]:
        """All links, another one first each time."""
        count = len(self.links)
        if count < 2:
            return self.links
        self.next_index = (self.next_index + 1) % count
        return self.links[self.next_index :] + self.links[: self.next_index]
