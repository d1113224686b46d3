"""Clients that make the broker hold things, without sockets: frames go into a peer, the core is the test's to play."""

from spillway.amqp.codec import DecodeBudget as ElementBudget
from spillway.amqp.frames import (
    AMQP_HEADER,
    SASL_HEADER,
    decode_performative,
    encode_frame,
    encode_sasl_frame,
)
from spillway.amqp.performatives import Attach, Begin, Close, Flow, Open, Performative, SaslInit, Source, Target
from spillway.amqp.sasl import write_plain
from spillway.broker.commands import AttachReceiver, AttachSender, Command
from spillway.broker.effects import Attached
from spillway.dialect.peer import Peer, PeerOptions
from spillway.dialect.rights import Rights
from spillway.model.budget import Account, Budget, connection_bytes_max
from tests.dialect.visit import KEY, NOW_MS, ROOT, RULES, Names, Numbers, Tracking

FRAME_BYTES = 65_536


class House:
    """A namespace's budget, and what its peers share."""

    def __init__(self, bytes_max: int) -> None:
        self.budget = Budget(bytes_max, Budget(bytes_max))
        self.names = Names("q", "other")
        self.rights = Rights(RULES)
        self.numbers = Numbers()
        self.tracking = Tracking()

    def client(self, is_known: bool = True) -> "HoldingClient":
        return HoldingClient(self, is_known)


class HoldingClient:
    """Says what it is told to say. `commands` is what the core would be asked; links it attaches are granted."""

    def __init__(self, house: House, is_known: bool) -> None:
        account = Account(house.budget, connection_bytes_max(house.budget))
        options = PeerOptions("ns", account=account)
        self.house = house
        self.peer = Peer(options, house.names, house.rights, house.numbers, house.tracking, True, NOW_MS)
        self.account = account
        self.commands: list[Command] = []
        self.said: list[Performative] = []
        self.answers = True  # attaches are answered by the core
        self.links: list[int] = []  # their numbers in the core
        account.on_over = self.end
        self.raw(SASL_HEADER)
        init = SaslInit("PLAIN", write_plain(ROOT, KEY)) if is_known else SaslInit("ANONYMOUS", b"")
        self.raw(encode_sasl_frame(init))
        self.raw(AMQP_HEADER)
        self.say(Open("holder", "localhost", FRAME_BYTES, 4_999))

    def end(self) -> None:
        """As the server does it when another client needs the room."""
        self.peer.close(None)
        self.hear()

    def raw(self, data: bytes) -> None:
        self.peer.receive(data, NOW_MS)
        self.hear()

    def say(self, performative: Performative, payload: bytes = b"", channel: int = 0) -> None:
        self.raw(encode_frame(channel, performative, payload))

    def hear(self) -> None:
        """One turn: the core answers, the output is taken."""
        commands = self.peer.pop_commands(1 << 30, 1 << 40)
        self.peer.drain_registered()
        self.peer.drain_unregistered()
        for command in commands:
            if isinstance(command, (AttachSender, AttachReceiver)) and self.answers:
                self.links.append(command.link_id)
                self.peer.dispatch(Attached(command.link_id), NOW_MS)
            elif not isinstance(command, (AttachSender, AttachReceiver)):
                self.commands.append(command)
        for part in self.peer.drain_output():
            self.note(part)

    def note(self, part: bytes) -> None:
        """Closes are kept, the rest would be memory of the test's. Frames come whole, many in one part."""
        at = 0
        while at < len(part):
            if part[at : at + 4] == b"AMQP":
                at += 8
                continue
            end = at + int.from_bytes(part[at : at + 4], "big")
            if end - at <= 1_024:
                body, _ = decode_performative(part, at + part[at + 4] * 4, end, ElementBudget())
                if isinstance(body, Close):
                    self.said.append(body)
            at = end
        assert at == len(part), "a frame was cut"

    @property
    def is_ended(self) -> bool:
        return len(self.said) > 0

    def condition(self) -> str | None:
        """With which the connection was closed."""
        (close,) = [each for each in self.said if isinstance(each, Close)]
        return None if close.error is None else close.error.condition

    # -- the usual steps

    def begin(self, channel: int = 0, incoming_window: int = 5_000) -> None:
        self.say(Begin(None, 0, incoming_window, 5_000), channel=channel)

    def attach_sender(self, handle: int, name: str = "", channel: int = 0, address: str = "q") -> None:
        name = name or f"s{handle}"
        attach = Attach(name, handle, False, 0, 0, Source("here"), Target(address), initial_delivery_count=0)
        self.say(attach, channel=channel)

    def attach_receiver(
        self, handle: int, name: str = "", channel: int = 0, deletes: bool = False, address: str = "q"
    ) -> None:
        name = name or f"r{handle}"
        self.say(Attach(name, handle, True, 1 if deletes else 0, 0, Source(address), Target("here")), channel=channel)

    def flow(self, handle: int, credit: int, delivery_count: int = 0, window: int = 5_000, channel: int = 0) -> None:
        self.say(Flow(0, window, 0, 5_000, handle, delivery_count, credit), channel=channel)
