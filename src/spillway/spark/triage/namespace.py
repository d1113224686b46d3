"""What a namespace says of its entities to a key with the right Manage: who has dead letters, who drops duplicates."""

import fnmatch
import re
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from spillway.client.connection_string import WEB_TLS_PORT, parse_connection_string
from spillway.client.control import ControlClient, ControlError
from spillway.model.entity import entity_key, split_subscription
from spillway.spark.platform.access import Access, OptionError
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.triage.planned import owner_of
from spillway.spark.triage.resubmission import ResubmissionTarget

API_VERSION: Final = "api-version=2021-05"
PAGE: Final = 100
ENTITIES_MAX: Final = 1_000
_ENTRY: Final = re.compile(r"<entry[ >].*?</entry>", re.DOTALL)
_TITLE: Final = re.compile(r"<title[^>]*>([^<]*)</title>")
_DEAD: Final = re.compile(r"<(?:\w+:)?DeadLetterMessageCount>(\d+)<")
_DETECTS: Final = re.compile(r"<RequiresDuplicateDetection>(\w+)<")
_WINDOW: Final = re.compile(
    r"<DuplicateDetectionHistoryTimeWindow>P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?<"
)
_NAMED: Final = "name entities with --entity"


class NamespaceDirectory:
    """Asked over HTTP, by the driver. `NamespaceError` if it does not answer."""

    def __init__(self, access: Access) -> None:
        text = access.resolve()
        self._client: ControlClient | None = None
        if parse_connection_string(text).key is not None:
            ca_file = Path(access.ca_file) if access.ca_file else None
            self._client = ControlClient(text, ca_file, https_port=WEB_TLS_PORT)

    def chosen(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """Entities by their names, or `*` in them; without any, all that have dead letters."""
        named = [owner_of(each) for each in patterns if not _is_pattern(each)]
        matched = [owner_of(each) for each in patterns if _is_pattern(each)]
        if matched or not patterns:
            named += [each for each in self._with_dead_letters() if not patterns or _matches(each, matched)]
        found = tuple({entity_key(each): each for each in named}.values())
        if len(found) > ENTITIES_MAX:
            raise OptionError(f"{len(found):,} entities have dead letters; at most {ENTITIES_MAX:,}: {_NAMED}")
        return found

    def destination(self, path: str) -> ResubmissionTarget:
        answer = self._got(f"/{quote(path)}?{API_VERSION}")
        detects = None if answer is None else _DETECTS.search(answer)
        if answer is None or detects is None:
            return ResubmissionTarget(path)
        found = _WINDOW.search(answer)
        parts = [float(part or 0) for part in found.groups()] if found else [0.0] * 4
        days, hours, minutes, seconds = parts
        window_ms = int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
        return ResubmissionTarget(path, detects[1].lower() == "true", window_ms)

    def _with_dead_letters(self) -> list[str]:
        found = [title for title, entry in self._listed("$Resources/queues") if _dead_count(entry)]
        for topic, _ in self._listed("$Resources/topics"):
            subscriptions = self._listed(f"{quote(topic)}/Subscriptions")
            found += [f"{topic}/subscriptions/{title}" for title, entry in subscriptions if _dead_count(entry)]
        return sorted(found)

    def _listed(self, what: str) -> Iterator[tuple[str, str]]:
        """Name and description of each."""
        skip = 0
        while True:
            answer = self._got(f"/{what}?{API_VERSION}&$skip={skip}&$top={PAGE}")
            if answer is None:
                raise OptionError(f"the key has not the right Manage, so that nobody can say what there is: {_NAMED}")
            entries = _ENTRY.findall(answer)
            for entry in entries:
                title = _TITLE.search(entry)
                if title is not None:
                    yield unescape(title[1]), entry
            if len(entries) < PAGE:
                return
            skip += PAGE

    def _got(self, path: str) -> str | None:
        """What is there, empty if there is nothing; None without the right to ask."""
        if self._client is None:
            return None
        try:
            status, answer = self._client.send("GET", path)
        except ControlError as error:
            raise NamespaceError(str(error)) from None
        if status in (401, 403):
            return None
        if status == 404:
            return ""
        if status != 200:
            raise NamespaceError(f"the namespace answered with HTTP status {status}")
        return answer


def destination_problem(entity: str) -> str | None:
    """Why the dead letters of an entity cannot go back to it; None if they can."""
    topic, _ = split_subscription(entity)
    if topic:
        return f"'{entity}' is a subscription, which cannot be sent to: say --to {topic} for all subscriptions of it"
    if "$" in entity:
        return f"'{entity}' cannot be sent to: say where with --to"
    return None


def _is_pattern(text: str) -> bool:
    return "*" in text


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(entity_key(path), entity_key(each)) for each in patterns)


def _dead_count(entry: str) -> int:
    found = _DEAD.search(entry)
    return int(found[1]) if found else 0
