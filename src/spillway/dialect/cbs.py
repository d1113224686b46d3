"""`$cbs`: a client puts a token before it uses an entity (docs/wire.md, "Tokens")."""

from typing import Final

from spillway.amqp.types import Int
from spillway.dialect.addresses import Address, parse_address
from spillway.dialect.requests import RequestMessage
from spillway.model.errors import ArgumentError, NotImplementedHere

PUT_TOKEN: Final = "put-token"
ACCEPTED: Final = 202

# Hyphens here, camel case on `$management`.
STATUS_CODE: Final = "status-code"
STATUS_DESCRIPTION: Final = "status-description"

# Before login a connection may keep 64 KiB of ours; a token has some 300 bytes.
REQUEST_BYTES_MAX: Final = 64 * 1024


class PutToken:
    """What is asked: a token, and the audience it is put for."""

    def __init__(self, token: str, audience: str) -> None:
        self.token = token
        self.audience = audience
        self.address: Address = parse_address(audience)


def read_put_token(request: RequestMessage) -> PutToken:
    """`type` is not looked at, the text tells (docs/wire.md, "The type of a token lies")."""
    operation = request.text("operation")
    if operation != PUT_TOKEN:
        raise NotImplementedHere(f"$cbs knows the operation '{PUT_TOKEN}' only, not '{operation[:100]}'.")
    audience = request.text("name")
    token = request.body
    if not isinstance(token, str):
        raise ArgumentError("The body of put-token must be the token, as a string.")
    return PutToken(str(token), audience)


def status_properties(code: int, description: str) -> dict[object, object]:
    """No error-condition among them: Python would then report no status at all."""
    return {STATUS_CODE: Int(code), STATUS_DESCRIPTION: description}
