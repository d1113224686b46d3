"""The rules and keys of a data directory, and what must never be logged (S9, S10)."""

import json
import logging
import stat
from pathlib import Path

import pytest

from spillway.model.access import ALL_RIGHTS, LISTEN, SEND
from spillway.server.keys import (
    DEVELOPMENT_KEY,
    BadKeyFile,
    connection_string,
    ensure_rules,
    new_rule,
    read_rules,
    root_rights,
    served_rules,
    write_rules,
)
from spillway.server.logs import RedactingFormatter, redact

KEY = "a2V5IG9mIGEgcnVsZSB3aXRoIGVub3VnaCBiaXRzIQ=="


def root_key(data: Path) -> str:
    """Of the rule that may do everything, which is made if it is missing."""
    return next(rule.primary_key for rule in ensure_rules(data) if rule.name == "RootManageSharedAccessKey")


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    key = root_key(tmp_path)
    assert root_key(tmp_path) == key
    assert [rule.primary_key for rule in read_rules(tmp_path) or []] == [key]
    assert len(key) == 44
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


def test_two_data_directories_have_two_keys(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert root_key(tmp_path / "a") != root_key(tmp_path / "b")


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"RootManageSharedAccessKey": ""}', "not json"])
def test_a_damaged_key_file_is_reported_and_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(BadKeyFile, match="holds no key"):
        root_key(tmp_path)


def test_the_key_opens_the_whole_namespace() -> None:
    rights = root_rights("secret")
    (grant,) = rights.check_password("RootManageSharedAccessKey", "secret")
    assert (grant.scope, grant.rights) == ("", ALL_RIGHTS)
    assert rights.check_password("RootManageSharedAccessKey", "SECRET") == []


def test_a_file_holds_several_rules_and_gives_back_what_was_written(tmp_path: Path) -> None:
    rules = [*ensure_rules(tmp_path), new_rule("reader", LISTEN), new_rule("both", SEND | LISTEN)]
    write_rules(tmp_path, rules)
    found = read_rules(tmp_path)
    assert found is not None
    assert [rule.to_plain() for rule in found] == [rule.to_plain() for rule in rules]
    assert root_key(tmp_path) == rules[0].primary_key
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


def test_a_file_with_one_key_as_it_was_written_before_is_read(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({"RootManageSharedAccessKey": KEY}))
    (rule,) = ensure_rules(tmp_path)
    assert (rule.primary_key, rule.secondary_key, rule.rights) == (KEY, "", ALL_RIGHTS)


def test_the_rule_that_may_do_everything_is_made_beside_the_others(tmp_path: Path) -> None:
    write_rules(tmp_path, [new_rule("reader", LISTEN)])
    assert [rule.name for rule in ensure_rules(tmp_path)] == ["RootManageSharedAccessKey", "reader"]


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"rights": ["Send"]}, "holds no key for rule r"),
        ({"rights": ["Send"], "primary_key": "short-CANARY"}, "holds no key for rule r"),
        ({"rights": ["Send"], "primary_key": "CANARY;" + KEY}, "holds no key for rule r"),
        ({"rights": ["Send"], "primary_key": "CANARY " + KEY}, "holds no key for rule r"),
        ({"rights": ["Send"], "primary_key": KEY, "secondary_key": 5}, "holds no key for rule r"),
        ({"rights": ["Send", "Manage"], "primary_key": KEY}, "Manage permission should also include"),
        ({"rights": ["Send", "Send"], "primary_key": KEY}, "more than once"),
        ({"rights": [], "primary_key": KEY}, "at least one of the rights"),
        ({"rights": ["Everything"], "primary_key": KEY}, "not 'Everything'"),
        ({"rights": "Send", "primary_key": KEY}, "must be a list"),
        ({"rights": [1], "primary_key": KEY}, "must be a list"),
        ({"rights": ["Send"], "primary_key": KEY, "key": "CANARY" + KEY}, "must be an object with"),
        ([KEY], "must be an object with"),
        (None, "must be an object with"),
    ],
)
def test_a_wrong_rule_in_the_file_is_named_and_no_key_is_shown(tmp_path: Path, rule: object, problem: str) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({"r": rule}))
    with pytest.raises(BadKeyFile, match=problem) as caught:
        read_rules(tmp_path)
    assert KEY not in str(caught.value)
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (json.dumps({"a": KEY, "b": KEY}).replace('"b"', '"a"'), "holds no key"),
        (json.dumps({"a": KEY, "A": KEY}), "differ in case only"),
        (json.dumps({"a b": KEY}), "letters, digits"),
        (json.dumps({"": KEY}), "must not be empty"),
        (json.dumps({"a" * 257: KEY}), "at most 256 characters"),
        (json.dumps({f"r{number}": KEY for number in range(13)}), "at most 12"),
        ("[" * 100_000, "holds no key"),
    ],
)
def test_a_wrong_file_is_refused_and_no_key_is_shown(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(BadKeyFile, match=problem) as caught:
        read_rules(tmp_path)
    assert KEY not in str(caught.value)


def test_a_file_that_others_could_read_is_theirs_no_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ensure_rules(tmp_path)
    (tmp_path / "keys.json").chmod(0o644)
    ensure_rules(tmp_path)
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    assert "could be read by others" in caplog.text


def test_with_the_development_key_the_others_of_the_file_are_in_force_too(tmp_path: Path) -> None:
    assert [rule.name for rule in served_rules(tmp_path, is_development=True)] == ["RootManageSharedAccessKey"]
    write_rules(tmp_path, [*ensure_rules(tmp_path), new_rule("reader", LISTEN)])
    root, reader = served_rules(tmp_path, is_development=True)
    assert root.secrets() == [DEVELOPMENT_KEY]
    assert (reader.name, reader.rights) == ("reader", LISTEN)


def test_a_connection_string_has_the_form_the_sdks_read() -> None:
    assert connection_string("localhost", 5672, "k=") == (
        "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=k=;"
        "UseDevelopmentEmulator=true;"
    )
    assert "UseDevelopmentEmulator" not in connection_string("broker.example", 5672, "k", is_clear_text=False)
    assert "sb://[fd00::1]:5672;" in connection_string("fd00::1", 5672, "k")
    assert connection_string("h", 1, "k", False, "reader", "a/b").endswith(
        "SharedAccessKeyName=reader;SharedAccessKey=k;EntityPath=a/b;"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Endpoint=sb://x;SharedAccessKeyName=Root;SharedAccessKey=CANARY+/=;UseDevelopmentEmulator=true;",
        "token SharedAccessSignature sr=x&sig=CANARY%3D&se=1&skn=Root",
        "SharedAccessSignature=CANARY",
        "GET /?key=CANARY&x=1",
        "Authorization: CANARY",
        '{"RootManageSharedAccessKey": "CANARY"}',
        '{"PrimaryAccessKey":"CANARY"}',
        "Authorization: Bearer CANARY",
        "{'Authorization': 'Bearer CANARY', 'Host': 'x'}",
        "[(b'authorization', b'SharedAccessSignature sr=x&sig=CANARY'), (b'host', b'x')]",
        "authorization=CANARY CANARY",
        "SharedAccessKey = CANARY",
        "SharedAccessSignature sig=CANARY&sr=x",
        "<PrimaryKey>CANARY</PrimaryKey><SecondaryKey>CANARY</SecondaryKey>",
        '{"r": {"rights": ["Send"], "primary_key": "CANARY", "secondary_key": "CANARY"}}',
        "AccessRule(key='CANARY')",
    ],
)
def test_no_log_line_shows_a_secret(text: str) -> None:
    assert "CANARY" not in redact(text)
    record = logging.LogRecord("spillway", logging.INFO, "", 1, "said %s", (text,), None)
    assert "CANARY" not in RedactingFormatter().format(record)


def test_a_traceback_is_redacted_too() -> None:
    try:
        raise ValueError("SharedAccessKey=CANARY")
    except ValueError as error:
        record = logging.LogRecord("spillway", 40, "", 1, "failed", (), (type(error), error, error.__traceback__))
    line = RedactingFormatter().format(record)
    assert "CANARY" not in line
    assert "ValueError" in line


def test_names_and_ports_are_still_shown() -> None:
    assert redact("namespace=a SharedAccessKeyName=Root port=5672") == "namespace=a SharedAccessKeyName=Root port=5672"
