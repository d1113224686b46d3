"""Connection strings: which namespace one leads to, and what is wrong with one that leads nowhere.

The SDK says no more than that one is malformed. Nothing of a string is ever shown but the names of its parts and what
`EntityPath` says: the rest may be a key, or a piece of one.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from spillway.paired.parameters import text

_KNOWN: Final = ("Endpoint", "SharedAccessKeyName", "SharedAccessKey", "SharedAccessSignature", "EntityPath")
_NAMES: Final = {name.lower(): name for name in (*_KNOWN, "UseDevelopmentEmulator")}
_QUOTES: Final = ("'", '"')


@dataclass(frozen=True)
class Endpoint:
    """`host` has the port, if one is given. `is_clear_text`: the string says `UseDevelopmentEmulator=true`."""

    host: str
    is_clear_text: bool


def endpoint_of(conn_str: object) -> Endpoint:
    """`TypeError` or `ValueError`, beginning with `conn_str`, if the string cannot be used."""
    parts = _parts_of(text("conn_str", conn_str).strip())
    host = _host_in(parts.get("Endpoint"))
    _check_key(parts)
    if "EntityPath" in parts:
        raise ValueError(
            f"conn_str has EntityPath={parts['EntityPath'][:260]}: leave it out; a namespace is meant, and its "
            "entities are named where senders and receivers are made"
        )
    return Endpoint(host, _is_emulator(parts.get("UseDevelopmentEmulator")))


def host_of(conn_str: object) -> str:
    return endpoint_of(conn_str).host


def _parts_of(conn_str: str) -> dict[str, str]:
    if conn_str.startswith(_QUOTES) or conn_str.endswith(_QUOTES):
        raise ValueError("conn_str has quotes around it: leave them out")
    parts: dict[str, str] = {}
    for number, part in enumerate(conn_str.rstrip(";").split(";"), 1):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"conn_str: its part {number} is not NAME=VALUE; parts are separated by ';'")
        shown = _NAMES.get(name.strip().lower(), f"part {number}")
        if part != part.strip() or name != name.strip() or value != value.strip():
            raise ValueError(f"conn_str has whitespace around {shown} or its value: leave it out")
        if value.startswith(_QUOTES) or value.endswith(_QUOTES):
            raise ValueError(f"conn_str has quotes around the value of {shown}: leave them out")
        if shown in parts:
            raise ValueError(f"conn_str has {shown} twice")
        parts[shown] = value
    return parts


def _host_in(endpoint: str | None) -> str:
    if not endpoint:
        raise ValueError("conn_str has no Endpoint: it begins with Endpoint=sb://HOST")
    scheme, _, _ = endpoint.partition("://")
    try:
        host = urlsplit(endpoint).netloc
    except ValueError:  # a bracket of an IPv6 address is missing
        host = ""
    if scheme.lower() != "sb" or not host or any(each.isspace() for each in host):
        raise ValueError("conn_str: its Endpoint must be sb://HOST or sb://HOST:PORT")
    return host


def _check_key(parts: dict[str, str]) -> None:
    if parts.get("SharedAccessSignature"):
        if parts.get("SharedAccessKey"):
            raise ValueError("conn_str has both a SharedAccessKey and a SharedAccessSignature: one is needed")
        return
    for name in ("SharedAccessKeyName", "SharedAccessKey"):
        if not parts.get(name):
            raise ValueError(
                f"conn_str has no {name}: SharedAccessKeyName and SharedAccessKey are needed, "
                "or a SharedAccessSignature"
            )


def _is_emulator(value: str | None) -> bool:
    """Whether the string is for the emulator. Only `true` is known to the SDK, which would speak TLS after any
    other."""
    if value is None or value.lower() == "false":
        return False
    if value != "true":
        raise ValueError("conn_str: its UseDevelopmentEmulator must be true or false, in small letters")
    return True
