"""Tokens and rules: what is let in, what is not, and that no text gives a secret away (B20)."""

import base64
import hashlib
import hmac
from urllib.parse import quote

import pytest

from spillway.dialect.rights import (
    ANY,
    GRANTS_MAX,
    LISTEN,
    MANAGE,
    SEND,
    AccessRule,
    Grant,
    Grants,
    Rights,
    authorise,
    is_under,
)
from spillway.model.errors import QuotaExceeded, Unauthorized
from tests.dialect.visit import HOUR_S, KEY, NOW_MS, ROOT, RULES, sas_token

RIGHTS = Rights(RULES)
AUDIENCE = "sb://localhost:5672/q"


def refused(token: str, audience: str = AUDIENCE, now_ms: int = NOW_MS) -> str:
    with pytest.raises(Unauthorized) as caught:
        RIGHTS.check_token(token, audience, now_ms)
    text = caught.value.description
    assert KEY not in text
    for secret in token.split("sig=")[1:]:
        assert secret.split("&")[0][:20] not in text or len(secret.split("&")[0]) < 5
    return text


def signed(resource: str, expiry: str, name: str = ROOT, key: str = KEY) -> dict[str, str]:
    """The fields of a token over `resource` exactly as given."""
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    return {"sr": resource, "sig": quote(base64.b64encode(digest), safe=""), "se": expiry, "skn": name}


def token_of(fields: dict[str, str]) -> str:
    return "SharedAccessSignature " + "&".join(f"{name}={value}" for name, value in fields.items())


EXPIRY = str(NOW_MS // 1000 + HOUR_S)


def test_a_token_signed_as_the_sdks_do_grants_the_rights_of_its_rule_until_it_ends() -> None:
    grant = RIGHTS.check_token(sas_token(), AUDIENCE, NOW_MS)
    assert (grant.scope, grant.expires_ms) == ("q", NOW_MS + HOUR_S * 1000)
    assert grant.rights == MANAGE | SEND | LISTEN


def test_the_fields_of_a_token_come_in_any_order() -> None:
    fields = signed(quote(AUDIENCE, safe=""), EXPIRY)
    token = token_of({name: fields[name] for name in ("se", "skn", "sr", "sig")})
    assert RIGHTS.check_token(token, AUDIENCE, NOW_MS).scope == "q"


def test_the_resource_is_signed_exactly_as_transmitted_whatever_the_case_of_its_escapes() -> None:
    for resource in (quote(AUDIENCE, safe=""), quote(AUDIENCE, safe="").replace("%3A", "%3a").replace("%2F", "%2f")):
        assert RIGHTS.check_token(token_of(signed(resource, EXPIRY)), AUDIENCE, NOW_MS).scope == "q"


def test_a_token_for_the_namespace_covers_every_entity() -> None:
    assert RIGHTS.check_token(sas_token("sb://localhost:5672"), AUDIENCE, NOW_MS).scope == "q"
    assert RIGHTS.check_token(sas_token("https://localhost/"), AUDIENCE, NOW_MS).scope == "q"


def test_host_and_case_do_not_matter() -> None:
    assert RIGHTS.check_token(sas_token("amqps://127.0.0.1:1/Q"), AUDIENCE, NOW_MS).scope == "q"


@pytest.mark.parametrize("resource", ["sb://h/queue1", "sb://h/queue1/sub"])
def test_a_token_does_not_reach_a_name_that_only_begins_like_its_own(resource: str) -> None:
    assert "InvalidAudience" in refused(sas_token(resource), "sb://h/queue10")


def test_a_token_for_a_child_does_not_open_the_parent() -> None:
    assert "InvalidAudience" in refused(sas_token("sb://h/a/b"), "sb://h/a")


def test_a_doubly_encoded_resource_is_another_resource() -> None:
    resource = quote(quote(AUDIENCE, safe=""), safe="")
    assert "InvalidAudience" in refused(token_of(signed(resource, EXPIRY)))


def test_a_wrong_key_and_an_unknown_key_name_are_refused_in_the_same_words() -> None:
    assert refused(sas_token(key="wrong")) == refused(sas_token(name="nobody"))
    assert "SharedAccessKeyName" in refused(sas_token(name="nobody"))


def test_a_token_that_expired_a_second_ago_is_refused() -> None:
    assert "ExpiredToken" in refused(sas_token(expires_s=NOW_MS // 1000 - 1))
    assert "ExpiredToken" in refused(sas_token(expires_s=NOW_MS // 1000))


def test_a_far_future_expiry_is_fine_and_an_absurd_one_is_not() -> None:
    assert RIGHTS.check_token(sas_token(expires_s=99_999_999_999), AUDIENCE, NOW_MS).scope == "q"
    assert "'se'" in refused(sas_token(expires_s=10**15))


@pytest.mark.parametrize("field", ["sr", "sig", "se", "skn"])
def test_a_missing_field_is_named(field: str) -> None:
    fields = signed(quote(AUDIENCE, safe=""), EXPIRY)
    del fields[field]
    assert f"lacks its field '{field}'" in refused(token_of(fields))


@pytest.mark.parametrize("field", ["sr", "sig", "se", "skn"])
def test_a_field_given_twice_is_named(field: str) -> None:
    fields = signed(quote(AUDIENCE, safe=""), EXPIRY)
    assert f"'{field}' more than once" in refused(token_of(fields) + f"&{field}={fields[field]}")


@pytest.mark.parametrize("signature", ["%%%", "not base64!", "YWJj*", "é"])
def test_a_signature_that_is_no_base64_is_named(signature: str) -> None:
    fields = signed(quote(AUDIENCE, safe=""), EXPIRY)
    fields["sig"] = signature
    assert "MalformedToken" in refused(token_of(fields))


@pytest.mark.parametrize("expiry", ["", "soon", "-1", "1e9", "12.5", "٣"])
def test_an_expiry_that_is_no_number_is_refused(expiry: str) -> None:
    assert "MalformedToken" in refused(token_of(signed(quote(AUDIENCE, safe=""), expiry)))


@pytest.mark.parametrize("token", ["", "x", "Bearer abc", "SharedAccessSignature", "SharedAccessSignature ", "{}"])
def test_what_is_no_shared_access_signature_is_refused(token: str) -> None:
    assert "MalformedToken" in refused(token)


def test_a_megabyte_of_token_is_refused_by_its_length_alone() -> None:
    assert "at most 8192 characters" in refused("SharedAccessSignature sr=" + "x" * 1_000_000)


def test_manage_brings_send_and_listen() -> None:
    assert AccessRule("m", "k", MANAGE).rights == MANAGE | SEND | LISTEN
    assert AccessRule("s", "k", SEND).rights == SEND


@pytest.mark.parametrize(
    ("rights", "wanted", "is_allowed"),
    [
        (SEND, SEND, True),
        (SEND, LISTEN, False),
        (SEND, MANAGE, False),
        (SEND, ANY, True),
        (LISTEN, SEND, False),
        (LISTEN, LISTEN, True),
        (LISTEN, MANAGE, False),
        (LISTEN, ANY, True),
        (MANAGE | SEND | LISTEN, SEND, True),
        (MANAGE | SEND | LISTEN, LISTEN, True),
        (MANAGE | SEND | LISTEN, MANAGE, True),
    ],
)
@pytest.mark.parametrize(
    ("scope", "path", "is_covered"),
    [
        ("", "q", True),
        ("q", "q", True),
        ("q", "Q/", True),
        ("q", "q/$management", True),
        ("q", "q/$DeadLetterQueue/$management", True),
        ("q/$management", "q/$management", True),
        ("q/$management", "q", False),
        ("q", "q1", False),
        ("q", "other", False),
        ("a/b", "a", False),
    ],
)
def test_a_grant_covers_its_scope_and_what_lies_below_with_its_rights_only(
    rights: int, wanted: int, is_allowed: bool, scope: str, path: str, is_covered: bool
) -> None:
    grants = Grants()
    grants.add(Grant(scope, rights, NOW_MS + 1))
    assert (authorise(grants, path, wanted, NOW_MS) is None) is (is_allowed and is_covered)
    assert authorise(grants, path, wanted, NOW_MS + 1) is not None


def test_without_a_grant_everything_is_denied_and_the_claim_is_named() -> None:
    denied = authorise(Grants(), "q", SEND, NOW_MS)
    assert denied is not None
    assert "'Send'" in denied.description


def test_a_new_token_for_the_same_scope_replaces_the_old_one() -> None:
    grants = Grants()
    grants.add(Grant("q", SEND, NOW_MS + 1_000))
    grants.add(Grant("q", SEND, NOW_MS + 9_000))
    assert grants.next_expiry_ms() == NOW_MS + 9_000
    grants.drop_expired(NOW_MS + 5_000)
    assert authorise(grants, "q", SEND, NOW_MS + 5_000) is None


def test_a_connection_holds_a_bounded_number_of_tokens() -> None:
    grants = Grants()
    for number in range(GRANTS_MAX):
        grants.add(Grant(f"q{number}", SEND, NOW_MS))
    grants.add(Grant("q1", SEND, NOW_MS))
    with pytest.raises(QuotaExceeded):
        grants.add(Grant("one more", SEND, NOW_MS))


def test_passwords_are_checked_against_their_own_rule() -> None:
    grant = RIGHTS.check_password("sender", "send-key")
    assert grant is not None
    assert (grant.scope, grant.rights) == ("", SEND)
    assert RIGHTS.check_password("sender", "listen-key") is None
    assert RIGHTS.check_password("nobody", "send-key") is None
    assert RIGHTS.check_password("sender", "") is None


def test_whole_segments_are_compared() -> None:
    assert is_under("a/b", "a")
    assert is_under("a", "")
    assert not is_under("ab", "a")
