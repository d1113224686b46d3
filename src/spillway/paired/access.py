"""How a factory was told to reach its namespace: a connection string, or a host and a credential."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class NamespaceAccess:
    """Kept beside the SDK's client for the syphon, which speaks to the namespace by itself. No secret in its repr."""

    host: str
    connection_string: str | None = field(default=None, repr=False)
    credential: Any = field(default=None, repr=False)
