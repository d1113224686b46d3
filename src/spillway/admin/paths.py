"""What a request's path points at (docs/wire.md, "Paths and requests").

Percent-encoding is undone once, before the path is split: Python sends `a/b` as `a%2Fb`, JavaScript as it is. Names
are compared without regard to case, so the words between them are too.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from spillway.admin.http_refusals import HttpRefusal, bad_request
from spillway.model.entity import name_problem, subscription_name_problem, subscription_path
from spillway.model.rules import rule_name_problem

ROOT: Final = "root"  # the namespace's own address: the service answers it with an empty list
NAMESPACE_INFO: Final = "namespace-info"
QUEUES: Final = "queues"
TOPICS: Final = "topics"
ENTITY: Final = "entity"  # a queue or a topic
SUBSCRIPTIONS: Final = "subscriptions"
SUBSCRIPTION: Final = "subscription"
RULES: Final = "rules"
RULE: Final = "rule"

PATH_BYTES_MAX: Final = 4_096
_FIXED: Final = {
    "": ROOT,
    "$namespaceinfo": NAMESPACE_INFO,
    "$resources/queues": QUEUES,
    "$resources/topics": TOPICS,
}
_SUBSCRIPTIONS: Final = "/subscriptions"
_RULES: Final = "/rules"


@dataclass(frozen=True)
class RequestTarget:
    kind: str
    path: str  # as it was written, decoded, without slashes at its ends
    root: str = ""  # the queue or topic
    subscription: str = ""
    rule: str = ""

    @property
    def entity_path(self) -> str:
        """The queue, topic or subscription in the core's words."""
        return subscription_path(self.root, self.subscription) if self.subscription else self.root


def decode_path(raw: bytes) -> str:
    """Decode a path once: what is still encoded after that is a name with percent signs in it, and refused as such."""
    if len(raw) > PATH_BYTES_MAX:
        raise HttpRefusal(414, f"SubCode=41400. A path has at most {PATH_BYTES_MAX} bytes.")
    try:
        path = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise bad_request("The path is not UTF-8.") from None
    return path[1:-1] if path.endswith("/") and len(path) > 1 else path[1:]


def parse_target(path: str) -> RequestTarget:
    """Raises the fault that names the rule which a name breaks."""
    kind = _FIXED.get(path.lower())
    if kind is not None:
        return RequestTarget(kind, path)
    target = _split(path)
    problem = name_problem(target.root)
    if problem is None and target.subscription:
        problem = subscription_name_problem(target.entity_path)
    if problem is None and target.rule:
        problem = rule_name_problem(target.rule)
    if problem is not None:
        raise bad_request(f"'{path[:300]}' cannot be used: {problem}.")
    return target


def kind_of(path: str) -> str:
    """What a path points at; empty if nothing can be called so."""
    try:
        return parse_target(path).kind
    except HttpRefusal:
        return ""


def _split(path: str) -> RequestTarget:
    key = path.lower()
    if key.endswith(_SUBSCRIPTIONS):
        return RequestTarget(SUBSCRIPTIONS, path, path[: -len(_SUBSCRIPTIONS)])
    at = key.find(_SUBSCRIPTIONS + "/")
    if at < 0:
        return RequestTarget(ENTITY, path, path)
    root, rest = path[:at], path[at + len(_SUBSCRIPTIONS) + 1 :]
    if rest.lower().endswith(_RULES):
        return RequestTarget(RULES, path, root, rest[: -len(_RULES)] or "/")
    at = rest.lower().find(_RULES + "/")
    if at < 0:
        return RequestTarget(SUBSCRIPTION, path, root, rest or "/")  # no name is no name: it is refused as one
    return RequestTarget(RULE, path, root, rest[:at] or "/", rest[at + len(_RULES) + 1 :] or "/")
