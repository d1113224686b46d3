"""The syphon of a pairing: the standing one of `spillway.syphon`, with what two factories know and want to hear.

It speaks to both namespaces over connections of its own, which copy bytes. Options of the SDK that those cannot honour
are refused while pairing.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

from azure.servicebus import TransportType

from spillway.model.aliases import Malformed
from spillway.model.failures import Blame
from spillway.paired import events
from spillway.paired.access import NamespaceAccess
from spillway.paired.errors import PairingError
from spillway.paired.failures import failure_of
from spillway.paired.ledger import EMPTY_RECEIVE, RECEIVE, RENEW, SEND, SETTLE
from spillway.paired.namespace import FactoryNamespace
from spillway.paired.options import SendAvailabilityPairedNamespaceOptions
from spillway.paired.pairing import Pairing
from spillway.paired.preflight import cannot
from spillway.syphon.destinations import Opener
from spillway.syphon.openers import opener_of_host, opener_of_string
from spillway.syphon.standing import StandingSyphon

# What a way around the usual one needs, and only the SDK has.
NOT_HONOURED: Final = ("http_proxy", "ssl_context", "custom_endpoint_address")


def check_syphon(primary: FactoryNamespace, options: SendAvailabilityPairedNamespaceOptions) -> None:
    """`PairingError` if the syphon could not reach a namespace as its factory does."""
    opener_of(primary, "the primary's factory")
    opener_of(options.messaging_factory, "messaging_factory")


async def start_syphon(pairing: Pairing, deadline_s: float) -> StandingSyphon:
    """`PairingError` if it may not receive from the backlog. One that is not answered in time goes on trying."""
    syphon = make_syphon(pairing)
    syphon.start()
    try:
        refusal = await _refusal_of(syphon, deadline_s)
        if refusal is not None and failure_of(refusal).blame is Blame.CALLER:
            raise cannot("receive from", pairing.options, syphon.queues[0].path, refusal) from refusal
    except BaseException:
        await syphon.close()
        raise
    return syphon


async def _refusal_of(syphon: StandingSyphon, deadline_s: float) -> Exception | None:
    try:
        async with asyncio.timeout_at(deadline_s):
            return await syphon.tried()
    except TimeoutError:
        return None


def make_syphon(pairing: Pairing) -> StandingSyphon:
    """A syphon for all backlog queues, also for those that pairing did not get to: other programs may have, and what
    they divert there must come home."""
    options = pairing.options
    paths = [queue.path for queue in pairing.rotation.queues] + pairing.missed_backlog_paths
    return StandingSyphon(
        opener_of(pairing.primary, "the primary's factory"),
        opener_of(pairing.secondary, "messaging_factory"),
        paths,
        PairingObserver(pairing),
        ttl=options.ttl,
        long_poll_s=options.syphon_long_poll.total_seconds(),
        operation_timeout_s=pairing.secondary.operation_timeout_s,
    )


def opener_of(factory: FactoryNamespace, parameter: str) -> Opener:
    """Connections as this factory's SDK makes them. `PairingError` if that cannot be."""
    options: dict[str, Any] = factory.sdk_options
    for name in NOT_HONOURED:
        if options.get(name):
            raise PairingError(
                f"enable_syphon: {parameter} has the option {name}, which the syphon cannot honour: it has connections "
                "of its own. Syphon in a program without it, or with the command `spillway syphon`"
            )
    verify = options.get("connection_verify")
    if verify and not isinstance(verify, (str, Path)):
        raise PairingError(f"enable_syphon: {parameter} has a connection_verify that is no path of a file")
    transport = options.get("transport_type", TransportType.Amqp)
    shared = {
        "ca_file": verify or None,
        "is_websocket": getattr(transport, "value", transport) == TransportType.AmqpOverWebsocket.value,
        "operation_timeout_s": factory.operation_timeout_s,
    }
    try:
        return _opener(factory.access, shared, is_clear=options.get("use_tls") is False)
    except ValueError as error:
        raise PairingError(f"enable_syphon: {parameter} cannot be used by the syphon: {error}") from error


def _opener(access: NamespaceAccess, shared: dict[str, Any], is_clear: bool) -> Opener:
    if access.connection_string is not None:
        return opener_of_string(access.connection_string, **shared)
    return opener_of_host(access.host, access.credential, is_clear=is_clear, **shared)


class PairingObserver:
    """What the syphon does, as events of the pairing and operations of the two ledgers."""

    def __init__(self, pairing: Pairing) -> None:
        self._tell = pairing.primary.events.tell
        self._of_primary = pairing.primary.ledger
        self._of_secondary = pairing.secondary.ledger

    def syphoned(self, path: str, count: int, queue: str) -> None:
        self._tell(events.SYPHONED, path, count, queue=queue)

    def kept(self, path: str, error: Exception, queue: str, held: int) -> None:
        self._tell(events.SYPHON_KEPT, path, error=error, queue=queue, held=held)

    def message_kept(self, queue: str, error: Exception, sequence_number: int) -> None:
        self._tell(events.SYPHON_KEPT, queue, error=error, sequence_number=sequence_number)

    def dead_lettered(self, queue: str, error: Malformed) -> None:
        self._tell(events.SYPHON_DEAD_LETTERED, queue, error=error)

    def repeated(self, queue: str, error: Exception) -> None:
        self._tell(events.SYPHON_REPEATED, queue, error=error)

    def polled(self, queue: str, received: int) -> None:
        self._tell(events.SYPHON_POLLED, queue, received=received)

    def interrupted(self, queue: str, error: Exception) -> None:
        self._tell(events.SYPHON_INTERRUPTED, queue, error=error)

    def count_receive(self, queue: str, size_bytes: int) -> None:
        self._of_secondary.count(queue, RECEIVE, size_bytes)

    def count_empty_receive(self, queue: str) -> None:
        self._of_secondary.count(queue, EMPTY_RECEIVE)

    def count_settle(self, queue: str) -> None:
        self._of_secondary.count(queue, SETTLE)

    def count_renew(self, queue: str) -> None:
        self._of_secondary.count(queue, RENEW)

    def count_send(self, path: str, size_bytes: int) -> None:
        self._of_primary.count(path, SEND, size_bytes)
