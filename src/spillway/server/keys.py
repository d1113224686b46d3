"""The shared access rules of a data directory: one that may do everything, with random keys made on first start, and
those that its owner adds. They stand in `keys.json`, readable by its owner alone, for all namespaces of the directory.

`--dev` stands for the well-known key that the Service Bus emulator documents; anyone can know it, so it serves this
machine only.
"""

import base64
import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from spillway.dialect.rights import MANAGE, AccessRule, Rights
from spillway.model import limits
from spillway.model.access import NAMESPACE_SCOPE, access_name_problem, rights_names, rights_of, rights_problem
from spillway.server.files import PRIVATE, write_whole
from spillway.store.own_files import open_own, read_own, tighten_own

log = logging.getLogger(__name__)

KEY_NAME: Final = "RootManageSharedAccessKey"
DEVELOPMENT_KEY: Final = "SAS_KEY_VALUE"
KEY_BYTES: Final = 32
FILE_NAME: Final = "keys.json"
LOCK_NAME: Final = "keys.lock"
FIELDS: Final = ("rights", "primary_key", "secondary_key")
# Keys that somebody wrote into the file himself, to keep the connection strings of another broker.
GIVEN_KEY_CHARS_MIN: Final = 16
GIVEN_KEY_CHARS_MAX: Final = 256


class BadKeyFile(Exception):
    """The key file cannot be used; the text says what to do, and shows nothing of what is in it but names."""


def new_key() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def new_rule(name: str, rights: int) -> AccessRule:
    return AccessRule(name, rights, new_key(), new_key())


# -- the file -------------------------------------------------------------------------------------------------------


def read_rules(data: Path) -> list[AccessRule] | None:
    """The rules of this data directory, or None if it has no key file yet."""
    path = data / FILE_NAME
    try:
        content = read_own(path)
    except FileNotFoundError:
        return None
    return parse_rules(path, content)


def parse_rules(path: Path, content: bytes) -> list[AccessRule]:
    try:
        values = json.loads(content, object_pairs_hook=each_once)
    except (ValueError, RecursionError):  # a UnicodeDecodeError is a ValueError
        values = None
    if not isinstance(values, dict) or not values:
        raise BadKeyFile(f"{path} holds no key; restore it, or remove it and a new key is made")
    rules = [read_rule(path, name, value) for name, value in values.items()]
    if len(rules) > limits.ACCESS_RULES_MAX:
        raise BadKeyFile(f"{path} holds {len(rules)} rules; at most {limits.ACCESS_RULES_MAX} are allowed")
    if len({rule.name.lower() for rule in rules}) < len(rules):
        raise BadKeyFile(f"{path} holds two rules whose names differ in case only")
    return rules


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


def read_rule(path: Path, name: str, value: Any) -> AccessRule:
    """A string alone is the one key of a rule with all rights, as files had it before there were several."""
    plain = {"rights": ["Manage", "Send", "Listen"], "primary_key": value} if isinstance(value, str) else value
    problem = access_name_problem(name)
    if problem is not None:
        raise BadKeyFile(f"{path}: {problem}")
    if not isinstance(plain, dict) or set(plain) - set(FIELDS):
        raise BadKeyFile(f"{path}: rule {name} must be an object with {', '.join(FIELDS)}")
    rights = plain.get("rights")
    if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
        raise BadKeyFile(f"{path}: the rights of rule {name} must be a list of Manage, Send, Listen")
    problem = rights_problem(rights)
    if problem is not None:
        raise BadKeyFile(f"{path}: rule {name}: {problem}")
    primary, secondary = plain.get("primary_key", ""), plain.get("secondary_key", "")
    if not is_key(primary) or not (secondary == "" or is_key(secondary)):
        raise BadKeyFile(
            f"{path} holds no key for rule {name}: a key has {GIVEN_KEY_CHARS_MIN} to {GIVEN_KEY_CHARS_MAX} "
            "characters, none of them a space or ';'"
        )
    return AccessRule(name, rights_of(rights), str(primary), str(secondary))


def is_key(value: object) -> bool:
    if not isinstance(value, str) or not GIVEN_KEY_CHARS_MIN <= len(value) <= GIVEN_KEY_CHARS_MAX:
        return False
    return value.isascii() and value.isprintable() and not set(value) & set(" ;")


def write_rules(data: Path, rules: list[AccessRule]) -> None:
    values = {
        rule.name: {
            "rights": rights_names(rule.rights),
            "primary_key": rule.primary_key,
            "secondary_key": rule.secondary_key,
        }
        for rule in rules
    }
    write_whole(data / FILE_NAME, json.dumps(values, indent=1).encode() + b"\n", PRIVATE)


@contextlib.contextmanager
def locked(data: Path, is_waiting: bool = True) -> Iterator[None]:
    """Two commands that change the file do so one after the other. BlockingIOError: it is another's, and no waiting."""
    file = open_own(data / LOCK_NAME, os.O_CREAT | os.O_RDWR, PRIVATE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if is_waiting else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)


def ensure_rules(data: Path, is_waiting: bool = True) -> list[AccessRule]:
    """The rules of this directory, with the one that may do everything among them: it is made if missing."""
    with locked(data, is_waiting):
        found = read_rules(data) or []
        rules = with_root(found)
        if len(rules) > len(found):
            write_rules(data, rules)
    tighten(data / FILE_NAME)
    return rules


def with_root(rules: list[AccessRule]) -> list[AccessRule]:
    """A file always has the rule that may do everything."""
    is_there = any(rule.name == KEY_NAME for rule in rules)
    return list(rules) if is_there else [new_rule(KEY_NAME, MANAGE), *rules]


def tighten(path: Path) -> None:
    """Copied or restored by hand it may be readable by others: no longer."""
    if tighten_own(path, PRIVATE):
        log.warning("%s could be read by others; now only its owner can", path)


# -- what a broker serves with --------------------------------------------------------------------------------------


def served_rules(data: Path, is_development: bool, is_made: bool = True) -> list[AccessRule]:
    """What is in force. With --dev the rule that may do everything has the emulator's key and no other.

    `is_made`: that rule is made if it is missing.
    """
    if not is_development:
        return ensure_rules(data) if is_made else read_rules(data) or []
    return development_rules(read_rules(data) or [])


def development_rules(rules: list[AccessRule]) -> list[AccessRule]:
    return [AccessRule(KEY_NAME, MANAGE, DEVELOPMENT_KEY), *(rule for rule in rules if rule.name != KEY_NAME)]


def root_rights(key: str) -> Rights:
    return Rights([AccessRule(KEY_NAME, MANAGE, key)])


def is_key_known(rights: Rights) -> bool:
    """Whether anybody can sign a token: one of the keys is the emulator's."""
    return any(rule.has_key(DEVELOPMENT_KEY) for rule in rights.book.of(NAMESPACE_SCOPE))


def connection_string(
    host: str, port: int, key: str, is_clear_text: bool = True, name: str = KEY_NAME, entity: str = ""
) -> str:
    """As the SDKs read it. The emulator's flag makes them speak in clear, so it is left out where that is refused."""
    where = f"[{host}]" if ":" in host else host
    flag = "UseDevelopmentEmulator=true;" if is_clear_text else ""
    path = f"EntityPath={entity};" if entity else ""
    return f"Endpoint=sb://{where}:{port};SharedAccessKeyName={name};SharedAccessKey={key};{path}{flag}"
