"""From HTTP to a WebSocket: who may change over, and why not (docs/wire.md, "WebSocket"; RFC 6455 section 4.2).

No token is asked for here: the AMQP inside has its own login, and nothing can be done without it. Whose page may ask at
all is said in `pages`.
"""

import base64
import binascii
from typing import Final

from starlette.datastructures import Headers
from wsproto.utilities import generate_accept_token

from spillway.admin.http_refusals import HttpRefusal, bad_request
from spillway.admin.paths import decode_path

PATH: Final = "$servicebus/websocket"
SUBPROTOCOLS: Final = ("AMQPWSB10", "amqp")  # Service Bus's own name, and the registered one that Azure takes too
VERSION: Final = "13"
KEY_BYTES: Final = 16


def is_wanted(headers: Headers, path: bytes) -> bool:
    """Whether a request is for a WebSocket, here or in the wrong place, or came to the right place without asking."""
    asked = "upgrade" in words(headers, "connection") and "websocket" in words(headers, "upgrade")
    return asked or path.lower().rstrip(b"/").replace(b"%24", b"$") == b"/" + PATH.encode()


def refuse_upgrade(method: str, version: str, path: bytes, headers: Headers) -> None:
    """Raises the fault that says what is wrong with the request."""
    if decode_path(path).lower() != PATH:
        raise HttpRefusal(404, f"SubCode=40400. There is no WebSocket here; there is one at '/{PATH}'.")
    if method != "GET" or version != "1.1":
        raise bad_request("A WebSocket is asked for with GET and HTTP/1.1.")
    if "upgrade" not in words(headers, "connection") or "websocket" not in words(headers, "upgrade"):
        raise HttpRefusal(
            426, "SubCode=42600. This speaks AMQP over WebSocket: 'Connection: Upgrade, Upgrade: websocket'."
        )
    if headers.getlist("sec-websocket-version") != [VERSION]:
        raise HttpRefusal(426, f"SubCode=42600. 'Sec-WebSocket-Version' must be {VERSION}.")
    if len(headers.getlist("sec-websocket-key")) != 1 or not is_key(headers["sec-websocket-key"]):
        raise bad_request(f"'Sec-WebSocket-Key' must be {KEY_BYTES} bytes in Base64, once.")
    if not chosen_subprotocol(headers):
        names = " or ".join(SUBPROTOCOLS)
        raise bad_request(f"'Sec-WebSocket-Protocol' must offer {names}: AMQP is the only thing spoken here.")
    if "content-length" in headers or "transfer-encoding" in headers:
        raise bad_request("A request for a WebSocket has no body.")


def accepting(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The header lines of the answer 101. No extension is accepted, whatever is offered."""
    return [
        (b"Upgrade", b"websocket"),
        (b"Connection", b"Upgrade"),
        (b"Sec-WebSocket-Accept", generate_accept_token(headers["sec-websocket-key"].encode("latin-1"))),
        (b"Sec-WebSocket-Protocol", chosen_subprotocol(headers).encode()),
    ]


def chosen_subprotocol(headers: Headers) -> str:
    """The first of ours that is offered; empty if none is."""
    offered = words(headers, "sec-websocket-protocol")
    for name in SUBPROTOCOLS:
        if name.lower() in offered:
            return name
    return ""


def words(headers: Headers, name: str) -> list[str]:
    return [word.strip().lower() for line in headers.getlist(name) for word in line.split(",")]


def is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == KEY_BYTES
    except (binascii.Error, ValueError):
        return False
