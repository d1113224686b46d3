"""Tokens for `$cbs`: signed with a shared access key, given ready-made, or asked of a token credential.

A credential is asked for a token per audience (`sb://host/entity`) and says until when it is good, so that the
connection can renew it in time. Nothing here shows a key or a token in its repr.
"""

import asyncio
import base64
import hashlib
import hmac
import inspect
from typing import Any, Final, Protocol, runtime_checkable
from urllib.parse import parse_qs, quote

SAS_TOKEN_TYPE: Final = "servicebus.windows.net:sastoken"
JWT_TOKEN_TYPE: Final = "jwt"
TOKEN_LIFETIME_S: Final = 3_600
# The resource of Entra ID tokens for Service Bus; the doubled slash is part of its name.
TOKEN_SCOPE: Final = "https://servicebus.azure.net//.default"

# Renew when a fifth of the lifetime is left, at most ten minutes early.
_RENEW_FRACTION: Final = 0.2
_RENEW_EARLY_S_MAX: Final = 600.0
_RENEW_EVERY_S_MIN: Final = 1.0


class Token:
    """What goes into one put-token."""

    def __init__(self, text: str, kind: str, expires_s: float) -> None:
        self.text = text
        self.kind = kind
        self.expires_s = expires_s  # unix time

    def renew_at_s(self, now_s: float) -> float:
        """When to ask for the next one, seen from the moment this one was put."""
        left_s = self.expires_s - now_s
        early_s = min(left_s * _RENEW_FRACTION, _RENEW_EARLY_S_MAX)
        # A credential may answer with the token that it gave before; then it is asked again soon, but not in a loop.
        return max(self.expires_s - early_s, now_s + _RENEW_EVERY_S_MIN)


@runtime_checkable
class TokenCredential(Protocol):
    """Anything like azure-identity's credentials. `get_token` may be a coroutine function."""

    def get_token(self, *scopes: str) -> Any: ...


class Credential(Protocol):
    """Where tokens come from."""

    async def token_for(self, audience: str, now_s: float) -> Token: ...


class SasCredential:
    """Signs with a shared access key."""

    def __init__(self, key_name: str, key: str, lifetime_s: float = TOKEN_LIFETIME_S) -> None:
        self.key_name = key_name
        self.lifetime_s = lifetime_s
        self._key = key

    async def token_for(self, audience: str, now_s: float) -> Token:
        expires_s = now_s + self.lifetime_s
        return Token(sign_sas(audience, self.key_name, self._key, int(expires_s)), SAS_TOKEN_TYPE, int(expires_s))


class SignatureCredential:
    """A ready-made `SharedAccessSignature sr=…`: used as it is until it expires."""

    def __init__(self, signature: str) -> None:
        if not signature.startswith("SharedAccessSignature "):
            raise ValueError("SharedAccessSignature must begin with 'SharedAccessSignature sr='")
        fields = parse_qs(signature.removeprefix("SharedAccessSignature "))
        expiry = fields.get("se", [""])[0]
        if "sr" not in fields or "sig" not in fields or not (expiry.isascii() and expiry.isdigit()):
            raise ValueError("SharedAccessSignature lacks one of sr, sig and se")
        self._signature = signature
        self._expires_s = int(expiry)

    async def token_for(self, audience: str, now_s: float) -> Token:
        return Token(self._signature, SAS_TOKEN_TYPE, self._expires_s)


class BearerCredential:
    """Wraps a `TokenCredential`, synchronous or not. One whose `token_type` says that it signs is asked by audience."""

    def __init__(self, source: TokenCredential) -> None:
        self._source = source
        kind = getattr(source, "token_type", None)
        self._is_signature = kind in (SAS_TOKEN_TYPE, SAS_TOKEN_TYPE.encode())

    async def token_for(self, audience: str, now_s: float) -> Token:
        scope = audience if self._is_signature else TOKEN_SCOPE
        if inspect.iscoroutinefunction(self._source.get_token):
            answer = await self._source.get_token(scope)
        else:  # it may well go to the network, so not on the loop
            answer = await asyncio.to_thread(self._source.get_token, scope)
            if inspect.isawaitable(answer):  # a coroutine function inside of something that is none
                answer = await answer
        kind = SAS_TOKEN_TYPE if self._is_signature else JWT_TOKEN_TYPE
        return Token(answer.token, kind, float(answer.expires_on))


@runtime_checkable
class NamedKey(Protocol):
    """azure-core's `AzureNamedKeyCredential`: a key that may be replaced while it is in use."""

    @property
    def named_key(self) -> tuple[str, str]: ...


@runtime_checkable
class Signature(Protocol):
    """azure-core's `AzureSasCredential`: a signature that may be replaced while it is in use."""

    @property
    def signature(self) -> str: ...


class NamedKeyCredential:
    """Signs with the key that a `NamedKey` has at that moment."""

    def __init__(self, source: NamedKey) -> None:
        self._source = source

    async def token_for(self, audience: str, now_s: float) -> Token:
        name, key = self._source.named_key
        return await SasCredential(name, key).token_for(audience, now_s)


class ReplaceableSignature:
    """The signature that a `Signature` has at that moment."""

    def __init__(self, source: Signature) -> None:
        self._source = source

    async def token_for(self, audience: str, now_s: float) -> Token:
        return await SignatureCredential(self._source.signature).token_for(audience, now_s)


AnyCredential = Credential | TokenCredential | NamedKey | Signature


def credential_of(given: AnyCredential) -> Credential:
    """Whatever programs hand to the official SDK, or one of ours. `ValueError` for anything else."""
    if isinstance(given, NamedKey):
        return NamedKeyCredential(given)
    if isinstance(given, Signature):
        return ReplaceableSignature(given)
    if isinstance(given, TokenCredential):
        return BearerCredential(given)
    if callable(getattr(given, "token_for", None)):
        return given
    raise ValueError(f"credential: a {type(given).__name__} is none that is known here")


def sign_sas(audience: str, key_name: str, key: str, expires_s: int) -> str:
    """A shared access signature: HMAC-SHA256 over the percent-encoded audience, a newline and the expiry."""
    resource = quote(audience, safe="")
    digest = hmac.new(key.encode(), f"{resource}\n{expires_s}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest), safe="")
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_s}&skn={quote(key_name, safe='')}"
