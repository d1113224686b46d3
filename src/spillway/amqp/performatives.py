"""The composite types of AMQP 1.0 parts 2, 4 and 5: performatives, SASL frames, termini, delivery states, transactions.

Plain values. Field names are the specification's with underscores, constructors take every field in its order with its
default. `fields` gives what goes on the wire, each value in its AMQP type. Every field is written, also trailing ones:
the specification lets us leave defaults out, but SDKs that index the decoded list do not.
"""

from typing import ClassVar, Final

from spillway.amqp.codec import Composite
from spillway.amqp.errors import AmqpError
from spillway.amqp.types import Described, Symbol, UByte, UInt, ULong, UShort, symbols

Map = dict[object, object]

ROLE_SENDER: Final = False
ROLE_RECEIVER: Final = True

SND_UNSETTLED: Final = 0
SND_SETTLED: Final = 1
SND_MIXED: Final = 2
RCV_FIRST: Final = 0
RCV_SECOND: Final = 1

UINT_MAX: Final = 0xFFFFFFFF
USHORT_MAX: Final = 0xFFFF


def _symbol(value: str | None) -> object:
    return None if value is None else Symbol(value)


def _symbols(value: list[str] | None) -> object:
    return None if value is None else symbols(value)


def _uint(value: int | None) -> object:
    return None if value is None else UInt(value)


def _ushort(value: int | None) -> object:
    return None if value is None else UShort(value)


def _ubyte(value: int | None) -> object:
    return None if value is None else UByte(value)


def _ulong(value: int | None) -> object:
    return None if value is None else ULong(value)


class Performative(Composite):
    """The body of a frame."""


class SaslBody(Performative):
    """The body of a SASL frame; never legal in an AMQP frame, nor the others in a SASL frame."""


class DeliveryState(Composite):
    """What an end of a link thinks of a delivery [3.4]; the terminal ones are outcomes."""


class Terminus(Composite):
    """One end of a link."""


# --- delivery states -------------------------------------------------------------------------------------------------


class Received(DeliveryState):
    code: ClassVar[int] = 0x23

    def __init__(self, section_number: int, section_offset: int) -> None:
        self.section_number = section_number
        self.section_offset = section_offset

    def fields(self) -> list[object]:
        return [UInt(self.section_number), ULong(self.section_offset)]


class Accepted(DeliveryState):
    code: ClassVar[int] = 0x24

    def fields(self) -> list[object]:
        return []


class Rejected(DeliveryState):
    code: ClassVar[int] = 0x25

    def __init__(self, error: AmqpError | None = None) -> None:
        self.error = error

    def fields(self) -> list[object]:
        # No field at all without an error (docs/wire.md, "Dead letters are echoed without an error").
        return [] if self.error is None else [self.error]


class Released(DeliveryState):
    code: ClassVar[int] = 0x26

    def fields(self) -> list[object]:
        return []


class Modified(DeliveryState):
    code: ClassVar[int] = 0x27

    def __init__(
        self,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        message_annotations: Map | None = None,
    ) -> None:
        self.delivery_failed = delivery_failed
        self.undeliverable_here = undeliverable_here
        self.message_annotations = message_annotations

    def fields(self) -> list[object]:
        return [self.delivery_failed, self.undeliverable_here, self.message_annotations]


class Declared(DeliveryState):
    code: ClassVar[int] = 0x33

    def __init__(self, txn_id: bytes) -> None:
        self.txn_id = txn_id

    def fields(self) -> list[object]:
        return [self.txn_id]


class TransactionalState(DeliveryState):
    code: ClassVar[int] = 0x34

    def __init__(self, txn_id: bytes, outcome: DeliveryState | None = None) -> None:
        self.txn_id = txn_id
        self.outcome = outcome

    def fields(self) -> list[object]:
        return [self.txn_id, self.outcome]


ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


# --- transactions ----------------------------------------------------------------------------------------------------


class Declare(Composite):
    """Sent as the amqp-value of a message to a coordinator [4.5.2]."""

    code: ClassVar[int] = 0x31

    def __init__(self, global_id: Described | None = None) -> None:
        self.global_id = global_id

    def fields(self) -> list[object]:
        return [self.global_id]


class Discharge(Composite):
    code: ClassVar[int] = 0x32

    def __init__(self, txn_id: bytes, fail: bool = False) -> None:
        self.txn_id = txn_id
        self.fail = fail

    def fields(self) -> list[object]:
        return [self.txn_id, self.fail]


# --- termini ---------------------------------------------------------------------------------------------------------


class Source(Terminus):
    code: ClassVar[int] = 0x28

    def __init__(
        self,
        address: str | None = None,
        durable: int = 0,
        expiry_policy: str = "session-end",
        timeout: int = 0,
        dynamic: bool = False,
        dynamic_node_properties: Map | None = None,
        distribution_mode: str | None = None,
        filter: Map | None = None,
        default_outcome: DeliveryState | None = None,
        outcomes: list[str] | None = None,
        capabilities: list[str] | None = None,
    ) -> None:
        self.address = address
        self.durable = durable
        self.expiry_policy = expiry_policy
        self.timeout = timeout
        self.dynamic = dynamic
        self.dynamic_node_properties = dynamic_node_properties
        self.distribution_mode = distribution_mode
        self.filter = filter
        self.default_outcome = default_outcome
        self.outcomes = outcomes
        self.capabilities = capabilities

    def fields(self) -> list[object]:
        return [
            self.address,
            UInt(self.durable),
            Symbol(self.expiry_policy),
            UInt(self.timeout),
            self.dynamic,
            self.dynamic_node_properties,
            _symbol(self.distribution_mode),
            self.filter,
            self.default_outcome,
            _symbols(self.outcomes),
            _symbols(self.capabilities),
        ]


class Target(Terminus):
    code: ClassVar[int] = 0x29

    def __init__(
        self,
        address: str | None = None,
        durable: int = 0,
        expiry_policy: str = "session-end",
        timeout: int = 0,
        dynamic: bool = False,
        dynamic_node_properties: Map | None = None,
        capabilities: list[str] | None = None,
    ) -> None:
        self.address = address
        self.durable = durable
        self.expiry_policy = expiry_policy
        self.timeout = timeout
        self.dynamic = dynamic
        self.dynamic_node_properties = dynamic_node_properties
        self.capabilities = capabilities

    def fields(self) -> list[object]:
        return [
            self.address,
            UInt(self.durable),
            Symbol(self.expiry_policy),
            UInt(self.timeout),
            self.dynamic,
            self.dynamic_node_properties,
            _symbols(self.capabilities),
        ]


class Coordinator(Terminus):
    """The target of a link that controls transactions [4.5.1]."""

    code: ClassVar[int] = 0x30

    def __init__(self, capabilities: list[str] | None = None) -> None:
        self.capabilities = capabilities

    def fields(self) -> list[object]:
        return [_symbols(self.capabilities)]


# --- performatives ---------------------------------------------------------------------------------------------------


class Open(Performative):
    code: ClassVar[int] = 0x10

    def __init__(
        self,
        container_id: str,
        hostname: str | None = None,
        max_frame_size: int = UINT_MAX,
        channel_max: int = USHORT_MAX,
        idle_time_out: int | None = None,
        outgoing_locales: list[str] | None = None,
        incoming_locales: list[str] | None = None,
        offered_capabilities: list[str] | None = None,
        desired_capabilities: list[str] | None = None,
        properties: Map | None = None,
    ) -> None:
        self.container_id = container_id
        self.hostname = hostname
        self.max_frame_size = max_frame_size
        self.channel_max = channel_max
        self.idle_time_out = idle_time_out
        self.outgoing_locales = outgoing_locales
        self.incoming_locales = incoming_locales
        self.offered_capabilities = offered_capabilities
        self.desired_capabilities = desired_capabilities
        self.properties = properties

    def fields(self) -> list[object]:
        return [
            self.container_id,
            self.hostname,
            UInt(self.max_frame_size),
            UShort(self.channel_max),
            _uint(self.idle_time_out),
            _symbols(self.outgoing_locales),
            _symbols(self.incoming_locales),
            _symbols(self.offered_capabilities),
            _symbols(self.desired_capabilities),
            self.properties,
        ]


class Begin(Performative):
    code: ClassVar[int] = 0x11

    def __init__(
        self,
        remote_channel: int | None,
        next_outgoing_id: int,
        incoming_window: int,
        outgoing_window: int,
        handle_max: int = UINT_MAX,
        offered_capabilities: list[str] | None = None,
        desired_capabilities: list[str] | None = None,
        properties: Map | None = None,
    ) -> None:
        self.remote_channel = remote_channel
        self.next_outgoing_id = next_outgoing_id
        self.incoming_window = incoming_window
        self.outgoing_window = outgoing_window
        self.handle_max = handle_max
        self.offered_capabilities = offered_capabilities
        self.desired_capabilities = desired_capabilities
        self.properties = properties

    def fields(self) -> list[object]:
        return [
            _ushort(self.remote_channel),
            UInt(self.next_outgoing_id),
            UInt(self.incoming_window),
            UInt(self.outgoing_window),
            UInt(self.handle_max),
            _symbols(self.offered_capabilities),
            _symbols(self.desired_capabilities),
            self.properties,
        ]


class Attach(Performative):
    code: ClassVar[int] = 0x12

    def __init__(
        self,
        name: str,
        handle: int,
        role: bool,
        snd_settle_mode: int = SND_MIXED,
        rcv_settle_mode: int = RCV_FIRST,
        source: Source | None = None,
        target: Terminus | None = None,
        unsettled: Map | None = None,
        incomplete_unsettled: bool = False,
        initial_delivery_count: int | None = None,
        max_message_size: int | None = None,
        offered_capabilities: list[str] | None = None,
        desired_capabilities: list[str] | None = None,
        properties: Map | None = None,
    ) -> None:
        self.name = name
        self.handle = handle
        self.role = role
        self.snd_settle_mode = snd_settle_mode
        self.rcv_settle_mode = rcv_settle_mode
        self.source = source
        self.target = target
        self.unsettled = unsettled
        self.incomplete_unsettled = incomplete_unsettled
        self.initial_delivery_count = initial_delivery_count
        self.max_message_size = max_message_size
        self.offered_capabilities = offered_capabilities
        self.desired_capabilities = desired_capabilities
        self.properties = properties

    def fields(self) -> list[object]:
        return [
            self.name,
            UInt(self.handle),
            self.role,
            UByte(self.snd_settle_mode),
            UByte(self.rcv_settle_mode),
            self.source,
            self.target,
            self.unsettled,
            self.incomplete_unsettled,
            _uint(self.initial_delivery_count),
            _ulong(self.max_message_size),
            _symbols(self.offered_capabilities),
            _symbols(self.desired_capabilities),
            self.properties,
        ]


class Flow(Performative):
    code: ClassVar[int] = 0x13

    def __init__(
        self,
        next_incoming_id: int | None,
        incoming_window: int,
        next_outgoing_id: int,
        outgoing_window: int,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        available: int | None = None,
        drain: bool = False,
        echo: bool = False,
        properties: Map | None = None,
    ) -> None:
        self.next_incoming_id = next_incoming_id
        self.incoming_window = incoming_window
        self.next_outgoing_id = next_outgoing_id
        self.outgoing_window = outgoing_window
        self.handle = handle
        self.delivery_count = delivery_count
        self.link_credit = link_credit
        self.available = available
        self.drain = drain
        self.echo = echo
        self.properties = properties

    def fields(self) -> list[object]:
        return [
            _uint(self.next_incoming_id),
            UInt(self.incoming_window),
            UInt(self.next_outgoing_id),
            UInt(self.outgoing_window),
            _uint(self.handle),
            _uint(self.delivery_count),
            _uint(self.link_credit),
            _uint(self.available),
            self.drain,
            self.echo,
            self.properties,
        ]


class Transfer(Performative):
    """The payload is not part of it: it follows in the frame."""

    code: ClassVar[int] = 0x14

    def __init__(
        self,
        handle: int,
        delivery_id: int | None = None,
        delivery_tag: bytes | None = None,
        message_format: int | None = None,
        settled: bool | None = None,
        more: bool = False,
        rcv_settle_mode: int | None = None,
        state: DeliveryState | None = None,
        resume: bool = False,
        aborted: bool = False,
        batchable: bool = False,
    ) -> None:
        self.handle = handle
        self.delivery_id = delivery_id
        self.delivery_tag = delivery_tag
        self.message_format = message_format
        self.settled = settled
        self.more = more
        self.rcv_settle_mode = rcv_settle_mode
        self.state = state
        self.resume = resume
        self.aborted = aborted
        self.batchable = batchable

    def fields(self) -> list[object]:
        return [
            UInt(self.handle),
            _uint(self.delivery_id),
            self.delivery_tag,
            _uint(self.message_format),
            self.settled,
            self.more,
            _ubyte(self.rcv_settle_mode),
            self.state,
            self.resume,
            self.aborted,
            self.batchable,
        ]


class Disposition(Performative):
    code: ClassVar[int] = 0x15

    def __init__(
        self,
        role: bool,
        first: int,
        last: int | None = None,
        settled: bool = False,
        state: DeliveryState | None = None,
        batchable: bool = False,
    ) -> None:
        self.role = role
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state
        self.batchable = batchable

    def fields(self) -> list[object]:
        return [self.role, UInt(self.first), _uint(self.last), self.settled, self.state, self.batchable]


class Detach(Performative):
    code: ClassVar[int] = 0x16

    def __init__(self, handle: int, closed: bool = False, error: AmqpError | None = None) -> None:
        self.handle = handle
        self.closed = closed
        self.error = error

    def fields(self) -> list[object]:
        return [UInt(self.handle), self.closed, self.error]


class End(Performative):
    code: ClassVar[int] = 0x17

    def __init__(self, error: AmqpError | None = None) -> None:
        self.error = error

    def fields(self) -> list[object]:
        return [self.error]


class Close(Performative):
    code: ClassVar[int] = 0x18

    def __init__(self, error: AmqpError | None = None) -> None:
        self.error = error

    def fields(self) -> list[object]:
        return [self.error]


# --- SASL ------------------------------------------------------------------------------------------------------------


class SaslMechanisms(SaslBody):
    code: ClassVar[int] = 0x40

    def __init__(self, sasl_server_mechanisms: list[str]) -> None:
        self.sasl_server_mechanisms = sasl_server_mechanisms

    def fields(self) -> list[object]:
        return [symbols(self.sasl_server_mechanisms)]


class SaslInit(SaslBody):
    code: ClassVar[int] = 0x41

    def __init__(self, mechanism: str, initial_response: bytes | None = None, hostname: str | None = None) -> None:
        self.mechanism = mechanism
        self.initial_response = initial_response
        self.hostname = hostname

    def fields(self) -> list[object]:
        return [Symbol(self.mechanism), self.initial_response, self.hostname]


class SaslChallenge(SaslBody):
    code: ClassVar[int] = 0x42

    def __init__(self, challenge: bytes) -> None:
        self.challenge = challenge

    def fields(self) -> list[object]:
        return [self.challenge]


class SaslResponse(SaslBody):
    code: ClassVar[int] = 0x43

    def __init__(self, response: bytes) -> None:
        self.response = response

    def fields(self) -> list[object]:
        return [self.response]


class SaslOutcome(SaslBody):
    # The field is called `code` too; `outcome` keeps it apart from the descriptor code.
    code: ClassVar[int] = 0x44

    def __init__(self, outcome: int, additional_data: bytes | None = None) -> None:
        self.outcome = outcome
        self.additional_data = additional_data

    def fields(self) -> list[object]:
        return [UByte(self.outcome), self.additional_data]
