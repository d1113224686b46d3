"""A link over which a client sends messages: they are admitted here, and credit for more goes back."""

from spillway.amqp.events import TransferReceived
from spillway.amqp.link import Link
from spillway.amqp.performatives import ACCEPTED, Rejected
from spillway.broker.commands import DetachLink, Send
from spillway.broker.effects import SendSettled
from spillway.dialect.addresses import Address
from spillway.dialect.admission import admit_transfer
from spillway.dialect.errors import Tracker
from spillway.dialect.links import IncomingLink
from spillway.dialect.outbox import Outbox
from spillway.model import limits
from spillway.model.errors import BrokerError, NotImplementedHere


class ClientSender(IncomingLink):
    """The client sends messages to an entity. `ending` says why it will be detached once all sends are answered."""

    def __init__(
        self, number: int, link: Link, address: Address, rights: int, tracker: Tracker, outbox: Outbox
    ) -> None:
        super().__init__(number, link, address, rights, tracker, limits.LINK_CREDIT)
        self.outbox = outbox
        self.ending: BrokerError | None = None
        self.is_paced = False  # it outruns the receivers, and gets no new credit for a moment

    def on_accepted(self) -> None:
        # Single messages are measured again when admitted (docs/wire.md, "A full batch is over the limit").
        self.link.bytes_max = limits.MESSAGE_BYTES_MAX + limits.BATCH_SLACK_BYTES
        super().on_accepted()

    def on_transfer(self, event: TransferReceived, now_ms: int) -> None:
        """A message or a batch has arrived: it becomes a command, or is rejected."""
        if self.link.credit_left <= limits.LINK_CREDIT // 2:
            self.top_up()
        try:
            if self.ending is not None:
                raise self.ending
            if event.state is not None:
                raise NotImplementedHere("Transactions are not supported: send without a transactional state.")
            messages = admit_transfer(event.payload, event.message_format, self.tracker)
        except BrokerError as error:
            self.reject(event.delivery_id, event.settled, error, now_ms)
            return
        self.outbox.commands.append(Send(self.number, event.delivery_id, messages, event.settled, len(event.payload)))

    def top_up(self) -> None:
        """New credit when half of it is used up, but for a sender that is held back."""
        if not self.is_paced:
            super().top_up()

    def pace(self, is_held: bool) -> None:
        """The core holds the sender back for a moment, or lets it go on."""
        self.is_paced = is_held
        self.top_up()

    def answer(self, effect: SendSettled, now_ms: int) -> None:
        """The send is stored, or refused."""
        state = ACCEPTED if effect.error is None else Rejected(self.amqp_error(effect.error, now_ms))
        self.link.session.settle(effect.delivery_id, state)

    def begin_to_end(self, error: BrokerError) -> None:
        """Sends are on their way, and JavaScript does not take the end of the link for an answer to them.

        So the core hears of the end behind the last of them, and says again that the link ends when all are answered.
        """
        self.ending = error
        self.outbox.commands.append(DetachLink(self.number, error))

    def leave(self) -> None:
        self.outbox.detach(self.number)
