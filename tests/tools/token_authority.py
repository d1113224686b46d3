"""An authority that gives tokens, as azure-identity asks for them: Entra ID's endpoint and that of managed identities.

A real HTTP server on this machine, used by the real azure-identity. The tokens are what the test says, for example a
signature that a broker of ours accepts: it judges a token by its text, whatever its type is called.
"""

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.client.certificates import self_signed

IMDS = "/metadata/identity/oauth2/token"


class TokenAuthority:
    """`asked` has the fields of each request for a token. With a `directory` it speaks TLS and puts `ca_file` there."""

    def __init__(self, make_token: Callable[[], str], directory: Path | None = None) -> None:
        self.make_token = make_token
        self.lifetime_s = 3_600
        self.refusal: tuple[int, dict[str, str]] | None = None
        self.asked: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("localhost", 0), _handler(self))
        self.ca_file = None if directory is None else _secure(self._server, directory)
        scheme = "http" if directory is None else "https"
        self.url = f"{scheme}://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, fields: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked.append(fields)
        if self.refusal is not None:
            return self.refusal
        return 200, {
            "token_type": "Bearer",
            "expires_in": self.lifetime_s,
            "access_token": self.make_token(),
            "resource": fields.get("resource", ""),
        }


def _secure(server: ThreadingHTTPServer, directory: Path) -> Path:
    key, certificate = self_signed("localhost")
    ca_file, key_file = directory / "authority.pem", directory / "authority.key"
    ca_file.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca_file, key_file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return ca_file


def _handler(authority: TokenAuthority) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path)
            tenant = path.path.split("/")[1]
            if path.path == IMDS:
                self.say(*authority.answer({name: values[0] for name, values in parse_qs(path.query).items()}))
            elif path.path.endswith("/.well-known/openid-configuration"):
                base = f"{authority.url}/{tenant}"
                self.say(
                    200,
                    {
                        "issuer": f"{base}/v2.0",
                        "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                        "token_endpoint": f"{base}/oauth2/v2.0/token",
                    },
                )
            else:
                self.say(404, {"error": "not_found"})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            fields = parse_qs(self.rfile.read(length).decode())
            said = {name: values[0] for name, values in fields.items()}
            self.say(*authority.answer({"path": self.path, **said}))

        def say(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            """A test looks into `asked`."""

    return Handler
