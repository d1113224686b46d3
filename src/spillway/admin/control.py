"""Our own API beside Azure's: JSON under `/$spillway/`, for what the SDKs have no words for.

`$` begins no entity's name, so nothing of Azure's API is hidden by it. A resource is a class with one method per verb;
`Control` finds it by the first word of the path. Who asks has shown the right Manage before anything here is called.
"""

import json
from typing import Any, Final
from urllib.parse import parse_qsl

from spillway import __version__
from spillway.admin.clock import ClockResource
from spillway.admin.config import ConfigResource
from spillway.admin.durations import moment_text
from spillway.admin.fault_injection import InjectedFaults
from spillway.admin.http_refusals import HttpRefusal, bad_request
from spillway.admin.ledger import LedgerResource
from spillway.admin.namespace import AdministeredNamespace
from spillway.admin.resource import ControlCall, Resource

PREFIX: Final = "$spillway"


def is_control(path: str) -> bool:
    """Whether a decoded path leads here."""
    return path.lower() == PREFIX or path.lower().startswith(PREFIX + "/")


class Control:
    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.resources: dict[str, Resource] = {
            "clock": ClockResource(namespace),
            "config": ConfigResource(namespace),
            "counts": CountsResource(namespace),
            "faults": InjectedFaults(namespace),
            "ledger": LedgerResource(namespace),
            "status": Status(namespace),
        }

    async def answer(self, method: str, path: str, query: str, body: bytes) -> str:
        name, _, rest = path[len(PREFIX) + 1 :].partition("/")
        resource = self.resources.get(name.lower())
        if resource is None:
            known = ", ".join(sorted(self.resources))
            raise HttpRefusal(404, f"There is no '/{PREFIX}/{name[:100]}'. There is: {known}.")
        if method not in resource.methods:
            raise HttpRefusal(405, f"'{name}' takes {', '.join(resource.methods)}, not {method[:20]}.")
        call = ControlCall(method, rest, read_query(query), read_json(body))
        return json.dumps(await resource.answer(call)) + "\n"


def read_query(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in found:
            raise bad_request(f"'{name[:100]}' is in the query more than once.")
        found[name] = value
    return found


def read_json(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        value = json.loads(body, object_pairs_hook=each_once)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is not JSON: {str(error)[:200]}.") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    return value


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"'{name[:100]}' is in it more than once")
        found[name] = value
    return found


class Status:
    """What a namespace is and holds, in numbers that cost nothing to say."""

    methods = ("GET",)

    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace

    async def answer(self, call: ControlCall) -> object:
        return {
            "namespace": self.namespace.name,
            "version": __version__,
            "time": moment_text(self.namespace.now_ms()),
            **self.namespace.facts(),
        }


class CountsResource:
    """What each queue, topic and subscription holds, by name, as far as one answer goes."""

    methods = ("GET",)

    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace

    async def answer(self, call: ControlCall) -> object:
        return self.namespace.counts()
