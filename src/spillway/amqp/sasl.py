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


def write_plain(name: str, password: str) -> bytes:
    """A PLAIN response [RFC 4616]; `dialect/sasl.py` reads it."""
    return b"\x00" + name.encode("utf-8") + b"\x00" + password.encode("utf-8")


def choose_init(offered: SaslMechanisms, wanted: list[str], response: bytes, hostname: str | None) -> SaslInit | None:
    """The first mechanism we want that is offered, with our response; None if there is none."""
    for mechanism in wanted:
        if mechanism in offered.sasl_server_mechanisms:
            return SaslInit(mechanism, response, hostname)
    return None
