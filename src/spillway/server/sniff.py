"""What a client speaks, told by its first bytes (docs/design.md, "One port")."""

from typing import Final

UNDECIDED: Final = 0
TLS: Final = 1
AMQP: Final = 2
HTTP: Final = 3
OTHER: Final = 4

PEEK_BYTES: Final = 8  # the longest of the beginnings below
TLS_HANDSHAKE: Final = b"\x16"  # the content type of a TLS record that carries a ClientHello
AMQP_BEGINNING: Final = b"AMQP"
HTTP_BEGINNINGS: Final = (
    b"GET ",
    b"PUT ",
    b"POST ",
    b"HEAD ",
    b"PATCH ",
    b"TRACE ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
)


def classify(first: bytes) -> int:
    """`UNDECIDED` while the bytes so far could still become more than one of the kinds."""
    if first.startswith(AMQP_BEGINNING):
        return AMQP
    if first.startswith(TLS_HANDSHAKE):
        return TLS
    if first.startswith(HTTP_BEGINNINGS):
        return HTTP
    for beginning in (AMQP_BEGINNING, *HTTP_BEGINNINGS):
        if beginning.startswith(first):
            return UNDECIDED
    return OTHER
