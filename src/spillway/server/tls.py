"""A development CA and a server certificate under it, made on first start and kept in the data directory.

Clients that check certificates are given the CA's file. Keys are readable by their owner alone. The server's
certificate is made anew when it nears its end or lacks a name it must have; the CA stays, so clients need not care.
"""

import contextlib
import ipaddress
import json
import os
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway.server.files import PRIVATE, READABLE, write_whole
from spillway.store.own_files import read_own, refuse_link

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_LIFE: Final = timedelta(days=3650)
SERVER_LIFE: Final = timedelta(days=397)  # what the strictest clients accept of a server
RENEW_BEFORE: Final = timedelta(days=30)
BACKDATED: Final = timedelta(days=1)  # clients whose clock is behind
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class CertificateFiles:
    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def ca_key(self) -> Path:
        return self.directory / "ca-key.pem"

    @property
    def server(self) -> Path:
        """The server's certificate and, behind it, its key."""
        return self.directory / "server.pem"

    @property
    def about(self) -> Path:
        """What the certificates say, so that a start need not parse them."""
        return self.directory / "server.json"


def ensure_certificates(directory: Path, host: str, now: datetime | None = None) -> CertificateFiles:
    """Make what is missing or about to end."""
    now = now or datetime.now(UTC)
    files = CertificateFiles(directory)
    names = server_names(host)
    if not is_good(files, names, now):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        make(files, names, now)
    return files


def server_names(host: str) -> list[str]:
    names = [*LOCAL_NAMES, socket.gethostname()]
    if host not in ("", "0.0.0.0", "::"):
        names.append(host)
    return list(dict.fromkeys(name for name in names if name))


def is_good(files: CertificateFiles, names: list[str], now: datetime) -> bool:
    for path in (files.ca, files.ca_key, files.server, files.about):
        refuse_link(path)
    try:
        about = json.loads(read_own(files.about))
        ends = min(datetime.fromisoformat(about["server_ends"]), datetime.fromisoformat(about["ca_ends"]))
        has_names = set(names) <= set(about["names"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return has_names and ends - now > RENEW_BEFORE and files.ca.exists() and files.server.exists()


def server_context(files: CertificateFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.server)
    return context


def make(files: CertificateFiles, names: list[str], now: datetime) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    known = read_ca(files, now)
    if known is None:
        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = ca_certificate(ca_key, now)
        write_whole(files.ca_key, private_pem(ca_key), PRIVATE)
        write_whole(files.ca, public_pem(ca), READABLE)
    else:
        ca, ca_key = known
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = server_certificate(key, names, ca, ca_key, now)
    write_whole(files.server, public_pem(certificate) + private_pem(key), PRIVATE)
    about = {
        "names": names,
        "server_ends": certificate.not_valid_after_utc.isoformat(),
        "ca_ends": ca.not_valid_after_utc.isoformat(),
    }
    write_whole(files.about, json.dumps(about).encode() + b"\n", READABLE)
    with contextlib.suppress(OSError):
        os.chmod(files.directory, 0o755)  # the CA's file is for everyone; the keys have modes of their own


def read_ca(files: CertificateFiles, now: datetime) -> "tuple[x509.Certificate, EllipticCurvePrivateKey] | None":
    """The CA of an earlier start, unless it is damaged or too old to sign for a server's whole life."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        ca = x509.load_pem_x509_certificate(read_own(files.ca))
        key = load_pem_private_key(read_own(files.ca_key), None)
    except (OSError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
        return None
    return (ca, key) if ca.not_valid_after_utc - now > SERVER_LIFE else None


def ca_certificate(key: "EllipticCurvePrivateKey", now: datetime) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    # Two CAs of two data directories must not be taken for each other by a client that trusts both.
    name = common_name(f"Spillway development CA {os.urandom(4).hex()}")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        builder(name, name, key, now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def server_certificate(
    key: "EllipticCurvePrivateKey",
    names: list[str],
    ca: "x509.Certificate",
    ca_key: "EllipticCurvePrivateKey",
    now: datetime,
) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    return (
        builder(common_name("spillway"), ca.subject, key, now, SERVER_LIFE)
        .add_extension(x509.SubjectAlternativeName([general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def builder(
    subject: "x509.Name", issuer: "x509.Name", key: "EllipticCurvePrivateKey", now: datetime, life: timedelta
) -> "x509.CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
    )


def common_name(text: str) -> "x509.Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.OID_COMMON_NAME, text)])


def general_name(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def public_pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def private_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
