"""Faults of a namespace that is served in this process: the words of `client.faults.RemoteFaults`, awaited."""

from collections.abc import Callable

from spillway.broker.commands import InjectFault, ListFaults, RemoveFaults, Request
from spillway.broker.effects import Failed, FaultsListed
from spillway.model.errors import EntityNotFound
from spillway.model.faults import Fault, FaultReport
from spillway.server.pump import Pump


class NamespaceFaults:
    """On the loop of the pump. Raises `BrokerError` if there are too many, or none with that number."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    async def add(self, fault: Fault) -> FaultReport:
        (report,) = await self._ask(lambda number: InjectFault(number, fault))
        return report

    async def all(self) -> list[FaultReport]:
        return await self._ask(lambda number: ListFaults(number, ""))

    async def get(self, number: int) -> FaultReport:
        for report in await self.all():
            if report.number == number:
                return report
        raise EntityNotFound(f"There is no fault {number}. List the faults to see their numbers.")

    async def remove(self, number: int) -> FaultReport:
        (report,) = await self._ask(lambda request: RemoveFaults(request, number))
        return report

    async def clear(self) -> int:
        return len(await self._ask(lambda number: RemoveFaults(number, 0)))

    async def _ask(self, make_request: Callable[[int], Request]) -> list[FaultReport]:
        answer = await self._pump.ask(make_request)
        if isinstance(answer, Failed):
            raise answer.error
        assert isinstance(answer, FaultsListed), "faults were asked for"
        return answer.reports
