"""Tokens and rules: what is let in, what is not, and that no text gives a secret away (bad input B20)."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    claimed_rule,
    is_under,
)
from spillway.model.access import access_changes
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


def granted(scope: str, rights: int, expires_ms: int, rule_scope: str = "") -> Grant:
    return Grant(scope, rule_scope, "rule", "key", rights, expires_ms)


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


@pytest.mark.parametrize(
    "resource", ["amqps://LOCALHOST/Q", "https://localhost:5672/q/", "http://LocalHost", "q", "sb://localhost:5672/q"]
)
def test_the_scheme_the_case_and_a_port_left_out_do_not_matter(resource: str) -> None:
    assert RIGHTS.check_token(sas_token(resource), AUDIENCE, NOW_MS).scope == "q"


@pytest.mark.parametrize(
    "resource", ["localhost", "LOCALHOST/", "localhost:5672", "localhost/q", "localhost:5672/Q/", "/localhost/q"]
)
def test_a_host_without_its_scheme_is_a_host(resource: str) -> None:
    assert RIGHTS.check_token(sas_token(resource), AUDIENCE, NOW_MS).scope == "q"


@pytest.mark.parametrize("resource", ["localhost:5673", "localhost/other", "localhos", "otherhost", "localhost/q/sub"])
def test_a_host_without_its_scheme_is_compared_like_any_other(resource: str) -> None:
    assert "InvalidAudience" in refused(sas_token(resource))


@pytest.mark.parametrize(
    "resource",
    ["sb://otherhost/q", "sb://localhost:5673/q", "sb://localhost.evil/q", "sb://other", "sb://[::1]:5672/q"],
)
def test_a_token_for_another_host_is_refused(resource: str) -> None:
    assert "InvalidAudience" in refused(sas_token(resource))


def test_hosts_are_compared_with_their_brackets_and_ports() -> None:
    assert RIGHTS.check_token(sas_token("sb://[::1]:5672/q"), "sb://[::1]/q", NOW_MS).scope == "q"
    assert "InvalidAudience" in refused(sas_token("sb://[::1]:5672/q"), "sb://[::1]:5673/q")


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
    """In Azure's words, which Microsoft's tests look for."""
    for expires_s in (NOW_MS // 1000 - 1, NOW_MS // 1000):
        at = datetime.fromtimestamp(expires_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        text = refused(sas_token(expires_s=expires_s))
        assert text.startswith(f"ExpiredToken: The token is expired. Expiration time: '{at}'.")


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
    assert AccessRule("m", MANAGE, "k").rights == MANAGE | SEND | LISTEN
    assert AccessRule("s", SEND, "k").rights == SEND


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
    grants.add(granted(scope, rights, NOW_MS + 1))
    assert (authorise(grants, path, wanted, NOW_MS) is None) is (is_allowed and is_covered)
    assert authorise(grants, path, wanted, NOW_MS + 1) is not None


def test_without_a_grant_everything_is_denied_and_the_claim_is_named() -> None:
    denied = authorise(Grants(), "q", SEND, NOW_MS)
    assert denied is not None
    assert "'Send'" in denied.description


def test_a_new_token_for_the_same_scope_replaces_the_old_one() -> None:
    grants = Grants()
    grants.add(granted("q", SEND, NOW_MS + 1_000))
    grants.add(granted("q", SEND, NOW_MS + 9_000))
    assert grants.next_expiry_ms() == NOW_MS + 9_000
    grants.evict_expired(NOW_MS + 5_000)
    assert authorise(grants, "q", SEND, NOW_MS + 5_000) is None


def test_a_connection_holds_a_bounded_number_of_tokens() -> None:
    grants = Grants()
    for number in range(GRANTS_MAX):
        grants.add(granted(f"q{number}", SEND, NOW_MS))
    grants.add(granted("q1", SEND, NOW_MS))
    with pytest.raises(QuotaExceeded):
        grants.add(granted("one more", SEND, NOW_MS))


def test_passwords_are_checked_against_their_own_rule() -> None:
    for key in ("send-key", "send-key-2"):
        (grant,) = RIGHTS.check_password("Sender", key)
        assert (grant.scope, grant.rights) == ("", SEND)
    assert RIGHTS.check_password("sender", "listen-key") == []
    assert RIGHTS.check_password("nobody", "send-key") == []
    assert RIGHTS.check_password("listener", "") == []


def test_whole_segments_are_compared() -> None:
    assert is_under("a/b", "a")
    assert is_under("a", "")
    assert not is_under("ab", "a")


# -- rules of entities ---------------------------------------------------------------------------------------------


def with_entities() -> Rights:
    """The namespace's rules, and some of the entities `a`, `a/b` and `t`."""
    rights = Rights(RULES)
    rights.book.put("a", [AccessRule("own", SEND, "key-of-a", "second-of-a"), AccessRule("sender", LISTEN, "a-sender")])
    rights.book.put("a/b", [AccessRule("own", LISTEN, "key-of-a/b", "shared")])
    rights.book.put("t", [AccessRule("own", MANAGE, "key-of-t", "shared")])
    return rights


def judged(rights: Rights, audience: str, name: str, key: str, resource: str | None = None) -> Grant | None:
    try:
        return rights.check_token(sas_token(f"sb://h/{resource or audience}", name, key), f"sb://h/{audience}", NOW_MS)
    except Unauthorized:
        return None


@pytest.mark.parametrize("key", ["key-of-a", "second-of-a"])
def test_both_keys_of_an_entity_sign_for_it_and_for_its_parts(key: str) -> None:
    rights = with_entities()
    for audience in ("a", "A", "a/$management", "a/$DeadLetterQueue", "a/Subscriptions/s", "a/subscriptions/s/rules/r"):
        grant = judged(rights, audience, "own", key)
        assert grant is not None, audience
        assert (grant.rule_scope, grant.rights) == ("a", SEND)


@pytest.mark.parametrize("audience", ["a/b", "a/b/$DeadLetterQueue", "ab", "t", "", "$Resources/queues", "$cbs", "a10"])
def test_the_key_of_an_entity_signs_for_no_other(audience: str) -> None:
    for resource in (audience, "", "a"):
        assert judged(with_entities(), audience, "own", "key-of-a", resource or None) is None


def test_a_token_of_an_entity_signed_for_the_namespace_reaches_that_entity_only() -> None:
    """The Python administration client signs for the namespace, whoever's key it has."""
    rights = with_entities()
    assert rights.check_token(sas_token("https://h", "own", "key-of-t"), "t", NOW_MS).rule_scope == "t"
    for path in ("a", "a/b", "$Resources/queues", ""):
        with pytest.raises(Unauthorized):
            rights.check_token(sas_token("https://h", "own", "key-of-t"), path, NOW_MS)


def test_the_rule_of_an_entity_does_not_hide_the_namespaces_of_the_same_name() -> None:
    rights = with_entities()
    own, of_namespace = judged(rights, "a", "sender", "a-sender"), judged(rights, "a", "sender", "send-key")
    assert own is not None and (own.rule_scope, own.rights) == ("a", LISTEN)
    assert of_namespace is not None and (of_namespace.rule_scope, of_namespace.rights) == ("", SEND)


def test_a_key_with_the_name_of_another_rule_is_refused_in_the_same_words_as_a_wrong_one() -> None:
    rights = with_entities()
    texts = set()
    for audience, name, key in (("a/b", "own", "key-of-a"), ("a", "own", "wrong"), ("a", "nobody", "key-of-a")):
        with pytest.raises(Unauthorized) as caught:
            rights.check_token(sas_token(f"sb://h/{audience}", name, key), f"sb://h/{audience}", NOW_MS)
        texts.add(caught.value.description)
    assert len(texts) == 1


def test_a_missing_second_key_opens_nothing() -> None:
    """Not even to who knows with what the broker computes in its place."""
    rule = AccessRule("one", MANAGE, "the-only-key")
    assert rule.has_key("the-only-key")
    assert not rule.has_key("") and not rule.has_key("\x00" * 32)
    rights = Rights([rule])
    for key in (b"", b"\x00" * 32):
        resource = quote(AUDIENCE, safe="")
        digest = hmac.new(key, f"{resource}\n{EXPIRY}".encode(), hashlib.sha256).digest()
        fields = {"sr": resource, "sig": quote(base64.b64encode(digest), safe=""), "se": EXPIRY, "skn": "one"}
        with pytest.raises(Unauthorized):
            rights.check_token(token_of(fields), AUDIENCE, NOW_MS)
        assert rights.check_password("one", key.decode()) == []
        with pytest.raises(Unauthorized):
            rights.check_token(token_of({**fields, "skn": "nobody"}), AUDIENCE, NOW_MS)


def test_a_grant_by_the_rule_of_an_entity_stops_at_its_border() -> None:
    """Whatever it was put for: a connection string with one scope for everything is no way around it."""
    for scope in ("a", ""):
        grants = Grants()
        grants.add(granted(scope, ANY, NOW_MS + 1, rule_scope="a"))
        for path in ("a", "a/$management", "A/Subscriptions/s/$DeadLetterQueue/$management", "a/$DeadLetterQueue"):
            assert authorise(grants, path, SEND, NOW_MS) is None, path
        for path in ("a/b", "a/b/$management", "ab", "b", "", "$cbs", "$Resources/queues", "$spillway/status"):
            assert authorise(grants, path, SEND, NOW_MS) is not None, path


def test_nobody_needs_no_right() -> None:
    """Asking for nothing is a mistake of ours, and a mistake opens nothing."""
    grants = Grants()
    grants.add(granted("", ANY, NOW_MS + 1))
    assert authorise(grants, "a", 0, NOW_MS) is not None


def test_a_password_opens_every_entity_that_has_it_and_no_other() -> None:
    rights = with_entities()
    assert {(grant.scope, grant.rights) for grant in rights.check_password("own", "shared")} == {
        ("a/b", LISTEN),
        ("t", ANY),
    }
    assert [grant.scope for grant in rights.check_password("own", "key-of-a")] == ["a"]
    rights.book.put("t", [])
    assert [grant.scope for grant in rights.check_password("own", "shared")] == ["a/b"]


# -- rules that change ---------------------------------------------------------------------------------------------


def reviewed(after: list[AccessRule]) -> tuple[bool, int]:
    """Whether the rules of `a` had to be looked at again, and what a grant by its first key is worth then."""
    rights = Rights(RULES)
    rights.book.put("a", [AccessRule("own", SEND | LISTEN, "one", "two")])
    revision = rights.book.revision
    grant = judged(rights, "a", "own", "one")
    assert grant is not None
    grants = Grants()
    grants.add(grant)
    rights.book.put("a", after)
    grants.review(rights.book)
    left = grants.by_scope.get("a")
    return rights.book.revision > revision, 0 if left is None else left.rights


def test_a_grant_lives_with_its_rule_and_key() -> None:
    own = AccessRule("own", SEND | LISTEN, "one", "two")
    assert reviewed([own]) == (False, SEND | LISTEN)
    assert reviewed([own, AccessRule("more", SEND, "x")]) == (False, SEND | LISTEN)
    assert reviewed([AccessRule("own", SEND | LISTEN, "two", "one")]) == (False, SEND | LISTEN)
    assert reviewed([AccessRule("own", SEND | LISTEN, "one", "new")]) == (True, SEND | LISTEN)
    assert reviewed([AccessRule("own", SEND | LISTEN, "new", "two")]) == (True, 0)
    assert reviewed([AccessRule("own", LISTEN, "one", "two")]) == (True, LISTEN)
    assert reviewed([AccessRule("other", SEND | LISTEN, "one", "two")]) == (True, 0)
    assert reviewed([]) == (True, 0)


def test_changes_are_told_without_a_key() -> None:
    before = [AccessRule("a", SEND, "secret-1", "secret-2"), AccessRule("b", SEND, "secret-3")]
    after = [AccessRule("A", SEND | LISTEN, "secret-1", "secret-4"), AccessRule("c", MANAGE, "secret-5")]
    assert access_changes(before, after) == [
        "rule b removed",
        "rule A has Send,Listen now",
        "keys of rule A changed",
        "rule c added with Manage,Send,Listen",
    ]


# -- hostile tokens ------------------------------------------------------------------------------------------------

_TEXT = st.text(alphabet=st.characters(codec="ascii"), max_size=40)
_FIELD = st.builds("{}={}".format, st.sampled_from(["sr", "sig", "se", "skn", "SR", "x", ""]), _TEXT)


@given(st.lists(_FIELD, max_size=8), st.text(max_size=40))
def test_no_made_up_token_is_good_and_none_is_echoed(fields: list[str], tail: str) -> None:
    canary = "c2VjcmV0LXNpZ25hdHVyZS1vZi10aGUtY2FuYXJ5IQ=="
    token = "SharedAccessSignature " + "&".join([*fields, f"sig={canary}"]) + tail
    with pytest.raises(Unauthorized) as caught:
        RIGHTS.check_token(token, AUDIENCE, NOW_MS)
    assert canary not in caught.value.description
    assert isinstance(claimed_rule(token), str)


@given(st.integers(min_value=0, max_value=10_000), st.sampled_from(list("&=% +/;\n\x00é") + ["", "%2525", "sr=", "&&"]))
def test_a_good_token_with_anything_put_into_it_is_the_same_token_or_none(at: int, put: str) -> None:
    token = sas_token()
    at %= len(token)
    changed = token[:at] + put + token[at:]
    try:
        grant = RIGHTS.check_token(changed, AUDIENCE, NOW_MS)
    except Unauthorized:
        return
    assert (grant.scope, grant.rights, grant.expires_ms) == ("q", ANY, NOW_MS + HOUR_S * 1000)
