"""Who is let in at SASL. ANONYMOUS and MSSBCBS mean "not yet": rights come from `$cbs` (docs/wire.md, "SASL")."""

from typing import Final

from spillway.dialect.rights import Grant, Rights

MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")

OK: Final = 0
AUTH_FAILED: Final = 1

# RFC 4616: [authzid] NUL authcid NUL passwd, each at most 255 octets
PLAIN_BYTES_MAX: Final = 3 * 255 + 2


class SaslVerdict:
    """`name` is what a password was given for, whether it was good or not."""

    def __init__(self, code: int, grants: list[Grant], name: str = "") -> None:
        self.code = code
        self.grants = grants
        self.name = name


def judge(mechanism: str, response: bytes, rights: Rights, is_plain_allowed: bool) -> SaslVerdict:
    if mechanism == "ANONYMOUS" or mechanism == "MSSBCBS" or mechanism == "":
        return SaslVerdict(OK, [])
    if mechanism == "PLAIN" and is_plain_allowed:
        return _check_plain(response, rights)
    return SaslVerdict(AUTH_FAILED, [])


def _check_plain(response: bytes, rights: Rights) -> SaslVerdict:
    parts = response.split(b"\x00")
    if len(response) > PLAIN_BYTES_MAX or len(parts) != 3:
        return SaslVerdict(AUTH_FAILED, [])
    try:
        name = parts[1].decode()
        grants = rights.check_password(name, parts[2].decode())
    except UnicodeDecodeError:
        return SaslVerdict(AUTH_FAILED, [])
    return SaslVerdict(OK if grants else AUTH_FAILED, grants, name)
