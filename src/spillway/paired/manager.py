"""The secondary namespace's manager: sees which backlog queues exist, and makes those that do not."""

from pathlib import Path
from typing import Any, Self

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties

from spillway.paired.backlog import backlog_properties
from spillway.paired.endpoints import host_of


class NamespaceManager:
    """Over the SDK's administration client; needs a key or credential with the right Manage."""

    def __init__(self, host: str, credential: Any, *, ca_file: str | Path | None = None, **sdk_options: Any) -> None:
        self.host = host
        self.client = ServiceBusAdministrationClient(host, credential, **_options(ca_file, sdk_options))

    @classmethod
    def from_connection_string(cls, conn_str: str, *, ca_file: str | Path | None = None, **sdk_options: Any) -> Self:
        manager = cls.__new__(cls)
        manager.host = host_of(conn_str)
        options = _options(ca_file, sdk_options)
        manager.client = ServiceBusAdministrationClient.from_connection_string(conn_str, **options)
        return manager

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.client.close()

    async def find_queue(self, path: str) -> QueueProperties | None:
        try:
            return await self.client.get_queue(path)
        except ResourceNotFoundError:
            return None

    async def ensure_backlog_queue(self, path: str) -> tuple[QueueProperties, bool]:
        """The queue, and whether it was made now. One that is there is left as it is (contract C11, C14)."""
        found = await self.find_queue(path)
        if found is not None:
            return found, False
        try:
            return await self.client.create_queue(path, **backlog_properties()), True
        except ResourceExistsError:  # another client of the same pairing was faster
            found = await self.find_queue(path)
            if found is None:
                raise
            return found, False


def _options(ca_file: str | Path | None, sdk_options: dict[str, Any]) -> dict[str, Any]:
    if ca_file is not None:
        sdk_options.setdefault("connection_verify", str(ca_file))
    return sdk_options
