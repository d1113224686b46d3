"""What an administrator hears of a refusal, in the service's words (docs/wire.md, "Refusals over HTTP")."""

from typing import Final

from spillway.model.errors import (
    BrokerError,
    EntityAlreadyExists,
    EntityNotFound,
    QuotaExceeded,
    ServerBusy,
)

MORE: Final = "To know more visit https://aka.ms/sbResourceMgrExceptions. "
NOT_CLAIMED: Final = "claim is empty or token is invalid."
MANAGE_NEEDED: Final = "Manage,EntityRead claims required for this operation."


# What is done to a part of a topic, by method and by what the path points at.
_PART_OPERATIONS: Final = {
    ("GET", "subscription"): "GetSubscription",
    ("PUT", "subscription"): "CreateOrUpdateSubscription",
    ("DELETE", "subscription"): "DeleteSubscription",
    ("GET", "subscriptions"): "EnumerateSubscriptions",
    ("GET", "rule"): "GetRule",
    ("PUT", "rule"): "CreateOrUpdateRule",
    ("DELETE", "rule"): "DeleteRule",
    ("GET", "rules"): "EnumerateRules",
}


class HttpRefusal(Exception):
    """A request that is answered with an error. `detail` goes before the tracking id."""

    def __init__(self, status: int, detail: str, closes: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.closes = closes  # the rest of the request is not read: nothing after it can be understood


class RightMissing(HttpRefusal):
    """The token is good, the right Manage is not in it."""


def right_missing(problem: str, method: str, kind: str, place: str) -> RightMissing:
    """Worded by what was asked for, as the service does; `place` is the address of a part of a topic."""
    operation = _PART_OPERATIONS.get((method, kind))
    if operation is not None:
        return RightMissing(
            401, f"SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation on '{place}'."
        )
    claim = {"PUT": "EntityWrite", "DELETE": "EntityDelete"}.get(method)
    return RightMissing(
        401, problem if claim is None else f"Authorization failed for specified action: Manage,{claim}."
    )


def bad_request(detail: str) -> HttpRefusal:
    return HttpRefusal(400, f"SubCode=40000. {detail}")


def bad_value(text: str, name: str, value: str) -> HttpRefusal:
    """A value out of range in .NET's words, carriage returns included."""
    return bad_request(f"{text}\r\nParameter name: {name}\r\nActual value was {value}.")


def unserved(what: str) -> HttpRefusal:
    return bad_request(f"{what}: this version of Spillway does not serve it.")


def exists_already() -> HttpRefusal:
    return HttpRefusal(
        409,
        "SubCode=40900. Conflict. You're requesting an operation that isn't allowed in the resource's current state. "
        f"{MORE}.",
    )


def part_exists_already(shown: str) -> HttpRefusal:
    return HttpRefusal(409, f"The messaging entity '{shown}' already exists. {MORE}")


def nothing_to_delete() -> HttpRefusal:
    return HttpRefusal(404, "No service is hosted at the specified address.")


def nothing_to_update() -> HttpRefusal:
    return HttpRefusal(404, f"SubCode=40400. Not Found. The Operation doesn't exist. {MORE}.")


def part_not_found(shown: str) -> HttpRefusal:
    """`shown`: namespace:Topic:topic|subscription|rule."""
    return HttpRefusal(404, f"Entity '{shown}' was not found. {MORE}")


def may_not_forward(path: str, header: str) -> HttpRefusal:
    return HttpRefusal(
        401,
        f"MissingToken: forwarding to '{path[:300]}' needs a token with the claim Send for it: that of the request, or "
        f"one in the header {header}.",
    )


def changed_meanwhile() -> HttpRefusal:
    return HttpRefusal(
        412, "SubCode=41200. The entity has changed since: its ETag is another one than If-Match asks for."
    )


def on_purpose(error: BrokerError) -> HttpRefusal:
    """What a fault on purpose refuses: any error there is, with the status it has."""
    if isinstance(error, ServerBusy):
        return of_broker(error)
    return HttpRefusal(error.status_code, f"SubCode={error.status_code}00. {error.description}")


def of_broker(error: BrokerError) -> HttpRefusal:
    """What the core refused for a reason of its own."""
    if isinstance(error, EntityAlreadyExists):
        return HttpRefusal(409, f"SubCode=40900. Conflict. {error.description}")
    if isinstance(error, EntityNotFound):
        return HttpRefusal(404, f"SubCode=40400. Not Found. {error.description}")
    if isinstance(error, QuotaExceeded):
        return HttpRefusal(403, f"SubCode=40300. {error.description}")
    if isinstance(error, ServerBusy):
        return HttpRefusal(503, f"SubCode=50004. {error.description}")
    if error.status_code >= 500:
        return HttpRefusal(500, f"SubCode=50000. {error.description}")
    return HttpRefusal(400, f"SubCode=40000. {error.description}")
