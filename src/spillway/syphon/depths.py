"""The backlog queues of a pairing, as the secondary namespace knows them: which there are, and how much is in them.

Asked over HTTP, which needs the right Manage. Without it the queues are found by
looking for the first so many by name; then nobody knows how deep they are before they are emptied.
"""

import asyncio
import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from spillway.client import ClientError, Connection, EntityNotFound
from spillway.client.connection_string import WEB_TLS_PORT, parse_connection_string
from spillway.client.control import ControlClient, ControlError
from spillway.model.backlogs import SEGMENT, backlog_path, namespace_name
from spillway.syphon.destinations import Opener

LOCK_S: Final = 60.0  # contract C7
API_VERSION: Final = "api-version=2021-05"
PAGE: Final = 100
ASK_S: Final = 20.0  # for one answer: whoever stops the program waits for it
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
    """The backlog queues of one primary. `opener` connects to the secondary, where its depths cannot be asked for."""

    def __init__(self, connection_string: str, ca_file: str, name: str, probes: int, opener: Opener) -> None:
        self.connection_string = connection_string
        self.ca_file = ca_file
        self.name = name
        self.probes = probes
        self.opener = opener
        self.has_manage = True

    async def depths(self, paths: tuple[str, ...] = ()) -> list[Depth]:
        """Depths of these backlog queues, or of all that there are. `SecondaryError` if nobody can say."""
        try:
            if self.has_manage:
                found = await asyncio.to_thread(self._asked, paths)
                if found is not None:
                    return found
                self.has_manage = False
            return await self._probed(paths)
        except (ClientError, ControlError, OSError) as error:
            raise _secondary_error(error) from error

    async def paths(self) -> list[str] | None:
        """Paths of all backlog queues; None if the key has not the right Manage, and nobody can say."""
        try:
            return await asyncio.to_thread(self._listed_or_none)
        except (ControlError, OSError) as error:
            raise _secondary_error(error) from error

    def _listed_or_none(self) -> list[str] | None:
        client = self._client()
        return None if client is None else self._listed(client)

    def _client(self) -> ControlClient | None:
        """The client for the secondary's administration; None where there is no key to ask with."""
        if parse_connection_string(self.connection_string).key is None:
            return None
        ca_file = Path(self.ca_file) if self.ca_file else None
        return ControlClient(self.connection_string, ca_file, https_port=WEB_TLS_PORT, timeout_s=ASK_S)

    def _asked(self, paths: tuple[str, ...]) -> list[Depth] | None:
        """None without the right to ask."""
        client = self._client()
        listed = None if client is None else paths or self._listed(client)
        if client is None or listed is None:
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

    async def _probed(self, paths: tuple[str, ...]) -> list[Depth]:
        connection = await self.opener()
        wanted = paths or tuple(backlog_path(self.name, index) for index in range(self.probes))
        found = []
        for path in wanted:
            depth = await _probe(connection, path)
            if depth is not None:
                found.append(depth)
        return found


def _secondary_error(error: Exception) -> SecondaryError:
    why = (str(error).strip() or type(error).__name__).splitlines()[0]
    return SecondaryError(f"the secondary namespace cannot be asked about its backlog queues: {why}")


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


def name_of(connection_string: str) -> str:
    """What a primary is called in backlog paths, as every sender derives it."""
    return namespace_name(parse_connection_string(connection_string).authority)
