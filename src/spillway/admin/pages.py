"""Pages of strangers: what a browser that somebody else's page has put to work may ask of this broker.

Where the key is a secret a page cannot sign anything, and nothing is looked at. Where everybody knows it (`--dev`), any
page could administer the broker of whoever looks at it: browsers let pages send requests to this machine and open
WebSockets, and a page can be served under a name that leads to this machine a moment later (DNS rebinding). What a page
cannot do is hide the name it was served under: it stands in `Origin`, and in `Host` if it claims to be at home here. So
both must be names that no web site can have, or one that the operator has allowed.
"""

import ipaddress
from collections.abc import Set
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from spillway.admin.http_refusals import HttpRefusal

# Nobody can have a web site under these: the first ones are reserved, the last is not given to anybody for pages.
PRIVATE_ENDS: Final = (".localhost", ".internal", ".test", ".servicebus.windows.net")
SHOWN_CHARS_MAX: Final = 100


def refuse_pages(headers: Headers, is_key_known: bool, allowed: Set[str]) -> None:
    """Raises the fault that says which name it was, and how it can be allowed."""
    if not is_key_known:
        return
    for header in ("host", "origin"):
        for value in headers.getlist(header):
            refuse_name(header, value, allowed)


def refuse_name(header: str, value: str, allowed: Set[str]) -> None:
    name = host_in(value if header == "origin" else f"//{value}")
    if name in allowed or is_private(name):
        return
    begin = "SubCode=40300. This namespace has the development key, which everybody knows: "
    if not name:
        raise HttpRefusal(
            403, f"{begin}pages that do not say where they are from ('{header.capitalize()}') may not connect."
        )
    shown = name[:SHOWN_CHARS_MAX]
    raise HttpRefusal(
        403,
        f"{begin}'{shown}' ('{header.capitalize()}') may be the name of a web site. If it is yours: "
        f"spillway serve --allow-host {shown}, or serve without --dev.",
    )


def host_in(url: str) -> str:
    """The name or address in it, in small letters; empty if there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_private(name: str) -> bool:
    """Whether a name is of this machine or of its network: a name or address that no web site can have."""
    if not name:
        return False
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return "." not in name or name.endswith(PRIVATE_ENDS)
