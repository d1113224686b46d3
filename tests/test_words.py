"""One vocabulary: a class name means one thing in the whole house, and what the field has a word for is called by it.

Reads the sources, imports nothing.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "spillway"

# -- one class name, one meaning -------------------------------------------------------------------------------------

# Several classes of one name that are one concept by design, and why.
SAME_CONCEPT = {
    "Account": "amqp asks for an account by a protocol, model has it",
    "Audit": "what dialect and admin each ask of server's audit, by protocols",
    "Connection": "AMQP's: the engine without a socket, and the client's over it",
    "Directory": "dialect asks for the broker's directory by a protocol",
    "JobFailed": "a job that failed, as it ends itself and as Airflow sees the process of it end",
    "Pump": "admin asks for server's pump by a protocol",
    "SealedDays": "admin and store may not import each other, and ask the same of sealed days",
    "TokenVerdict": "admin asks for server's verdict on a token by a protocol",
    **dict.fromkeys(
        (
            "EntityDisabled",
            "EntityNotFound",
            "MessageLockLost",
            "MessageNotFound",
            "MessageTooLarge",
            "NotAllowed",
            "OperationTimeout",
            "QuotaExceeded",
            "ServerBusy",
            "SessionCannotBeLocked",
            "SessionLockLost",
            "Unauthorized",
        ),
        "one condition: the broker refuses by model's error, the client raises its own for it",
    ),
    **dict.fromkeys(
        (
            "MessageSender",
            "MessagingFactory",
            "NamespaceManager",
            "QueueClient",
            "SendAvailabilityPairedNamespaceOptions",
            "TopicClient",
        ),
        "the blocking flavour of paired has the names of the other",
    ),
}


def modules() -> list[tuple[str, ast.Module]]:
    return [
        (str(path.relative_to(SOURCE)), ast.parse(path.read_text(), filename=str(path)))
        for path in sorted(SOURCE.rglob("*.py"))
    ]


MODULES = modules()


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in MODULES:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    several = {name: where for name, where in places.items() if len(set(where)) > 1}
    assert {name: where for name, where in several.items() if name not in SAME_CONCEPT} == {}
    assert SAME_CONCEPT.keys() - several.keys() == set(), "nothing is allowed that is not there"


# -- the field's words -----------------------------------------------------------------------------------------------

# Functions and methods that are called so, and what the field calls them. An underscore before it makes no difference.
CALLED = {
    r"touch(ed|es)?(_.*)?": "mark_ready, ready",
    r"line_up": "enqueue",
    r"go": "resume",
    r"take(_.*)?": "pop, drain, accept, charge: by meaning",
    r"look(_.*)?": "poll, check, refresh, peek",
    r"let_go(_.*)?": "release, free",
    r"give_back(_.*)?": "requeue, release",
    r"give_up(_.*)?": "abandon, release",
    r"forget(_.*)?": "unregister, discard, evict",
    r"drop(_.*)?": "evict, discard, revoke",
    r"keep": "retain, renew",
    r"hold": "retain, charge, suspend, pause",
    r"park": "schedule; throttle",
    r"plant": "inject",
    r"befalls?": "matches, apply",
    r"strike(_.*)?": "apply; discard",
    r"turn_away": "reject",
    r"bury": "purge",
    r"keep_house": "maintain",
    r"submit_unheard": "submit_and_forget",
    r"is_waited_for": "needs_ack",
    r"perform(_.*)?": "emit, dispatch, apply, commit",
}
# Not ours to name: pytest's and programs' way to say it, and what a library calls.
CALLED_BY_OTHERS: dict[str, str] = {}

# Any identifier, wherever it stands.
NAMED = {
    r"spoken": "effects",
    r"is_touched|is_served": "is_ready, is_handled",
    r"told_(limit|number)|seen_count": "advertised_credit, delivered_count",
    r"parked": "scheduled; throttled",
    r"is_deaf|deaf": "muted",
    r"lobby|Lobby|guests?|Guest|turn_away|TurnedAway": "the pre-auth limiter, pending connections",
    r"graveyard": "tombstones",
    r"Outlet|outlets?|Parcel|parcels?|hub": "sender pool, send request, connection pool",
    r"Standing|Touchable": "AuthState, Servable",
    r"PlantedFaults?|PlantFault|PLANTED": "InjectedFault, InjectFault, INJECTED",
}
# Words that mean something else in other rooms.
NAMED_IN = {
    ("server", "dialect"): {r"strangers?|STRANGER_.*": "unauthenticated", r"door|Door": "acceptor"},
    ("dialect",): {r"standing": "auth_state"},
    ("broker", "admin", "server", "lab"): {r"planted": "injected"},
    ("broker", "server", "store", "dialect", "amqp", "admin"): {r"say": "emit, send"},
}
# Files that are named after what they were once called.
FILES = ("lobby", "planting", "outlet", "parcel", "overdue", "preparing", "partners", "remains", "places")


def functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name


def identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def test_words_that_the_field_has_others_for_do_not_come_back() -> None:
    found: set[str] = set()
    for name, tree in MODULES:
        for called in functions(tree):
            for pattern, better in CALLED.items():
                if re.fullmatch(pattern, called.lstrip("_")) and called not in CALLED_BY_OTHERS:
                    found.add(f"{name}: {called}: {better}")
        tables = [NAMED, *[words for rooms, words in NAMED_IN.items() if name.split("/")[0] in rooms]]
        for used in identifiers(tree):
            for table in tables:
                for pattern, better in table.items():
                    if re.fullmatch(pattern, used.lstrip("_")):
                        found.add(f"{name}: {used}: {better}")
        if Path(name).stem in FILES:
            found.add(name)
    assert sorted(found) == []
