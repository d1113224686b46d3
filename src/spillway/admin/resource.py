"""What is put to a resource of the JSON API, and what a resource is."""

from dataclasses import dataclass
from typing import Any, Protocol

from spillway.admin.http_refusals import bad_request


@dataclass(frozen=True)
class ControlCall:
    method: str
    rest: str  # of the path, behind the resource's name: "" or a name
    query: dict[str, str]
    body: dict[str, Any]  # what was sent as JSON; empty if nothing was


class Resource(Protocol):
    """`answer` returns what is written as JSON, or raises `Fault` or `BrokerError`."""

    @property
    def methods(self) -> tuple[str, ...]: ...

    async def answer(self, call: ControlCall) -> object: ...


def refuse_unknown(body: dict[str, Any], keys: tuple[str, ...]) -> None:
    """A slip in a name must not pass for something that was left out."""
    for name in body:
        if name not in keys:
            raise bad_request(f"'{name[:100]}' is not known here; the names are {', '.join(keys)}.")
