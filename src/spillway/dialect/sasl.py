"""Who is let in at SASL. ANONYMOUS and MSSBCBS mean "not yet": their rights come from `$cbs` (wire-contract 1.4)."""

from typing import Final

from spillway.dialect.rights import Grant, Rights

MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")

OK: Final = 0
AUTH_FAILED: Final = 1

# RFC 4616: [authzid] NUL authcid NUL passwd, each at most 255 octets
PLAIN_BYTES_MAX: Final = 3 * 255 + 2


class SaslVerdict:
    def __init__(self, code: int, grant: Grant | None) -> None:
        self.code = code
        self.grant = grant


def judge(mechanism: str, response: bytes, rights: Rights, is_plain_allowed: bool) -> SaslVerdict:
    if mechanism == "ANONYMOUS" or mechanism == "MSSBCBS" or mechanism == "":
        return SaslVerdict(OK, None)
    if mechanism == "PLAIN" and is_plain_allowed:
        grant = _check_plain(response, rights)
        if grant is not None:
            return SaslVerdict(OK, grant)
    return SaslVerdict(AUTH_FAILED, None)


def _check_plain(response: bytes, rights: Rights) -> Grant | None:
    parts = response.split(b"\x00")
    if len(response) > PLAIN_BYTES_MAX or len(parts) != 3:
        return None
    try:
        return rights.check_password(parts[1].decode(), parts[2].decode())
    except UnicodeDecodeError:
        return None
