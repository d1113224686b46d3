"""Who may do what: tokens signed with the keys of shared access rules, and the one function that decides.

A token is checked once, at `put-token` or with an HTTP request, and becomes a `Grant`: what it was put for, rights and
an end. Every attach, every `$management` operation, every HTTP request and the clock's tick ask `authorise`, which
denies what no grant allows. No text made here shows a key, a signature or a token.
"""

import base64
import binascii
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

from spillway.dialect.addresses import authority_of, shown, strip_authority
from spillway.model.access import (
    ALL_RIGHTS,
    LISTEN,
    MANAGE,
    NAMESPACE_SCOPE,
    SEND,
    AccessBook,
    AccessRule,
    rights_text,
)
from spillway.model.entity import entity_key, root_key
from spillway.model.errors import QuotaExceeded, Unauthorized

ANY: Final = ALL_RIGHTS  # "at least one of them"
__all__ = ["ANY", "LISTEN", "MANAGE", "SEND", "AccessBook", "AccessRule", "Grant", "Grants", "Rights", "authorise"]

FOR_EVER: Final = 1 << 62  # an end in ms that never comes: SASL PLAIN

TOKEN_PREFIX: Final = "sharedaccesssignature "
# The SDKs' tokens have some 300 characters; nobody signs a name longer than a few hundred.
TOKEN_CHARS_MAX: Final = 8_192
EXPIRY_DIGITS_MAX: Final = 11  # unix seconds up to the year 5138
# One connection of an SDK puts two tokens per entity it uses.
GRANTS_MAX: Final = 5_000
GRANT_BYTES: Final = 600  # what one takes in memory, besides its scope
SCOPE_CHAR_BYTES: Final = 4
_FIELDS: Final = ("sr", "sig", "se", "skn")
_NO_KEY: Final = b"\x00" * 32  # signs for key names that do not exist, so that they take as long


class Grant:
    """What one token allows: what its rule allows, on everything under `scope`, until `expires_ms`.

    A rule of an entity reaches that entity and its parts (subscriptions, dead letters, nodes), wherever the token was
    put: `rule_scope` is the entity's key, or empty for a rule of the namespace.
    """

    def __init__(self, scope: str, rule_scope: str, rule_name: str, key: str, rights: int, expires_ms: int) -> None:
        self.scope = scope  # an entity key or the key of a part; empty: everything that the rule reaches
        self.rule_scope = rule_scope
        self.rule_name = rule_name
        self.key = key
        self.rights = rights
        self.expires_ms = expires_ms


class Grants:
    """Everything one client is allowed. A new token for the same scope replaces the older one."""

    def __init__(self) -> None:
        self.by_scope: dict[str, Grant] = {}
        self.scope_chars = 0

    @property
    def held_bytes(self) -> int:
        """What they take in memory."""
        return len(self.by_scope) * GRANT_BYTES + self.scope_chars * SCOPE_CHAR_BYTES

    def _evict(self, scope: str) -> None:
        del self.by_scope[scope]
        self.scope_chars -= len(scope)

    def add(self, grant: Grant) -> None:
        if len(self.by_scope) >= GRANTS_MAX and grant.scope not in self.by_scope:
            raise QuotaExceeded(f"A connection holds at most {GRANTS_MAX} tokens; open another one.")
        if grant.scope not in self.by_scope:
            self.scope_chars += len(grant.scope)
        self.by_scope[grant.scope] = grant

    def next_expiry_ms(self) -> int:
        """When the next token ends; 0 if none does."""
        earliest = FOR_EVER
        for grant in self.by_scope.values():
            if grant.expires_ms < earliest:
                earliest = grant.expires_ms
        return 0 if earliest == FOR_EVER else earliest

    def evict_expired(self, now_ms: int) -> None:
        for scope in [grant.scope for grant in self.by_scope.values() if grant.expires_ms <= now_ms]:
            self._evict(scope)

    def review(self, book: AccessBook) -> None:
        """The rules have changed: drop what was signed with a key that is gone, and keep to the rights of today."""
        for grant in list(self.by_scope.values()):
            rule = book.find(grant.rule_scope, grant.rule_name)
            if rule is None or not rule.has_key(grant.key):
                self._evict(grant.scope)
            else:
                grant.rights = rule.rights


def authorise(grants: Grants, path: str, rights: int, now_ms: int) -> Unauthorized | None:
    """The one decision. None: a live grant on `path` or a parent of it holds one of `rights`; else why not."""
    if find_grant(grants, path, rights, now_ms) is not None:
        return None
    return Unauthorized(
        f"Unauthorized access. '{rights_text(rights)}' claim(s) are required to perform this operation on "
        f"'{shown(path)}', and no valid token that carries them was put."
    )


def find_grant(grants: Grants, path: str, rights: int, now_ms: int) -> Grant | None:
    """Which grant allows it; None, the answer to everything that is not allowed, if none does.

    Scopes cover whole segments: a token for `queue1` says nothing about `queue10` (bad input B20). A rule of the
    entity `a` says nothing about the entity `a/b`, which only happens to be called so.
    """
    scope = entity_key(path)
    root = root_key(scope)
    while True:
        grant = grants.by_scope.get(scope)
        if grant is not None and grant.expires_ms > now_ms and grant.rights & rights:
            if grant.rule_scope == NAMESPACE_SCOPE or grant.rule_scope == root:
                return grant
        if not scope:
            return None
        at = scope.rfind("/")
        scope = "" if at < 0 else scope[:at]


class Rights:
    """The rules of a namespace and of its entities, and whether a token or a password is good under them."""

    def __init__(self, rules: list[AccessRule]) -> None:
        """`rules` are the namespace's own; those of its entities come into the book with the entities."""
        self.book = AccessBook()
        self.book.put(NAMESPACE_SCOPE, rules)
        self.wall_ahead_ms = 0  # of the time that peers go by, which never leaps: tokens end by the wall clock

    def check_password(self, name: str, key: str) -> list[Grant]:
        """SASL PLAIN: a rule's name and key authorise the whole connection, as far as the rule reaches.

        A password names no entity, so every entity with such a rule counts. None: the password is no good.
        """
        grants: list[Grant] = []
        for scope, rule in self.book.scopes_of(name, key).items():
            if rule.has_key(key) and len(grants) < GRANTS_MAX:
                grants.append(Grant(scope, scope, rule.name, key, rule.rights, FOR_EVER))
        return grants

    def check_token(self, token: str, audience: str, now_ms: int, also: str = "", host: str = "") -> Grant:
        """A grant for `audience`, which must lie under what the token was signed for; else `Unauthorized` says why.

        `also` is another way to write the audience, `host` whose it is where it does not say. The rule is looked for on
        the entity and on the namespace.
        """
        fields = _split_token(token)
        signed = (fields["sr"] + "\n" + fields["se"]).encode()
        signature = _decode_signature(fields["sig"])
        scope = entity_key(strip_authority(audience))
        root = root_key(scope)
        name = unquote(fields["skn"])
        own = self.book.find(root, name) if root else None
        found = _signer(own, root, signed, signature)
        if found is None:
            found = _signer(self.book.find(NAMESPACE_SCOPE, name), NAMESPACE_SCOPE, signed, signature)
        if found is None:
            raise Unauthorized(
                "InvalidSignature: the token has an invalid signature. Check SharedAccessKeyName and SharedAccessKey."
            )
        found.expires_ms = int(fields["se"]) * 1_000
        if found.expires_ms <= now_ms:
            at = datetime.fromtimestamp(int(fields["se"]), UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            raise Unauthorized(
                f"ExpiredToken: The token is expired. Expiration time: '{at}'. Check the clock of this machine."
            )
        resource = unquote(fields["sr"])
        is_covered = (
            _covers(resource, audience)
            or (also != "" and _covers(resource, also))
            or (host != "" and _covers(resource, f"sb://{host}/{audience}"))
        )
        if not is_covered:
            raise Unauthorized(f"InvalidAudience: the token was signed (sr) for something else than '{shown(scope)}'.")
        found.scope = scope
        return found


def _signer(rule: AccessRule | None, rule_scope: str, signed: bytes, signature: bytes) -> Grant | None:
    """The grant of the rule if one of its keys signed this; the same work whether there is such a rule or not.

    A key that is missing signs nothing, though everybody can compute with it.
    """
    keys = [_NO_KEY, _NO_KEY] if rule is None else [rule.primary_key.encode(), rule.secondary_key.encode()]
    used = ""
    for key in keys:
        # `sr` exactly as transmitted: clients differ in how they write the escapes.
        expected = hmac.new(key, signed, hashlib.sha256).digest()
        is_signed = hmac.compare_digest(expected, signature)
        if is_signed and rule is not None and not used:
            used = key.decode()
    if rule is None or not used:
        return None
    return Grant("", rule_scope, rule.name, used, rule.rights, 0)


def _covers(resource: str, audience: str) -> bool:
    """Whether an audience lies under the resource that was signed: the same host if both name one, and its path."""
    host = authority_of(resource)
    other = authority_of(audience)
    if not host and other:
        first, _, rest = resource.strip("/").partition("/")
        if _is_same_authority(first, other):  # a host without its scheme, as many sign it
            return is_under(entity_key(strip_authority(audience)), entity_key(rest))
    if host and other and not _is_same_authority(host, other):
        return False
    return is_under(entity_key(strip_authority(audience)), entity_key(strip_authority(resource)))


def _is_same_authority(one: str, other: str) -> bool:
    """Host by host; ports only if both have one."""
    host, port = split_authority(one)
    other_host, other_port = split_authority(other)
    return host == other_host and (not port or not other_port or port == other_port)


def split_authority(authority: str) -> tuple[str, str]:
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdigit():
        return authority.lower(), ""
    return host.lower(), port


def is_under(key: str, parent: str) -> bool:
    """Whether a path is `parent` itself or below it, segment by segment."""
    return not parent or key == parent or key.startswith(parent + "/")


def claimed_rule(token: str) -> str:
    """The name that a token gives itself, good or not; empty if it has none. For who keeps watch."""
    at = token.find("skn=")
    if at < 0 or len(token) > TOKEN_CHARS_MAX:
        return ""
    return unquote(token[at + len("skn=") :].partition("&")[0])


def _split_token(token: str) -> dict[str, str]:
    """The four fields, each exactly once, in any order."""
    if len(token) > TOKEN_CHARS_MAX:
        raise Unauthorized(f"MalformedToken: a token has at most {TOKEN_CHARS_MAX} characters, not {len(token)}.")
    if not token.isascii():
        raise Unauthorized("MalformedToken: a token has ASCII characters only.")
    if token[: len(TOKEN_PREFIX)].lower() != TOKEN_PREFIX:
        raise Unauthorized("MalformedToken: a token begins with 'SharedAccessSignature '.")
    fields: dict[str, str] = {}
    for part in token[len(TOKEN_PREFIX) :].strip().split("&"):
        name, _, value = part.partition("=")
        if name not in _FIELDS:
            continue
        if name in fields:
            raise Unauthorized(f"MalformedToken: the token has its field '{name}' more than once.")
        fields[name] = value
    for name in _FIELDS:
        if not fields.get(name):
            raise Unauthorized(f"MalformedToken: the token lacks its field '{name}'.")
    expiry = fields["se"]
    if not expiry.isdigit() or len(expiry) > EXPIRY_DIGITS_MAX:
        raise Unauthorized("MalformedToken: the token's field 'se' is not a time in unix seconds.")
    return fields


def _decode_signature(field: str) -> bytes:
    try:
        signature = base64.b64decode(unquote(field), validate=True)
    except (binascii.Error, ValueError):
        raise Unauthorized("MalformedToken: the token's field 'sig' is not base64.") from None
    return signature
