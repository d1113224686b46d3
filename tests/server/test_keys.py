"""The key of a data directory, and what must never be logged."""

import logging
import stat
from pathlib import Path

import pytest

from spillway.server.keys import BadKeyFile, connection_string, ensure_key, read_key, root_rights
from spillway.server.logs import RedactingFormatter, redact


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    key = ensure_key(tmp_path)
    assert ensure_key(tmp_path) == key
    assert read_key(tmp_path) == key
    assert len(key) == 44
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


def test_two_data_directories_have_two_keys(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert ensure_key(tmp_path / "a") != ensure_key(tmp_path / "b")


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"RootManageSharedAccessKey": ""}', "not json"])
def test_a_damaged_key_file_is_reported_and_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(BadKeyFile, match="holds no key"):
        ensure_key(tmp_path)


def test_the_key_opens_the_whole_namespace() -> None:
    rights = root_rights("secret")
    assert rights.check_password("RootManageSharedAccessKey", "secret") is not None
    assert rights.check_password("RootManageSharedAccessKey", "SECRET") is None


def test_a_connection_string_has_the_form_the_sdks_read() -> None:
    assert connection_string("localhost", 5672, "k=") == (
        "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=k=;"
        "UseDevelopmentEmulator=true;"
    )
    assert "UseDevelopmentEmulator" not in connection_string("broker.example", 5672, "k", is_clear_text=False)
    assert "sb://[fd00::1]:5672;" in connection_string("fd00::1", 5672, "k")


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
