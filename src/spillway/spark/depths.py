"""The backlog queues of a pairing, as the secondary namespace knows them: which there are, and how much is in them.

Asked over HTTP, which needs the right Manage. Without it the queues are found by
looking for the first so many by name; then nobody knows how deep they are before they are emptied.
"""

import datetime
import re
from dataclasses import dataclass
from html import unescape
from typing import Any, Final
from urllib.parse import quote

from spillway.client import ClientError, Connection, EntityNotFound
from spillway.client.connection_string import parse_connection_string
from spillway.client.control import ControlClient, ControlError
from spillway.model.backlogs import SEGMENT, backlog_path, namespace_name
from spillway.spark.link import Hub
from spillway.spark.options import Access

LOCK_S: Final = 60.0  # contract C7
API_VERSION: Final = "api-version=2021-05"
PAGE: Final = 100
RETRIES: Final = 1  # of the SDK, which would wait for minutes: whoever watches asks again anyway
_TITLE: Final = re.compile(r"<title[^>]*>([^<]*)</title>")
_LOCK: Final = re.compile(r"<LockDuration>PT(?:(\d+)M)?(?:([\d.]+)S)?<")


class SecondaryError(Exception):
    """The secondary namespace cannot be asked about its backlog queues; the text says why."""


@dataclass(frozen=True)
class Depth:
    """`active` counts locked messages too; None is not known, but not nothing."""

    path: str
    active: int | None
    lock_s: float = LOCK_S


class Backlogs:
    """The backlog queues of one primary. Blocking; its connections are the hub's."""

    def __init__(self, hub: Hub, secondary: Access, name: str, probes: int) -> None:
        self.hub = hub
        self.secondary = secondary
        self.name = name
        self.probes = probes
        self.has_manage = True

    def depths(self, paths: tuple[str, ...] = ()) -> list[Depth]:
        """Of these, or of all that there are. `SecondaryError` if nobody can say."""
        from azure.core.exceptions import AzureError

        try:
            if self.has_manage:
                found = self._asked(paths)
                if found is not None:
                    return found
                self.has_manage = False
            return self.hub.run(self._probed(paths))
        except (ClientError, ControlError, AzureError, OSError) as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise SecondaryError(f"the secondary namespace cannot be asked about its backlog queues: {why}") from error

    def _asked(self, paths: tuple[str, ...]) -> list[Depth] | None:
        """None without the right to ask."""
        text = self.secondary.resolve()
        parts = parse_connection_string(text)
        if parts.key is None:
            return None
        if parts.is_emulator:
            return self._asked_in_clear(text, paths)
        return self._asked_by_sdk(text, paths)

    def _asked_in_clear(self, text: str, paths: tuple[str, ...]) -> list[Depth] | None:
        """The SDK insists on TLS, which a connection string for development does not promise."""
        client = ControlClient(text)
        listed = paths or self._listed(client)
        if listed is None:
            return None
        found = []
        for path in listed:
            answer = _got(client, f"/{quote(path)}?{API_VERSION}")
            if answer is None:
                return None
            if answer:  # else its owner removed it
                found.append(Depth(path, _number_in(answer, "ActiveMessageCount"), _seconds_in(answer)))
        return found

    def _listed(self, client: ControlClient) -> list[str] | None:
        """None without the right to ask."""
        names: list[str] = []
        skip = 0
        while True:
            answer = _got(client, f"/$Resources/queues?{API_VERSION}&$skip={skip}&$top={PAGE}")
            if answer is None:
                return None
            titles = [unescape(title) for title in _TITLE.findall(answer)[1:]]  # the first one is the list's own
            names += [title for title in titles if _is_backlog_of(title, self.name)]
            if len(titles) < PAGE:
                return sorted(names, key=_index_of)
            skip += PAGE

    def _asked_by_sdk(self, text: str, paths: tuple[str, ...]) -> list[Depth] | None:
        from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
        from azure.servicebus.management import ServiceBusAdministrationClient

        more: dict[str, Any] = {"connection_verify": self.secondary.ca_file} if self.secondary.ca_file else {}
        with ServiceBusAdministrationClient.from_connection_string(text, retry_total=RETRIES, **more) as client:
            try:
                names = list(paths) or [
                    queue.name for queue in client.list_queues() if _is_backlog_of(queue.name, self.name)
                ]
                found = []
                for name in sorted(names, key=_index_of):
                    try:
                        active = client.get_queue_runtime_properties(name).active_message_count
                        lock = client.get_queue(name).lock_duration
                    except ResourceNotFoundError:
                        continue  # its owner removed it
                    lock_s = lock.total_seconds() if isinstance(lock, datetime.timedelta) else LOCK_S
                    found.append(Depth(name, active or 0, lock_s))
                return found
            except ClientAuthenticationError:
                return None

    async def _probed(self, paths: tuple[str, ...]) -> list[Depth]:
        connection = await self.hub.connection(self.secondary)
        wanted = paths or tuple(backlog_path(self.name, index) for index in range(self.probes))
        found = []
        for path in wanted:
            depth = await _probe(connection, path)
            if depth is not None:
                found.append(depth)
        return found


async def _probe(connection: Connection, path: str) -> Depth | None:
    management = connection.management(path)
    try:
        return Depth(path, None if await management.peek() else 0)
    except EntityNotFound:
        return None
    finally:
        await management.close()


def _got(client: ControlClient, path: str) -> str | None:
    """What is there; nothing if there is nothing; None without the right to ask."""
    status, answer = client.send("GET", path)
    if status in (401, 403):
        return None
    if status not in (200, 404):
        raise ControlError(f"HTTP status {status}", status)
    return answer if status == 200 else ""


def _number_in(answer: str, name: str) -> int:
    found = re.search(rf"<(?:\w+:)?{name}>(\d+)<", answer)
    return int(found[1]) if found else 0


def _seconds_in(answer: str) -> float:
    found = _LOCK.search(answer)
    return float(found[1] or 0) * 60 + float(found[2] or 0) if found else LOCK_S


def _is_backlog_of(queue: str, name: str) -> bool:
    head, _, index = queue.rpartition("/")
    return index.isdigit() and head.lower() == f"{name}/{SEGMENT}".lower()


def _index_of(path: str) -> int:
    return int(path.rpartition("/")[2])


def name_of(primary: Access) -> str:
    """What the primary is called in backlog paths, as every sender derives it."""
    return namespace_name(parse_connection_string(primary.resolve()).authority)
