"""What a namespace's port gets for its HTTP clients; HTTP itself is imported when the first of them comes."""

import asyncio
from typing import TYPE_CHECKING

from spillway.admin.namespace import AdministeredNamespace

if TYPE_CHECKING:
    from spillway.admin.protocol import Connections


class Front:
    """Called once a connection, by the listener that has seen the beginning of an HTTP request."""

    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace
        self.connections: Connections | None = None

    def __call__(self) -> asyncio.Protocol:
        return self.warm_up().accept()

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
