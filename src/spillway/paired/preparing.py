"""What `pair_namespace` does before anything is paired: refuse what cannot work, make the backlog queues, try the keys.

A mistake in how the secondary is reached would else show in the middle of an outage (contract A17).
"""

import asyncio
from typing import TYPE_CHECKING, Final

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import (
    ServiceBusError,
)

from spillway.paired import events
from spillway.paired.backlog import backlog_path, differences
from spillway.paired.errors import PairingError
from spillway.paired.outlet import make_batch
from spillway.paired.policy import is_unauthorised

if TYPE_CHECKING:
    from spillway.paired.factory import MessagingFactory
    from spillway.paired.options import SendAvailabilityPairedNamespaceOptions

TRIES: Final = 3
PAUSE_S: Final = 0.2


def refuse_pair(primary: "MessagingFactory", options: "SendAvailabilityPairedNamespaceOptions") -> None:
    secondary, manager = options.messaging_factory, options.secondary_namespace_manager
    if primary.pairing is not None:
        raise PairingError("pair_namespace: this factory is paired already; a factory has one partner")
    if options.pairing is not None:
        raise PairingError("options: they belong to another pairing already; make new ones")
    if secondary is primary or _same_host(secondary.host, primary.host):
        raise PairingError(
            f"messaging_factory: it leads to {primary.host}, the primary itself; a backlog there would be lost with it"
        )
    if not _same_host(manager.host, secondary.host):
        raise PairingError(
            f"secondary_namespace_manager: it leads to {manager.host}, "
            f"but messaging_factory to {secondary.host}; both must be of the secondary namespace"
        )
    secondary.check_open()


async def ensure_backlog(primary: "MessagingFactory", options: "SendAvailabilityPairedNamespaceOptions") -> list[str]:
    """The backlog queues, those missing made (contract A7, C11). `PairingError` if there is none."""
    manager = options.secondary_namespace_manager
    usable: list[str] = []
    problems: dict[str, BaseException] = {}
    for index in range(options.backlog_queue_count):
        path = backlog_path(primary.namespace_name, index)
        try:
            async with asyncio.timeout(primary.operation_timeout_s):
                found, is_new = await manager.ensure_backlog_queue(path)
        except (AzureError, OSError) as error:
            problems[path] = error
            continue
        usable.append(path)
        if is_new:
            primary.events.tell(events.BACKLOG_QUEUE_CREATED, path)
        elif differing := differences(found):
            primary.events.tell(events.BACKLOG_QUEUE_DIFFERS, path, differences=",".join(differing))
    options.backlog_queue_count = len(usable)
    options.missed_backlog_paths = list(problems)
    if not usable:
        each = "; ".join(f"{path}: {_first_line(problem)}" for path, problem in problems.items())
        raise PairingError(
            f"secondary_namespace_manager: no backlog queue could be found or made on {manager.host}. {each}"
        ) from next(iter(problems.values()))
    for path, problem in problems.items():
        primary.events.tell(events.BACKLOG_QUEUE_REMOVED, path, error=problem)
    return usable


async def check_sends(options: "SendAvailabilityPairedNamespaceOptions", path: str) -> None:
    """That the secondary's factory gets a link to send on. `PairingError` if it may not, or does not get there."""
    secondary, policy = options.messaging_factory, options.policy
    deadline_s = asyncio.get_running_loop().time() + secondary.operation_timeout_s
    for tries in range(1, TRIES + 1):
        try:
            await secondary.outlet(path).call(make_batch, deadline_s)
            return
        except (ServiceBusError, OSError) as error:
            is_of_the_way = policy.is_retried(error)
            if is_of_the_way and tries < TRIES:
                await asyncio.sleep(PAUSE_S * tries)
            elif is_of_the_way or is_unauthorised(error):
                raise cannot("send to", options, path, error) from error
            else:
                return  # it is disabled, or full, or busy: the rotation finds another one when it matters


def cannot(
    what: str, options: "SendAvailabilityPairedNamespaceOptions", path: str, error: BaseException
) -> PairingError:
    host = options.messaging_factory.host
    return PairingError(f"messaging_factory: it cannot {what} '{path}' on {host}: {_first_line(error)}")


def _same_host(one: str, other: str) -> bool:
    return one.strip().lower().rstrip("/") == other.strip().lower().rstrip("/")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
