"""Connection strings by the name of a secret."""

from pathlib import Path

import pytest

from spillway.client.secrets import SECRET_BYTES_MAX, connection_string_at

TEXT = "Endpoint=sb://contoso.example;SharedAccessKeyName=k;SharedAccessKey=topsecret"


def test_a_variable_a_file_and_the_string_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUS", f" {TEXT}\n")
    (tmp_path / "bus").write_text(f"{TEXT}\n")
    assert connection_string_at("env:BUS") == connection_string_at(f"file:{tmp_path / 'bus'}") == TEXT
    assert connection_string_at(TEXT) == TEXT


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "does not hold a connection string"),
        (b"\xff\xfe", "does not hold a connection string"),
        (b"x" * (SECRET_BYTES_MAX + 1), "does not hold a connection string"),
        (b"topsecret", "not of the form"),
        (b"Endpoint=sb://h", "neither a SharedAccessKey nor"),
    ],
)
def test_what_is_found_there_is_never_repeated(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bus"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as refused:
        connection_string_at(f"file:{path}")
    assert "topsecret" not in str(refused.value) and str(path) in str(refused.value)


def test_a_secret_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"env:NO_SUCH: there is no environment variable NO_SUCH"):
        connection_string_at("env:NO_SUCH")
    with pytest.raises(ValueError, match=r"file:/no/such: the file cannot be read here"):
        connection_string_at("file:/no/such")
