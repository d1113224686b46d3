"""Who may do what: shared access rules, tokens signed with their keys, and the one function that decides.

A token is checked once, at `put-token`, and becomes a `Grant` of that connection: a scope, rights and an end. Every
attach, every `$management` operation and the clock's tick ask `authorise`, which denies what no grant allows.
No text made here shows a key, a signature or a token.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final
from urllib.parse import unquote

from spillway.dialect.addresses import shown, strip_authority
from spillway.model.entity import entity_key
from spillway.model.errors import QuotaExceeded, Unauthorized

SEND: Final = 1
LISTEN: Final = 2
MANAGE: Final = 4
ANY: Final = SEND | LISTEN | MANAGE  # "at least one of them"

FOR_EVER: Final = 1 << 62  # an end in ms that never comes: SASL PLAIN

TOKEN_PREFIX: Final = "sharedaccesssignature "
# The SDKs' tokens have some 300 characters; nobody signs a name longer than a few hundred.
TOKEN_CHARS_MAX: Final = 8_192
EXPIRY_DIGITS_MAX: Final = 11  # unix seconds up to the year 5138
# One connection of an SDK puts two tokens per entity it uses.
GRANTS_MAX: Final = 5_000
_FIELDS: Final = ("sr", "sig", "se", "skn")
_NO_KEY: Final = b"\x00" * 32  # signs for key names that do not exist, so that they take as long


class AccessRule:
    """A shared access rule of the namespace: whoever knows the key has the rights. Manage brings the other two."""

    def __init__(self, name: str, key: str, rights: int) -> None:
        self.name = name
        self.key = key
        self.rights = rights | SEND | LISTEN if rights & MANAGE else rights


class Grant:
    """What a connection was allowed by one token: `rights` on everything under `scope` until `expires_ms`."""

    def __init__(self, scope: str, rights: int, expires_ms: int) -> None:
        self.scope = scope  # an entity key; empty: the whole namespace
        self.rights = rights
        self.expires_ms = expires_ms


class Grants:
    """Everything one connection is allowed. A new token for the same scope replaces the older one."""

    def __init__(self) -> None:
        self.by_scope: dict[str, Grant] = {}

    def add(self, grant: Grant) -> None:
        if len(self.by_scope) >= GRANTS_MAX and grant.scope not in self.by_scope:
            raise QuotaExceeded(f"A connection holds at most {GRANTS_MAX} tokens; open another one.")
        self.by_scope[grant.scope] = grant

    def next_expiry_ms(self) -> int:
        """When the next token ends; 0 if none does."""
        earliest = FOR_EVER
        for grant in self.by_scope.values():
            if grant.expires_ms < earliest:
                earliest = grant.expires_ms
        return 0 if earliest == FOR_EVER else earliest

    def drop_expired(self, now_ms: int) -> None:
        for scope in [grant.scope for grant in self.by_scope.values() if grant.expires_ms <= now_ms]:
            del self.by_scope[scope]


def authorise(grants: Grants, path: str, rights: int, now_ms: int) -> Unauthorized | None:
    """The one decision. None: a live grant on `path` or a parent of it holds one of `rights`; else why not.

    Scopes cover whole segments: a token for `queue1` says nothing about `queue10` (B20).
    """
    scope = entity_key(path)
    while True:
        grant = grants.by_scope.get(scope)
        if grant is not None and grant.expires_ms > now_ms and grant.rights & rights:
            return None
        if not scope:
            break
        at = scope.rfind("/")
        scope = "" if at < 0 else scope[:at]
    return Unauthorized(
        f"Unauthorized access. '{rights_text(rights)}' claim(s) are required to perform this operation on "
        f"'{shown(path)}', and this connection has put no valid token that carries them."
    )


def rights_text(rights: int) -> str:
    names = []
    if rights & MANAGE:
        names.append("Manage")
    if rights & SEND:
        names.append("Send")
    if rights & LISTEN:
        names.append("Listen")
    return ",".join(names)


class Rights:
    """The rules of a namespace, and whether a token or a password is good under them."""

    def __init__(self, rules: list[AccessRule]) -> None:
        self.rules: dict[str, AccessRule] = {rule.name: rule for rule in rules}

    def check_password(self, name: str, key: str) -> Grant | None:
        """SASL PLAIN: a rule's name and key authorise the whole connection."""
        rule = self.rules.get(name)
        expected = _NO_KEY if rule is None else rule.key.encode()
        is_same = hmac.compare_digest(expected, key.encode("utf-8", "surrogatepass"))
        if rule is None or not is_same:
            return None
        return Grant("", rule.rights, FOR_EVER)

    def check_token(self, token: str, audience: str, now_ms: int) -> Grant:
        """A grant for `audience`, which must lie under what the token was signed for; else `Unauthorized` says why."""
        fields = _split_token(token)
        resource = fields["sr"]
        expiry = fields["se"]
        signature = _decode_signature(fields["sig"])
        rule = self.rules.get(unquote(fields["skn"]))
        key = _NO_KEY if rule is None else rule.key.encode()
        # `sr` exactly as transmitted: clients differ in how they write the escapes.
        expected = hmac.new(key, (resource + "\n" + expiry).encode(), hashlib.sha256).digest()
        is_signed = hmac.compare_digest(expected, signature)
        if rule is None or not is_signed:
            raise Unauthorized(
                "InvalidSignature: the token has an invalid signature. Check SharedAccessKeyName and SharedAccessKey."
            )
        expires_ms = int(expiry) * 1_000
        if expires_ms <= now_ms:
            raise Unauthorized("ExpiredToken: the token's time (se) is over. Check the clock of this machine.")
        scope = entity_key(strip_authority(audience))
        if not is_under(scope, entity_key(strip_authority(unquote(resource)))):
            raise Unauthorized(f"InvalidAudience: the token was signed (sr) for something else than '{shown(scope)}'.")
        return Grant(scope, rule.rights, expires_ms)


def is_under(key: str, parent: str) -> bool:
    """Whether a path is `parent` itself or below it, segment by segment."""
    return not parent or key == parent or key.startswith(parent + "/")


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
