"""`/$spillway/faults`: what goes wrong on purpose (docs/faults.md)."""

import logging
from collections.abc import Callable

from spillway.admin.http_refusals import HttpRefusal, bad_request
from spillway.admin.namespace import AdministeredNamespace
from spillway.admin.resource import ControlCall
from spillway.broker.commands import InjectFault, ListFaults, RemoveFaults, Request
from spillway.broker.effects import Failed, FaultsListed
from spillway.model.faults import FaultReport, fault_from_plain
from spillway.model.texts import count_text

log = logging.getLogger(__name__)


class InjectedFaults:
    methods = ("GET", "POST", "DELETE")

    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace

    async def answer(self, call: ControlCall) -> object:
        if call.method == "POST":
            return await self.inject(call)
        if call.body:
            raise bad_request(f"{call.method} takes no body.")
        number = read_number(call.rest)
        if call.method == "GET":
            reports = await self.ask(lambda request: ListFaults(request, ""))
            if not number:
                return {"faults": [report.to_plain() for report in reports]}
            for report in reports:
                if report.number == number:
                    return report.to_plain()
            raise HttpRefusal(404, f"There is no fault {number}. List the faults to see their numbers.")
        removed = await self.ask(lambda request: RemoveFaults(request, number))
        log.warning("namespace=%s removed: %s", self.namespace.name, count_text(len(removed), "fault"))
        return removed[0].to_plain() if number else {"removed": len(removed)}

    async def inject(self, call: ControlCall) -> object:
        if call.rest:
            raise bad_request("A fault gets its number when it is planted: POST to '/$spillway/faults'.")
        fault = fault_from_plain(call.body)
        (report,) = await self.ask(lambda request: InjectFault(request, fault))
        log.warning("namespace=%s fault %d is planted on purpose: %s", self.namespace.name, report.number, fault.kind)
        return report.to_plain()

    async def ask(self, make_request: Callable[[int], Request]) -> list[FaultReport]:
        answer = await self.namespace.pump.ask(make_request)
        if isinstance(answer, Failed):
            raise answer.error
        assert isinstance(answer, FaultsListed), "faults were asked for"
        return answer.reports


def read_number(text: str) -> int:
    """0: none is named."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) == 0:
        raise bad_request(f"'{text[:100]}' is no number of a fault.")
    return int(text)
