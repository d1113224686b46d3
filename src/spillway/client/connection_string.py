"""Connection strings, as the Azure portal, the emulator and `spillway connection-string` print them.

A string that is wrong is a ValueError that says which part is wrong and never repeats a value: any of them may be
the key, also one that was pasted into the wrong place.
"""

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from spillway.client import identity

TLS_PORT: Final = 5671
CLEAR_PORT: Final = 5672
WEB_TLS_PORT: Final = 443  # of WebSockets
WEB_CLEAR_PORT: Final = 80

# Longer than any real one; a file pasted by mistake is refused before it is looked at.
CHARS_MAX: Final = 8_192

_ENDPOINT: Final = "endpoint"
_KEY_NAME: Final = "sharedaccesskeyname"
_KEY: Final = "sharedaccesskey"
_SIGNATURE: Final = "sharedaccesssignature"
_ENTITY_PATH: Final = "entitypath"
_EMULATOR: Final = "usedevelopmentemulator"
_TRANSPORT: Final = "transporttype"
_SPELLING: Final = {
    _ENDPOINT: "Endpoint",
    _KEY_NAME: "SharedAccessKeyName",
    _KEY: "SharedAccessKey",
    _SIGNATURE: "SharedAccessSignature",
    _ENTITY_PATH: "EntityPath",
    _EMULATOR: "UseDevelopmentEmulator",
    _TRANSPORT: "TransportType",
    **identity.SPELLING,
}
_AMQP: Final = "amqp"
_WEBSOCKETS: Final = "amqpwebsockets"
_SCHEMES: Final = ("sb", "amqps")
NO_CREDENTIAL: Final = (
    "the connection string has neither a SharedAccessKey nor a SharedAccessSignature, nor Authentication for Entra ID"
)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\]")


@dataclass(frozen=True)
class ConnectionString:
    """What a connection string says. Its repr shows no secret."""

    host: str
    port: int | None
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    entity_path: str | None = None
    is_emulator: bool = False
    demands_tls: bool = False  # an amqps:// endpoint is never spoken to in clear
    is_websocket: bool = False  # AMQP goes inside one
    identity: "identity.Identity | None" = None  # of Entra ID, in the place of a key

    @property
    def authority(self) -> str:
        """Host and port as the endpoint gave them: what tokens are signed for."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def has_credential(self) -> bool:
        """Whether it says how to get in: a key, a signature or an identity."""
        return self.key is not None or self.signature is not None or self.identity is not None

    @property
    def address(self) -> str:
        """The host to dial: an IPv6 address without its brackets."""
        return self.host.strip("[]")

    def port_for(self, tls: bool) -> int:
        if self.port is not None:
            return self.port
        if self.is_websocket:
            return WEB_TLS_PORT if tls else WEB_CLEAR_PORT
        return TLS_PORT if tls else CLEAR_PORT


def parse_connection_string(text: str) -> ConnectionString:
    """Read a connection string; ValueError says which part is wrong, without its value."""
    parts = _split(text)
    if _ENDPOINT not in parts:
        raise ValueError("the connection string has no Endpoint")
    endpoint = _split_endpoint(parts[_ENDPOINT])
    host, port = _host_and_port(endpoint)
    if _KEY in parts and _SIGNATURE in parts:
        raise ValueError("the connection string has both a SharedAccessKey and a SharedAccessSignature")
    if (_KEY in parts) != (_KEY_NAME in parts):
        raise ValueError("SharedAccessKeyName and SharedAccessKey go together: one of them is missing")
    who = identity.identity_of(parts)
    if who is not None and not parts.keys().isdisjoint((_KEY, _KEY_NAME, _SIGNATURE)):
        raise ValueError("the connection string has Authentication, for Entra ID, and a shared access key or signature")
    ways = [way for way in (parts.get(_KEY), parts.get(_SIGNATURE), who) if way is not None]
    assert len(ways) <= 1, "two ways in were refused above"
    return ConnectionString(
        host=host,
        port=port,
        key_name=parts.get(_KEY_NAME),
        key=parts.get(_KEY),
        signature=parts.get(_SIGNATURE),
        entity_path=parts.get(_ENTITY_PATH),
        # Both SDKs compare with the lower-case literal (docs/wire.md, "Ports and schemes"); another is more likely a
        # mistake than a wish for TLS, and a silent guess either way would be worse than a question.
        is_emulator=_emulator_flag(parts.get(_EMULATOR)),
        demands_tls=endpoint.scheme == "amqps",
        is_websocket=_is_websocket(parts.get(_TRANSPORT)),
        identity=who,
    )


def parse_host(host: str) -> tuple[str, int | None]:
    """Host and port of a namespace as programs give it: `contoso.servicebus.windows.net`, with a scheme or without."""
    text = host.strip()
    return _host_and_port(_split_endpoint(text if "://" in text else f"sb://{text}"))


def _split(text: str) -> dict[str, str]:
    if len(text) > CHARS_MAX:
        raise ValueError(f"a connection string has at most {CHARS_MAX} characters")
    parts: dict[str, str] = {}
    for number, part in enumerate(text.strip().split(";"), start=1):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        value = value.strip()
        if not equals:
            raise ValueError(f"part {number} of the connection string is not of the form Name=Value")
        if name not in _SPELLING:
            raise ValueError(f"part {number} of the connection string has an unknown name")
        if name in parts:
            raise ValueError(f"the connection string has {_SPELLING[name]} twice")
        if not value:
            raise ValueError(f"{_SPELLING[name]} of the connection string is empty")
        if not value.isprintable():
            raise ValueError(f"{_SPELLING[name]} of the connection string has a character that cannot be printed")
        parts[name] = value
    return parts


def _split_endpoint(value: str) -> SplitResult:
    try:
        endpoint = urlsplit(value)
    except ValueError:
        raise ValueError("Endpoint of the connection string is not a URL such as sb://host/") from None
    if endpoint.scheme not in _SCHEMES:
        raise ValueError("Endpoint of the connection string must begin with sb:// or amqps://")
    if endpoint.path not in ("", "/") or endpoint.query or endpoint.fragment or "@" in endpoint.netloc:
        raise ValueError("Endpoint of the connection string must be a scheme, a host and at most a port")
    return endpoint


def _host_and_port(endpoint: SplitResult) -> tuple[str, int | None]:
    found = _HOST.match(endpoint.netloc)
    if found is None:
        raise ValueError("Endpoint of the connection string has no valid host")
    host, rest = found.group(0), endpoint.netloc[found.end() :]
    if not rest:
        return host, None
    digits = rest[1:]
    if rest[0] != ":" or not digits.isascii() or not digits.isdigit() or len(digits) > 5:
        raise ValueError("Endpoint of the connection string has no valid host or port")
    port = int(digits)
    if not 1 <= port <= 65_535:
        raise ValueError("the port in Endpoint of the connection string is not between 1 and 65535")
    return host, port


def _emulator_flag(value: str | None) -> bool:
    if value is None or value == "false":
        return False
    if value == "true":
        return True
    raise ValueError("UseDevelopmentEmulator of the connection string must be true or false")


def _is_websocket(value: str | None) -> bool:
    if value is None or value.lower() == _AMQP:
        return False
    if value.lower() == _WEBSOCKETS:
        return True
    raise ValueError("TransportType of the connection string must be Amqp or AmqpWebSockets")
