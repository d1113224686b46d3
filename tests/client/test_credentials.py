"""Tokens: signed as the service checks them, renewed in time, never shown."""

import base64
import hashlib
import hmac
import time
from urllib.parse import parse_qs, unquote

import pytest

from spillway.client import BearerCredential, SasCredential, SignatureCredential
from spillway.client.credentials import JWT_TOKEN_TYPE, SAS_TOKEN_TYPE, TOKEN_SCOPE, Token, sign_sas


def test_a_signature_covers_the_resource_as_transmitted_and_the_expiry() -> None:
    token = sign_sas("sb://localhost:5672/a b", "Root", "key", 1_700_000_000)
    fields = dict(part.split("=", 1) for part in token.removeprefix("SharedAccessSignature ").split("&"))
    assert unquote(fields["sr"]) == "sb://localhost:5672/a b"
    signed = hmac.new(b"key", (fields["sr"] + "\n" + fields["se"]).encode(), hashlib.sha256).digest()
    assert base64.b64decode(unquote(fields["sig"])) == signed
    assert fields["skn"] == "Root"


async def test_a_key_signs_for_an_hour_and_does_not_show_itself() -> None:
    credential = SasCredential("Root", "very-secret")
    token = await credential.token_for("sb://h/q", 1_000.0)
    assert (token.kind, token.expires_s) == (SAS_TOKEN_TYPE, 4_600)
    assert "very-secret" not in repr(credential) + repr(vars(token))


@pytest.mark.parametrize(("left_s", "early_s"), [(3_600, 600), (1_000, 200), (10, 2)])
def test_a_token_is_renewed_when_a_fifth_of_it_is_left_and_at_most_ten_minutes_early(left_s: int, early_s: int) -> None:
    assert Token("t", "jwt", 5_000 + left_s).renew_at_s(5_000) == 5_000 + left_s - early_s


def test_a_token_that_has_all_but_expired_is_not_asked_for_in_a_loop() -> None:
    assert Token("t", "jwt", 5_000.01).renew_at_s(5_000) == 5_001
    assert Token("t", "jwt", 4_000).renew_at_s(5_000) == 5_001


async def test_a_ready_made_signature_is_used_as_it_is_until_its_expiry() -> None:
    text = sign_sas("sb://h/q", "Root", "key", 1_700_000_000)
    token = await SignatureCredential(text).token_for("sb://h/q", time.time())
    assert (token.text, token.expires_s) == (text, 1_700_000_000)
    assert parse_qs(text.split(" ", 1)[1])["se"] == ["1700000000"]


@pytest.mark.parametrize(
    "text", ["", "secret", "SharedAccessSignature sr=a&sig=secret", "SharedAccessSignature se=1&sig=secret"]
)
def test_a_broken_signature_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        SignatureCredential(text)
    assert "secret" not in str(caught.value)


class AccessToken:
    token = "eyJ"
    expires_on = 1_700_000_000


class Blocking:
    def __init__(self) -> None:
        self.scopes: tuple[str, ...] = ()

    def get_token(self, *scopes: str) -> AccessToken:
        self.scopes = scopes
        return AccessToken()


class Awaited:
    async def get_token(self, *scopes: str) -> AccessToken:
        return AccessToken()


async def test_a_token_credential_is_asked_for_the_service_bus_scope_blocking_or_not() -> None:
    blocking = Blocking()
    for source in (blocking, Awaited()):
        token = await BearerCredential(source).token_for("sb://h/q", 0.0)
        assert (token.text, token.kind, token.expires_s) == ("eyJ", JWT_TOKEN_TYPE, 1_700_000_000)
    assert blocking.scopes == (TOKEN_SCOPE,)
