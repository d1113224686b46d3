"""The development CA and what is signed with it."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from spillway.server.tls import RENEW_BEFORE, SERVER_LIFE, ensure_certificates, server_context

NOW = datetime(2024, 5, 1, tzinfo=UTC)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(path: Path) -> set[str]:
    found = certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}


def test_keys_are_readable_by_their_owner_alone_and_the_ca_by_everyone(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path / "tls", "localhost", NOW)
    assert stat.S_IMODE(files.ca_key.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.server.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.ca.stat().st_mode) == 0o644
    assert b"PRIVATE" not in files.ca.read_bytes()


def test_the_server_is_certified_for_every_name_of_this_machine(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, "broker.example", NOW)
    assert {"localhost", "127.0.0.1", "::1", "broker.example"} <= names(files.server)
    certificate(files.server).verify_directly_issued_by(certificate(files.ca))


def test_a_later_start_uses_what_is_there(tmp_path: Path) -> None:
    before = ensure_certificates(tmp_path, "localhost", NOW).server.read_bytes()
    after = ensure_certificates(tmp_path, "localhost", NOW + timedelta(days=300)).server.read_bytes()
    assert before == after


def test_a_certificate_near_its_end_is_renewed_under_the_same_ca(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, "localhost", NOW)
    ca, server = files.ca.read_bytes(), files.server.read_bytes()
    late = NOW + SERVER_LIFE - RENEW_BEFORE + timedelta(hours=1)
    ensure_certificates(tmp_path, "localhost", late)
    assert files.ca.read_bytes() == ca
    assert files.server.read_bytes() != server
    assert certificate(files.server).not_valid_after_utc > late + timedelta(days=300)


def test_a_new_host_name_gets_a_new_certificate(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, "localhost", NOW)
    files = ensure_certificates(tmp_path, "10.1.2.3", NOW)
    assert "10.1.2.3" in names(files.server)


def test_a_ca_that_cannot_sign_for_a_whole_life_is_replaced(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, "localhost", NOW)
    old = files.ca.read_bytes()
    ensure_certificates(tmp_path, "localhost", NOW + timedelta(days=3640))
    assert files.ca.read_bytes() != old


def test_damaged_files_are_made_anew(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, "localhost", NOW)
    files.about.write_text("{")
    files.ca_key.write_text("not a key")
    server_context(ensure_certificates(tmp_path, "localhost", NOW))
