"""The secondary namespace's manager: sees which backlog queues exist, and makes those that do not."""

from pathlib import Path
from typing import Any, Self

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties

from spillway.paired.backlog import backlog_properties
from spillway.paired.clear_text import ClearTextTransport
from spillway.paired.endpoints import endpoint_of
from spillway.paired.parameters import administration_credential, optional_file
from spillway.paired.parameters import host as checked_host


class NamespaceManager:
    """Over the SDK's administration client; needs a key or credential with the right Manage.

    It speaks HTTPS, or clear text if the connection string says `UseDevelopmentEmulator=true` and no certificate
    authority is given.
    """

    def __init__(self, host: str, credential: Any, *, ca_file: str | Path | None = None, **sdk_options: Any) -> None:
        self.host = checked_host("host", host)
        options = _options(ca_file, sdk_options)
        self.client = ServiceBusAdministrationClient(
            host, administration_credential("credential", credential), **options
        )

    @classmethod
    def from_connection_string(cls, conn_str: str, *, ca_file: str | Path | None = None, **sdk_options: Any) -> Self:
        manager = cls.__new__(cls)
        endpoint = endpoint_of(conn_str)
        options = _options(ca_file, sdk_options)
        if endpoint.is_clear_text and not options.keys() & {"connection_verify", "transport"}:
            options["transport"] = ClearTextTransport(**sdk_options)
        manager.host = endpoint.host
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
    """The library owns the retries: the SDK's would keep the cause back until there is no time left to tell it."""
    checked = optional_file("ca_file", ca_file)
    trusted = {} if checked is None else {"connection_verify": checked}
    return {"retry_total": 0, **trusted, **sdk_options}
