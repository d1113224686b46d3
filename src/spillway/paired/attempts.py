"""Attempts to pair a factory: one that the caller waits for, or one after the other in the background.

Each attempt is the whole of it: preflight, then the pairing and its syphon. One that fails leaves nothing behind, and
the options as they were.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

from spillway.paired import events
from spillway.paired.errors import MessagingError, PairingError
from spillway.paired.lifetime import Partners
from spillway.paired.namespace import FactoryNamespace
from spillway.paired.options import SendAvailabilityPairedNamespaceOptions
from spillway.paired.pairing import Pairing, PairingSlot
from spillway.paired.preflight import prepare, refuse_pair
from spillway.paired.shutdown import end

if TYPE_CHECKING:
    from spillway.syphon.standing import StandingSyphon

FIRST_PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0  # between two attempts in the background
RECEIVE_CHECK_S: Final = 1.0  # at least, however long the rest has taken

State = Literal["unpaired", "pairing", "paired"]


class Attempts:
    """Attempts to pair one factory, of which one is under way at a time. `error` is why the last one failed."""

    def __init__(self, primary: FactoryNamespace, slot: PairingSlot) -> None:
        self.primary = primary
        self.slot = slot
        self.error: BaseException | None = None
        self._is_pairing = False
        self._task: asyncio.Task[None] | None = None  # of those in the background

    @property
    def state(self) -> State:
        if self.slot.pairing is not None:
            return "paired"
        return "pairing" if self._is_pairing else "unpaired"

    async def pair(self, options: object) -> None:
        """Make one attempt to pair."""
        checked = self._begin(options)
        try:
            await self._attempt(checked)
        finally:
            self._end(checked)

    def pair_in_background(self, options: object) -> None:
        """Attempts until one succeeds, is refused for good, or the factory is closed. Wrong options raise at once."""
        checked = self._begin(options)
        self._task = asyncio.get_running_loop().create_task(self._keep_trying(checked))

    async def close(self) -> None:
        if self._task is not None:
            await end(self._task)

    # -- one after the other --------------------------------------------------------------------------------------

    async def _keep_trying(self, options: SendAvailabilityPairedNamespaceOptions) -> None:
        loop = asyncio.get_running_loop()
        try:
            for pause_s in pauses(options.chance):
                try:
                    await self._attempt(options)
                    return
                except Exception as error:  # it has been told, and stays visible
                    if not (isinstance(error, MessagingError) and error.is_transient):
                        return
                await self.primary.rest(loop.time() + pause_s)
                if self.primary.is_closed:
                    return
        finally:
            self._end(options)

    def _begin(self, options: object) -> SendAvailabilityPairedNamespaceOptions:
        self.primary.check_open()
        if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
            raise TypeError("options must be SendAvailabilityPairedNamespaceOptions, the only kind of pairing there is")
        if self._is_pairing:
            raise PairingError("pair_namespace: this factory is being paired already; a factory has one partner")
        refuse_pair(self.primary, self.slot.pairing is not None, options)
        if options.enable_syphon:
            from spillway.paired.syphoning import check_syphon  # who only sends needs none of it

            check_syphon(self.primary, options)
        assert self._task is None or self._task.done(), "one attempt is under way at a time"
        self._is_pairing = options.is_being_paired = True
        self.error = None
        return options

    def _end(self, options: SendAvailabilityPairedNamespaceOptions) -> None:
        assert self._is_pairing, "what ends has begun, and ends once"
        self._is_pairing = options.is_being_paired = False

    # -- one ------------------------------------------------------------------------------------------------------

    async def _attempt(self, options: SendAvailabilityPairedNamespaceOptions) -> None:
        try:
            pairing, syphon = await self._make(options)
        except Exception as error:
            self.error = error
            if not self.primary.is_closed:
                self.primary.events.tell(events.PAIRING_FAILED, error=error, secondary=options.messaging_factory.host)
            raise
        self.error = None
        self._set(pairing, syphon, options)

    async def _make(self, options: SendAvailabilityPairedNamespaceOptions) -> "tuple[Pairing, StandingSyphon | None]":
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.primary.operation_timeout_s
        options.messaging_factory.check_open()
        backlog = await prepare(self.primary, options, deadline_s)
        self.primary.check_open()
        for path, problem in backlog.missed.items():
            self.primary.events.tell(events.BACKLOG_QUEUE_REMOVED, path, error=problem)
        pairing = Pairing(self.primary, options, backlog.paths, list(backlog.missed))
        if not options.enable_syphon:
            return pairing, None
        from spillway.paired.syphoning import start_syphon

        syphon = await start_syphon(pairing, max(deadline_s, loop.time() + RECEIVE_CHECK_S))
        if self.primary.is_closed:
            await syphon.close()
            self.primary.check_open()
        return pairing, syphon

    def _set(
        self, pairing: Pairing, syphon: "StandingSyphon | None", options: SendAvailabilityPairedNamespaceOptions
    ) -> None:
        primary, secondary = self.primary, options.messaging_factory
        assert self.slot.pairing is None, "a factory has one partner"
        assert not primary.is_closed, "what is closed is not paired"
        self.slot.pairing = options.pairing = pairing
        primary.judge = secondary.judge = options.policy.judge
        primary.events.tell(
            events.PAIRED,
            secondary=secondary.host,
            backlog_queues=len(pairing.rotation.queues),
            failover_interval_s=options.failover_interval.total_seconds(),
            ping_interval_s=options.ping_primary_interval.total_seconds(),
            is_syphon=options.enable_syphon,
        )
        if syphon is not None:
            self.slot.syphon = syphon
            secondary.syphons_fed.append(syphon)
            Partners(primary, secondary).watch_each_other()


def pauses(chance: random.Random) -> Iterator[float]:
    """Seconds between attempts: twice as long each time, up to a bound. Programs that started together do not come
    back together."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s * chance.uniform(0.5, 1.0)
        pause_s = min(PAUSE_MAX_S, pause_s * 2)
