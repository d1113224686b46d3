"""What is done before anything is paired: refuse what cannot work, make the backlog queues, try the keys.

A mistake in how the secondary is reached would else show in the middle of an outage (contract A17). All of it has one
deadline, however many queues there are: a secondary that is silent takes one time-out, not one a queue.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from azure.core.exceptions import HttpResponseError
from azure.servicebus.management import QueueProperties

from spillway.model.failures import Blame
from spillway.paired import events
from spillway.paired.backlog import backlog_path, differences
from spillway.paired.errors import PairingError
from spillway.paired.failures import failure_of
from spillway.paired.namespace import FactoryNamespace
from spillway.paired.options import SendAvailabilityPairedNamespaceOptions
from spillway.paired.pool import SendFailed
from spillway.paired.problems import is_untrusted, one_line, summary
from spillway.paired.shutdown import end

QUEUES_AT_A_TIME: Final = 4  # looked at side by side: a secondary is not flooded by programs that all start at once
TRIES: Final = 3
PAUSE_S: Final = 0.2


@dataclass(frozen=True)
class FoundBacklog:
    """The backlog queues that are there, and those that could be neither found nor made, with the cause of each."""

    paths: list[str]
    missed: dict[str, BaseException]


def refuse_pair(primary: FactoryNamespace, is_paired: bool, options: SendAvailabilityPairedNamespaceOptions) -> None:
    secondary, manager = options.messaging_factory, options.secondary_namespace_manager
    if is_paired:
        raise PairingError("pair_namespace: this factory is paired already; a factory has one partner")
    if options.is_in_use:
        raise PairingError("options: another factory is paired with them; make new ones, or close that factory before")
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


async def prepare(
    primary: FactoryNamespace, options: SendAvailabilityPairedNamespaceOptions, deadline_s: float
) -> FoundBacklog:
    """The backlog queues, those missing made (contract A7, C11), and the sending key tried on the first of them.

    `PairingError` if there is no queue, or the key does not do.
    """
    search = _Search(primary, options)
    try:
        first = await search.first_found(deadline_s)
        await check_sends(options, first, deadline_s)  # while the others are still looked for
        await search.finish(deadline_s)
    finally:
        await search.close()
    return search.backlog()


class _Search:
    """One look for the backlog queues of a primary, a few at a time."""

    def __init__(self, primary: FactoryNamespace, options: SendAvailabilityPairedNamespaceOptions) -> None:
        self.primary = primary
        self.manager = options.secondary_namespace_manager
        self.paths = [backlog_path(primary.namespace_name, index) for index in range(options.asked_queue_count)]
        self.found: set[str] = set()
        self.problems: dict[str, BaseException] = {}
        self._unreachable: BaseException | None = None
        self._room = asyncio.Semaphore(QUEUES_AT_A_TIME)
        self._looks = {asyncio.get_running_loop().create_task(self._check(path)) for path in self.paths}

    async def first_found(self, deadline_s: float) -> str:
        """The first queue that is there; `PairingError` if there is none before the deadline."""
        loop = asyncio.get_running_loop()
        looking = self._looks
        while looking and not self.found and loop.time() < deadline_s:
            _, looking = await asyncio.wait(
                looking, timeout=deadline_s - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
        if not self.found:
            raise self._none()
        return min(self.found, key=self.paths.index)

    async def finish(self, deadline_s: float) -> None:
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.wait(self._looks, timeout=left_s)

    async def close(self) -> None:
        await end(*self._looks)

    def backlog(self) -> FoundBacklog:
        found = [path for path in self.paths if path in self.found]
        assert found, "a search that found nothing was given up before"
        return FoundBacklog(found, {path: self._problem(path) for path in self.paths if path not in self.found})

    async def _check(self, path: str) -> None:
        async with self._room:
            if self._unreachable is not None and not self.found:  # then the others need not find that out again
                self.problems[path] = self._unreachable
                return
            try:
                found, is_new = await self._ensure(path)
            except Exception as error:
                if not isinstance(error, HttpResponseError):
                    self._unreachable = error
                return
        self.found.add(path)
        if is_new:
            self.primary.events.tell(events.BACKLOG_QUEUE_CREATED, path)
        elif differing := differences(found):
            self.primary.events.tell(events.BACKLOG_QUEUE_DIFFERS, path, differences=",".join(differing))

    async def _ensure(self, path: str) -> tuple[QueueProperties, bool]:
        tries = 1
        while True:
            try:
                return await self.manager.ensure_backlog_queue(path)
            except Exception as error:
                self.problems[path] = error  # also if the time runs out before the next try
                if tries == TRIES or not is_transient(error):
                    raise
            await asyncio.sleep(PAUSE_S * tries)
            tries += 1

    def _problem(self, path: str) -> BaseException:
        if path in self.problems:
            return self.problems[path]
        return TimeoutError(f"no answer within {self.primary.operation_timeout_s:g} s, the operation_timeout")

    def _none(self) -> PairingError:
        problems = {path: self._problem(path) for path in self.paths}
        error = PairingError(
            f"secondary_namespace_manager: no backlog queue could be found or made on {self.manager.host}. "
            + summary(problems, "NamespaceManager")
        )
        error.is_transient = any(is_transient(problem) for problem in problems.values())
        error.__cause__ = next(iter(problems.values()))
        return error


async def check_sends(options: SendAvailabilityPairedNamespaceOptions, path: str, deadline_s: float) -> None:
    """Check that the secondary's factory gets a link to send on. `PairingError` if it may not, or does not get
    there."""
    secondary = options.messaging_factory
    loop = asyncio.get_running_loop()
    for tries in range(1, TRIES + 1):
        try:
            await secondary.pools.at(path).call(lambda sdk, _: sdk.create_message_batch(), deadline_s)
            return
        except SendFailed as failed:
            error, blame = failed.error, failed.failure.blame
            is_of_the_way = blame in (Blame.WAY, Blame.NAMESPACE)
            if is_of_the_way and tries < TRIES and loop.time() < deadline_s and not is_untrusted(error):
                await asyncio.sleep(PAUSE_S * tries)
            elif is_of_the_way or blame is Blame.CALLER:
                raise cannot("send to", options, path, error) from error
            else:
                return  # it is disabled, or full, or busy: the rotation finds another one when it matters


def cannot(what: str, options: SendAvailabilityPairedNamespaceOptions, path: str, error: BaseException) -> PairingError:
    host = options.messaging_factory.host
    refusal = PairingError(
        f"messaging_factory: it cannot {what} '{path}' on {host}: {one_line(error, 'MessagingFactory')}"
    )
    refusal.is_transient = is_transient(error)
    return refusal


def is_transient(error: BaseException) -> bool:
    """Whether a later try may get further than this one: it was the way or the moment, not what was asked for."""
    failure = failure_of(error)
    is_of_the_caller = failure.blame is Blame.CALLER and failure.is_certain
    return not (is_untrusted(error) or is_of_the_caller or failure.is_lasting)


def _same_host(one: str, other: str) -> bool:
    return one.strip().lower().rstrip("/") == other.strip().lower().rstrip("/")
