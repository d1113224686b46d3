"""What a namespace's port gets for its HTTP clients; HTTP itself is imported when the first of them comes."""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from spillway.admin.namespace import AdministeredNamespace

if TYPE_CHECKING:
    from spillway.admin.protocol import Connections


class HttpFront:
    """Called once a connection, by the listener that has seen the beginning of an HTTP request."""

    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace
        self.connections: Connections | None = None

    def __call__(
        self, open_stream: Callable[[], asyncio.Protocol | None], raw: socket.socket | None
    ) -> asyncio.Protocol:
        """`open_stream` leads to the broker, for a client that wants a WebSocket; None if it takes no more of them."""
        return self.warm_up().accept(open_stream, raw)

    def warm_up(self) -> "Connections":
        """Import and set up what serves HTTP, if that is not done yet."""
        if self.connections is None:
            from spillway.admin.app import Administration
            from spillway.admin.protocol import Connections

            self.connections = Connections(Administration(self.namespace))
        return self.connections

    def stop(self) -> None:
        """Let go of idle clients; a request that is being answered is answered first."""
        if self.connections is not None:
            self.connections.stop()

    def abort(self) -> None:
        """Nobody is waited for any more."""
        if self.connections is not None:
            self.connections.abort()
