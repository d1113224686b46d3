"""`/$spillway/clock`: what time it is for a namespace, and later on purpose."""

import math
from typing import Any

from spillway.admin.durations import moment_text
from spillway.admin.http_refusals import bad_request
from spillway.admin.namespace import AdministeredNamespace
from spillway.admin.resource import ControlCall, refuse_unknown


class ClockResource:
    methods = ("GET", "POST")

    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace

    async def answer(self, call: ControlCall) -> object:
        """The time. After a POST, what was due by then has happened and is durable, if `is_settled` says so."""
        if call.method == "GET":
            return self.time()
        refuse_unknown(call.body, ("advance_s",))
        is_settled = await self.namespace.advance(read_advance_ms(call.body))
        return {**self.time(), "is_settled": is_settled}

    def time(self) -> dict[str, object]:
        now_ms = self.namespace.now_ms()
        return {
            "time": moment_text(now_ms),
            "ahead_s": (now_ms - self.namespace.real_ms()) / 1000,
            "is_movable": self.namespace.is_clock_movable,
        }


def read_advance_ms(body: dict[str, Any]) -> int:
    seconds = body.get("advance_s")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise bad_request("'advance_s' must be a number of seconds, 0 or more: time does not go back.")
    return int(seconds * 1000)
