"""`entityPattern`: all entities whose names are like this, found by listing them, and listed again while a stream runs.

Listing is asked for over HTTP, and needs the right to manage. `*` is any text and `?` one character; a pattern of
subscriptions has both names in it, one of dead letters ends as their paths do.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from spillway.client import EntityNotFound
from spillway.client.connection_string import WEB_TLS_PORT, parse_connection_string
from spillway.client.control import ControlClient, ControlError
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.platform.operations import Clock
from spillway.spark.source.options import ENTITIES_MAX, ReadOptions

LOG: Final = logging.getLogger(__name__)
LIST_S: Final = 60.0  # between two lists of a stream that runs
ASK_S: Final = 20.0
PAGE: Final = 100
LISTED_MAX: Final = 20_000  # queues, topics or subscriptions of a namespace; Azure has at most 10,000
API_VERSION: Final = "api-version=2021-05"
SUBSCRIPTIONS: Final = "/subscriptions/"
DEAD_LETTERS: Final = re.compile(r"(?i)(/\$transfer)?/\$deadletterqueue$")
_TITLE: Final = re.compile(r"<title[^>]*>([^<]*)</title>")

T = TypeVar("T")


class EntityPattern:
    """One pattern, for queues or for subscriptions."""

    def __init__(self, text: str) -> None:
        self.text = text.strip().strip("/")
        found = DEAD_LETTERS.search(self.text)
        self.suffix = found[0] if found else ""
        name = self.text[: len(self.text) - len(self.suffix)]
        at = name.lower().find(SUBSCRIPTIONS)
        self.queue = None if at >= 0 else _regex(name)
        self.topic = _regex(name[:at]) if at >= 0 else None
        self.subscription = _regex(name[at + len(SUBSCRIPTIONS) :]) if at >= 0 else None
        is_queues = self.queue is not None
        assert is_queues == (self.topic is None) == (self.subscription is None), "a pattern is of one of the two"

    def has(self, entity: str) -> bool:
        """Whether an entity is one of these, by its path."""
        if not entity.lower().endswith(self.suffix.lower()):
            return False
        name = entity[: len(entity) - len(self.suffix)]
        if DEAD_LETTERS.search(name):
            return False
        topic, between, subscription = _parted(name)
        if self.queue is not None:
            return not between and bool(self.queue.fullmatch(name))
        assert self.topic is not None and self.subscription is not None, "a pattern is of one of the two"
        return bool(between and self.topic.fullmatch(topic) and self.subscription.fullmatch(subscription))


def _parted(name: str) -> tuple[str, str, str]:
    at = name.lower().find(SUBSCRIPTIONS)
    return (name, "", "") if at < 0 else (name[:at], SUBSCRIPTIONS, name[at + len(SUBSCRIPTIONS) :])


def _regex(glob: str) -> re.Pattern[str]:
    parts = [".*" if each == "*" else "." if each == "?" else re.escape(each) for each in glob]
    return re.compile("".join(parts), re.IGNORECASE)


def listed(options: ReadOptions) -> tuple[str, ...]:
    """All entities of the namespace that are of the pattern, in order."""
    pattern = EntityPattern(options.entity_pattern)
    try:
        found = sorted(name + pattern.suffix for name in _names(_client(options), pattern))
    except ControlError as error:
        raise NamespaceError(f"the entities of the namespace cannot be listed: {error}") from None
    if not found:
        raise NamespaceError(f"entityPattern={options.entity_pattern}: no entity of the namespace is called so")
    if len(found) > ENTITIES_MAX:
        raise NamespaceError(
            f"entityPattern={options.entity_pattern}: {len(found):,} entities are called so; at most {ENTITIES_MAX:,}"
        )
    return tuple(found)


def _client(options: ReadOptions) -> ControlClient:
    text = options.access.resolve()
    if parse_connection_string(text).key is None:
        raise OptionError("entityPattern lists entities, and needs a connection string with a key that may manage them")
    ca_file = Path(options.access.ca_file) if options.access.ca_file else None
    return ControlClient(text, ca_file, https_port=WEB_TLS_PORT, timeout_s=ASK_S)


def _names(client: ControlClient, pattern: EntityPattern) -> Iterator[str]:
    if pattern.queue is not None:
        yield from filter(pattern.queue.fullmatch, _titles(client, "$Resources/queues"))
        return
    assert pattern.topic is not None and pattern.subscription is not None, "a pattern is of one of the two"
    for topic in filter(pattern.topic.fullmatch, _titles(client, "$Resources/topics")):
        for name in filter(pattern.subscription.fullmatch, _titles(client, f"{quote(topic)}/Subscriptions")):
            yield f"{topic}{SUBSCRIPTIONS}{name}"


def _titles(client: ControlClient, resource: str) -> list[str]:
    found: list[str] = []
    while len(found) < LISTED_MAX:
        status, answer = client.send("GET", f"/{resource}?{API_VERSION}&$skip={len(found)}&$top={PAGE}")
        if status in (401, 403):
            raise NamespaceError(
                "entityPattern lists the entities of the namespace, which needs the right to manage: give a key that "
                "has it, or name them with entity"
            )
        if status == 404:
            break  # a topic that has gone meanwhile
        if status != 200:
            raise ControlError(f"HTTP status {status}", status)
        titles = [unescape(title) for title in _TITLE.findall(answer)[1:]]  # the first one is the list's own
        found += titles
        if len(titles) < PAGE:
            break
    return found


def with_entities(options: ReadOptions) -> ReadOptions:
    """The same, with the entities that are there now, if they were given by a pattern."""
    return replace(options, entities=listed(options)) if options.entity_pattern else options


class EntityWatch:
    """The entities of a stream while it runs."""

    def __init__(self, options: ReadOptions, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._again_s = clock() + LIST_S
        self.pattern = EntityPattern(options.entity_pattern) if options.entity_pattern else None

    async def again_without(self, work: Callable[[], Awaitable[T]], refresh: Callable[[], object]) -> T:
        """The answer; asked for once more where an entity has gone since they were listed."""
        try:
            return await work()
        except NamespaceError as error:
            if self.pattern is None or not isinstance(error.cause, EntityNotFound):
                raise
        await asyncio.to_thread(refresh)
        return await work()

    def refreshed(self, options: ReadOptions, is_wanted: bool = False) -> ReadOptions:
        """Listed again now and then, or now. What cannot be listed for a while stays as it was."""
        if self.pattern is None or not (is_wanted or self._clock() >= self._again_s):
            return options
        self._again_s = self._clock() + LIST_S
        try:
            found = with_entities(options)
        except NamespaceError as error:
            LOG.warning("%s; the stream goes on with those that it knows", error)
            return options
        for verb, names in (
            ("added", set(found.entities) - set(options.entities)),
            ("gone", set(options.entities) - set(found.entities)),
        ):
            if names:
                LOG.warning("entityPattern=%s: %s %s", options.entity_pattern, ", ".join(sorted(names)[:5]), verb)
        return found
