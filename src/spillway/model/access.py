"""Shared access rules: whose key allows what, on a whole namespace or on one queue or topic.

A rule is a name, two keys and rights. Whoever knows one of the keys has the rights; there are two so that one can be
replaced while programs still use the other. Nothing here shows a key in a text or a repr.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

from spillway.model import limits

SEND: Final = 1
LISTEN: Final = 2
MANAGE: Final = 4
ALL_RIGHTS: Final = SEND | LISTEN | MANAGE

NAMESPACE_SCOPE: Final = ""  # of a rule: everything; otherwise the key of a queue or topic

_RIGHTS: Final = (("Manage", MANAGE), ("Send", SEND), ("Listen", LISTEN))
_NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


class AccessRule:
    """`rights` is a sum of SEND, LISTEN and MANAGE; Manage brings the other two. An empty key opens nothing."""

    def __init__(
        self,
        name: str,
        rights: int,
        primary_key: str,
        secondary_key: str = "",
        created_ms: int = 0,
        modified_ms: int = 0,
    ) -> None:
        self.name = name
        self.rights = rights | SEND | LISTEN if rights & MANAGE else rights
        self.primary_key = primary_key
        self.secondary_key = secondary_key
        self.created_ms = created_ms
        self.modified_ms = modified_ms

    def secrets(self) -> list[str]:
        return [key for key in (self.primary_key, self.secondary_key) if key]

    def has_key(self, key: str) -> bool:
        """Whether a key is one of the two, in a time that does not tell how nearly."""
        given = key.encode("utf-8", "surrogatepass")
        is_primary = hmac.compare_digest(self.primary_key.encode(), given)
        is_secondary = hmac.compare_digest(self.secondary_key.encode(), given)
        return len(given) > 0 and (is_primary or is_secondary)

    def allows_the_same(self, other: "AccessRule") -> bool:
        """Whether everybody may do under the other what he may do under this one, and no more."""
        return self.rights == other.rights and sorted(self.secrets()) == sorted(other.secrets())

    def to_plain(self) -> dict[str, object]:
        return {
            "name": self.name,
            "rights": rights_names(self.rights),
            "primary_key": self.primary_key,
            "secondary_key": self.secondary_key,
            "created_ms": self.created_ms,
            "modified_ms": self.modified_ms,
        }


def access_rule_from_plain(plain: dict[str, object]) -> AccessRule:
    """What `to_plain` made. It was checked before it was stored."""
    rights = plain["rights"]
    created_ms = plain["created_ms"]
    modified_ms = plain["modified_ms"]
    assert isinstance(rights, list), "rights are names"
    assert isinstance(created_ms, int) and isinstance(modified_ms, int), "times are numbers"
    return AccessRule(
        str(plain["name"]),
        rights_of([str(name) for name in rights]),
        str(plain["primary_key"]),
        str(plain["secondary_key"]),
        created_ms,
        modified_ms,
    )


# -- rights by name -----------------------------------------------------------------------------------------------


def rights_names(rights: int) -> list[str]:
    """As the service spells and orders them."""
    return [name for name, right in _RIGHTS if rights & right]


def rights_text(rights: int) -> str:
    return ",".join(rights_names(rights))


def rights_of(names: list[str]) -> int:
    """The sum of those known. `rights_problem` says what is wrong with the others."""
    rights = 0
    for name, right in _RIGHTS:
        if name in names:
            rights |= right
    return rights


def rights_problem(names: list[str]) -> str | None:
    """What is wrong with the rights that a rule is to have, or None."""
    for name in names:
        if rights_of([name]) == 0:
            return f"a right is Manage, Send or Listen, not '{name[:50]}'"
    if not names:
        return "a rule has at least one of the rights Manage, Send and Listen"
    if len(set(names)) != len(names):
        return "the same right is there more than once"
    if "Manage" in names and len(names) != len(_RIGHTS):
        return "Manage permission should also include Send and Listen"
    return None


# -- what is wrong with a rule ------------------------------------------------------------------------------------


def access_name_problem(name: str) -> str | None:
    if not name:
        return "the name of a shared access rule must not be empty"
    if len(name) > limits.ACCESS_RULE_NAME_CHARS_MAX:
        return f"the name of a shared access rule has at most {limits.ACCESS_RULE_NAME_CHARS_MAX} characters"
    for char in name:
        if char not in _NAME_CHARS:
            return "the name of a shared access rule has letters, digits, '_', '-' and '.' only"
    return None


def access_key_problem(key: str) -> str | None:
    """As the service wants them: 256 bits in base64. A short one could be guessed from a token."""
    if len(key) != limits.ACCESS_KEY_CHARS:
        return f"a key has {limits.ACCESS_KEY_CHARS} characters of base64, not {len(key)} characters"
    try:
        base64.b64decode(key.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        return f"a key has {limits.ACCESS_KEY_CHARS} characters of base64, and nothing else"
    return None


def access_rules_problem(rules: list[AccessRule]) -> str | None:
    """What is wrong with the rules of one entity, or None. No text shows a key."""
    if len(rules) > limits.ACCESS_RULES_MAX:
        return f"an entity has at most {limits.ACCESS_RULES_MAX} shared access rules, not {len(rules)}"
    seen: set[str] = set()
    for rule in rules:
        problem = access_name_problem(rule.name) or rights_problem(rights_names(rule.rights))
        for key in (rule.primary_key, rule.secondary_key):
            problem = problem or access_key_problem(key)
        if problem is not None:
            return problem
        if rule.name.lower() in seen:
            return f"two shared access rules are called '{rule.name}'"
        seen.add(rule.name.lower())
    return None


def access_changes(before: list[AccessRule], after: list[AccessRule]) -> list[str]:
    """What happened to the rules of one scope, for the audit: without a key."""
    old = {rule.name.lower(): rule for rule in before}
    new = {rule.name.lower(): rule for rule in after}
    changes = [f"rule {rule.name} removed" for name, rule in old.items() if name not in new]
    for name, rule in new.items():
        was = old.get(name)
        if was is None:
            changes.append(f"rule {rule.name} added with {rights_text(rule.rights)}")
            continue
        if was.rights != rule.rights:
            changes.append(f"rule {rule.name} has {rights_text(rule.rights)} now")
        if sorted(was.secrets()) != sorted(rule.secrets()):
            changes.append(f"keys of rule {rule.name} changed")
    return changes


# -- all rules of a namespace ---------------------------------------------------------------------------------------


class AccessBook:
    """The rules in force, by scope and name. Names are compared without regard to case.

    `revision` rises whenever somebody may have lost a right, so that what was granted is looked at again.
    """

    def __init__(self) -> None:
        self.by_scope: dict[str, dict[str, AccessRule]] = {}
        self.by_secret: dict[bytes, dict[str, AccessRule]] = {}  # digest of name and key -> by scope
        self.name_counts: dict[str, int] = {}
        self.revision = 0

    def find(self, scope: str, name: str) -> AccessRule | None:
        rules = self.by_scope.get(scope)
        return None if rules is None else rules.get(name.lower())

    def of(self, scope: str) -> list[AccessRule]:
        rules = self.by_scope.get(scope)
        return [] if rules is None else list(rules.values())

    def knows(self, name: str) -> bool:
        """Whether any rule has this name."""
        return name.lower() in self.name_counts

    def scopes_of(self, name: str, key: str) -> dict[str, AccessRule]:
        """Every scope that has a rule of this name with this key: a password comes without an entity.

        Found by a digest, so that neither the time nor the work depends on how nearly a key was guessed.
        """
        return self.by_secret.get(_secret(name, key), {})

    def put(self, scope: str, rules: list[AccessRule]) -> None:
        """The scope has these rules and no others from now on."""
        before = self.by_scope.pop(scope, None)
        if before is not None:
            self._unregister(scope, before)
        after = {rule.name.lower(): rule for rule in rules}
        if after:
            self.by_scope[scope] = after
            for name, rule in after.items():
                self.name_counts[name] = self.name_counts.get(name, 0) + 1
                for key in rule.secrets():
                    self.by_secret.setdefault(_secret(rule.name, key), {})[scope] = rule
        for name, rule in ({} if before is None else before).items():
            now = after.get(name)
            if now is None or not now.allows_the_same(rule):
                self.revision += 1
                return

    def _unregister(self, scope: str, rules: dict[str, AccessRule]) -> None:
        for name, rule in rules.items():
            self.name_counts[name] -= 1
            if self.name_counts[name] == 0:
                del self.name_counts[name]
            for key in rule.secrets():
                secret = _secret(rule.name, key)
                scopes = self.by_secret.get(secret)
                if scopes is not None:
                    scopes.pop(scope, None)
                    if not scopes:
                        del self.by_secret[secret]


def _secret(name: str, key: str) -> bytes:
    return hashlib.sha256(f"{name.lower()}\n{key}".encode("utf-8", "surrogatepass")).digest()
