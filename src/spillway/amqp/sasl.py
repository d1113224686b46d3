"""SASL as AMQP wraps it [5.3]: which mechanism, with which words. Who may come in is the owner's decision.

Every mechanism we know says all it has to say in its first response, so there are no challenges.
"""

from typing import Final

from spillway.amqp.performatives import SaslInit, SaslMechanisms

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
MSSBCBS: Final = "MSSBCBS"
EXTERNAL: Final = "EXTERNAL"

# [5.3.1] allows 512 bytes; tokens passed as a password are longer, and no peer can make us keep more than this.
SASL_FRAME_BYTES_MAX: Final = 4_096
# Bytes that a client may send behind its SASL response before the owner has decided.
UNDECIDED_BYTES_MAX: Final = 65_536


class PlainCredentials:
    """What a PLAIN response says [RFC 4616]."""

    def __init__(self, authorization_id: str, name: str, password: str) -> None:
        self.authorization_id = authorization_id
        self.name = name
        self.password = password


def read_plain(response: bytes) -> PlainCredentials | None:
    """The three texts of a PLAIN response, or None if it is no such thing."""
    parts = response.split(b"\x00")
    if len(parts) != 3 or not parts[1]:
        return None
    try:
        return PlainCredentials(parts[0].decode("utf-8"), parts[1].decode("utf-8"), parts[2].decode("utf-8"))
    except UnicodeDecodeError:
        return None


def write_plain(name: str, password: str) -> bytes:
    """A PLAIN response."""
    return b"\x00" + name.encode("utf-8") + b"\x00" + password.encode("utf-8")


def choose_init(offered: SaslMechanisms, wanted: list[str], response: bytes, hostname: str | None) -> SaslInit | None:
    """The first mechanism we want that is offered, with our response; None if there is none."""
    for mechanism in wanted:
        if mechanism in offered.sasl_server_mechanisms:
            return SaslInit(mechanism, response, hostname)
    return None
