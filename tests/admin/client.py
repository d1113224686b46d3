"""An administrator without an SDK: requests as they are written, answers as they come."""

import base64
import hashlib
import hmac
import http.client
import re
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

from spillway.server.keys import DEVELOPMENT_KEY, KEY_NAME

WAIT_S = 20
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


def token(resource: str, key: str = DEVELOPMENT_KEY, name: str = KEY_NAME, valid_s: float = 600) -> str:
    """As the SDKs sign it."""
    encoded = quote_plus(resource)
    expiry = str(int(time.time() + valid_s))
    signature = hmac.new(key.encode(), f"{encoded}\n{expiry}".encode(), hashlib.sha256).digest()
    signed = quote(base64.b64encode(signature), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={signed}&se={expiry}&skn={name}"


def entry(description: str, inner: str = "", attributes: str = "") -> str:
    """A body as an SDK would send it."""
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{description} xmlns="{SERVICE_BUS}" {attributes}>{inner}</{description}></content></entry>'
    )


@dataclass
class Answered:
    status: int
    content_type: str | None
    etag: str | None
    body: str

    @property
    def detail(self) -> str:
        """Of an error, without its tracking id."""
        found = re.search(r"<Detail>(.*)</Detail>", self.body, flags=re.DOTALL)
        assert found is not None, self.body
        return found[1].partition(" TrackingId:")[0]


class Client:
    def __init__(self, port: int) -> None:
        self.port = port
        self.connection = http.client.HTTPConnection("localhost", port, timeout=WAIT_S)
        self.token: str | None = token(f"https://localhost:{port}")

    def ask(
        self, method: str, uri: str, body: str | bytes | None = None, *, headers: dict[str, Any] | None = None
    ) -> Answered:
        sent = {"Content-Type": "application/atom+xml", **(headers or {})}
        if self.token is not None:
            sent.setdefault("Authorization", self.token)
        data = body.encode() if isinstance(body, str) else body
        self.connection.request(method, uri, data, sent)
        response = self.connection.getresponse()
        text = response.read().decode()
        return Answered(response.status, response.getheader("Content-Type"), response.getheader("ETag"), text)

    def names(self) -> list[str]:
        """Of all queues and topics."""
        found = []
        for kind in ("queues", "topics"):
            feed = self.ask("GET", f"/$Resources/{kind}?$skip=0&$top=1000&api-version=2021-05").body
            found += re.findall(r'<entry[^>]*><id>[^<]*</id><title type="text">([^<]*)</title>', feed)
        return found

    def close(self) -> None:
        self.connection.close()
