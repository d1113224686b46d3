"""What administrators may ask of a namespace, and how it is put to the core and shown.

Everything goes through the pump: an answer is given when it is durable. Queues and topics have their ETag, and what
belongs to a topic has the topic's: so the service has it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from spillway.admin import http_refusals, paths
from spillway.admin.access import ELEMENT, completed
from spillway.admin.atom import Entry, Feed, local_name, nothing_here, parse_description, tag
from spillway.admin.atom import description_xml as described
from spillway.admin.descriptions import (
    DESCRIPTIONS,
    AskedEntity,
    cannot_change,
    hidden_after,
    read_description,
    write_description,
    wrong_kind,
)
from spillway.admin.durations import moment_text
from spillway.admin.http_refusals import HttpRefusal, bad_request
from spillway.admin.namespace import AdministeredNamespace
from spillway.admin.paths import RequestTarget
from spillway.admin.rules import read_rule, write_rule
from spillway.broker.commands import (
    AddRule,
    CreateEntity,
    DeleteEntity,
    Describe,
    ListEntities,
    ListRules,
    RemoveRule,
    Request,
    UpdateEntity,
)
from spillway.broker.effects import Description, Descriptions, Failed, Rules
from spillway.broker.rules.rule_list import CompiledRule
from spillway.model.access import access_changes
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, name_problem
from spillway.model.errors import BrokerError, EntityAlreadyExists, EntityNotFound
from spillway.model.rules import Rule

ENTRY: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED: Final = "application/atom+xml;type=feed;charset=utf-8"
TOP_DEFAULT: Final = 100
TOP_MAX: Final = 1_000
SKIP_MAX: Final = 10_000_000
FORWARD_TOKEN: Final = "ServiceBusSupplementaryAuthorization"
FORWARD_DEAD_TOKEN: Final = "ServiceBusDlqSupplementaryAuthorization"


@dataclass(frozen=True)
class EntityCall:
    """One request, read and authorised."""

    method: str
    target: RequestTarget
    query: str
    base: str  # scheme and host, as the client wrote them
    if_match: str | None
    body: bytes
    # Header and path -> whether who asks may send there, by his token or by the one in that header.
    may_forward: Callable[[str, str], bool]

    @property
    def version(self) -> str:
        return dict(parse_qsl(self.query)).get("api-version", "")

    @property
    def version_query(self) -> str:
        """The version for the addresses in a list: what was asked for without a version is listed without one."""
        return f"?api-version={self.version}" if self.version else ""

    @property
    def url(self) -> str:
        return f"{self.base}/{self.target.path}{'?' + self.query if self.query else ''}"

    def number(self, name: str, default: int, most: int) -> int:
        text = dict(parse_qsl(self.query, keep_blank_values=True)).get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 12:
            raise bad_request(f"{name} must be a whole number.")
        return min(int(text), most)


@dataclass(frozen=True)
class Reply:
    status: int
    body: str = ""
    content_type: str | None = None
    etag: str | None = None
    changes: tuple[str, ...] = ()  # of shared access rules, for the audit log


class Service:
    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace

    async def answer(self, call: EntityCall) -> Reply:
        """Raises Fault."""
        if call.method not in ("GET", "PUT", "DELETE"):
            raise HttpRefusal(405, f"SubCode=40500. {call.method} is not served here: GET, PUT or DELETE are.")
        kind = call.target.kind
        if kind == paths.ROOT:
            if call.method != "GET":
                raise bad_request(f"'{call.target.path}' cannot be used: {name_problem(call.target.path)}.")
            return self.nothing()
        if kind in (paths.NAMESPACE_INFO, paths.QUEUES, paths.TOPICS):
            if call.method != "GET":
                raise HttpRefusal(405, f"SubCode=40500. '{call.target.path}' can only be read.")
            return self.namespace_info(call) if kind == paths.NAMESPACE_INFO else await self.list_entities(call)
        if kind == paths.ENTITY:
            return await self.entity(call)
        if kind == paths.SUBSCRIPTION:
            return await self.subscription(call)
        if kind == paths.RULE:
            return await self.rule(call)
        if call.method != "GET":
            raise HttpRefusal(405, f"SubCode=40500. '{call.target.path}' can only be read.")
        return await (self.list_rules(call) if kind == paths.RULES else self.list_subscriptions(call))

    async def etag_of(self, target: RequestTarget) -> str | None:
        """The ETag of the queue or topic that the request is about, if there is one."""
        try:
            found = await self.find(target.root) if target.root else None
        except HttpRefusal:
            return None  # out of service: it can be deleted all the same, and whoever asks for more is told so
        return None if found is None else f'"{found.settings.updated_ms}"'

    # -- asking ----------------------------------------------------------------------------------------------------

    async def find(self, path: str) -> Description | None:
        answer = await self.namespace.pump.ask(lambda number: Describe(number, path))
        if isinstance(answer, Failed):
            if isinstance(answer.error, EntityNotFound):
                return None
            raise http_refusals.of_broker(answer.error)
        assert isinstance(answer, Descriptions), "a description was asked for"
        shown = answer.descriptions[0]
        return shown if shown.kind in (QUEUE, TOPIC, SUBSCRIPTION) else None

    async def do(self, make_request: Callable[[int], Request]) -> BrokerError | None:
        answer = await self.namespace.pump.ask(make_request)
        return answer.error if isinstance(answer, Failed) else None

    async def rules_of(self, target: RequestTarget, skip: int, top: int, name: str | None = None) -> list[Rule] | None:
        """Rules by name, so many; or the one of this name."""
        path = target.entity_path
        answer = await self.namespace.pump.ask(lambda number: ListRules(number, path, skip, top, name))
        if isinstance(answer, Failed):
            if isinstance(answer.error, EntityNotFound):
                return None
            raise http_refusals.of_broker(answer.error)
        assert isinstance(answer, Rules), "rules were asked for"
        return list(answer.rules)

    def shown(self, target: RequestTarget) -> str:
        """A path as the service names a part of a topic."""
        parts = [part for part in (target.root, target.subscription, target.rule) if part]
        return f"{self.namespace.name}:Topic:{'|'.join(parts)}"

    # -- the namespace ---------------------------------------------------------------------------------------------

    def namespace_info(self, call: EntityCall) -> Reply:
        name = self.namespace.name
        created = moment_text(self.namespace.created_ms)
        fields = (
            ("CreatedTime", created),
            ("MessagingSKU", "Standard"),
            ("ModifiedTime", created),
            ("Name", name),
            ("NamespaceType", "Messaging"),
        )
        content = described("NamespaceInfo", "".join(tag(field, text) for field, text in fields))
        entry = Entry(call.url, name, call.url, self.namespace.now_ms(), None, name, content)
        return Reply(200, entry.xml(), ENTRY)

    # -- queues and topics -----------------------------------------------------------------------------------------

    async def entity(self, call: EntityCall) -> Reply:
        if call.method == "PUT":
            return await self.put_entity(call)
        path = call.target.root
        if call.method == "DELETE":
            error = await self.do(lambda number: DeleteEntity(number, path))
            if error is not None:
                raise (
                    http_refusals.nothing_to_delete()
                    if isinstance(error, EntityNotFound)
                    else http_refusals.of_broker(error)
                )
            return Reply(200)
        found = await self.find(path)
        if found is None:
            return self.nothing()
        return Reply(200, self.entry_of(found, call).xml(), ENTRY)

    async def put_entity(self, call: EntityCall) -> Reply:
        asked = self.read_asked(call, (QUEUE, TOPIC))
        path = call.target.root
        before = await self.find(path)
        changes = self.complete_access(call, asked, before)
        self.check_forwards(call, asked, before)
        if call.if_match is None:
            error = await self.do(lambda number: CreateEntity(number, asked.kind, path, asked.settings))
            if error is not None:
                raise (
                    http_refusals.exists_already()
                    if isinstance(error, EntityAlreadyExists)
                    else http_refusals.of_broker(error)
                )
        else:
            if before is None:
                raise http_refusals.nothing_to_update()
            await self.update(call, asked, before)
        return await self.put_reply(call, asked, changes)

    def complete_access(self, call: EntityCall, asked: AskedEntity, before: Description | None) -> tuple[str, ...]:
        """Shared access rules as they will be, and what changes about them. An update without them leaves them be."""
        is_update = call.if_match is not None and before is not None
        known = before.settings.access_rules if is_update and before is not None else []
        if is_update and ELEMENT not in asked.names:
            asked.settings.access_rules = known
        else:
            asked.settings.access_rules = completed(asked.settings.access_rules, known, self.namespace.now_ms())
        return tuple(access_changes(known, asked.settings.access_rules))

    def check_forwards(self, call: EntityCall, asked: AskedEntity, before: Description | None) -> None:
        """A key that may administer one entity only must not send to another by way of it. What was so may stay so."""
        was = EntitySettings() if before is None or call.if_match is None else before.settings
        for header, path, known in (
            (FORWARD_TOKEN, asked.settings.forward_to, was.forward_to),
            (FORWARD_DEAD_TOKEN, asked.settings.forward_dead_letters_to, was.forward_dead_letters_to),
        ):
            if path and path.lower() != known.lower() and not call.may_forward(header, path):
                raise http_refusals.may_not_forward(path, header)

    async def update(self, call: EntityCall, asked: AskedEntity, before: Description) -> None:
        if before.kind != asked.kind:
            raise wrong_kind(before.kind, before.path)
        if before.settings.requires_session != asked.settings.requires_session:
            raise cannot_change("RequiresSession", before.kind)
        if before.settings.requires_duplicate_detection != asked.settings.requires_duplicate_detection:
            raise cannot_change("RequiresDuplicateDetection", before.kind)
        if "EnablePartitioning" not in asked.names:
            asked.settings.is_partitioned = before.settings.is_partitioned
        elif before.settings.is_partitioned != asked.settings.is_partitioned:
            raise cannot_change("EnablePartitioning", before.kind)
        if call.if_match != "*" and call.if_match != f'"{before.settings.updated_ms}"':
            raise http_refusals.changed_meanwhile()
        path = before.path
        error = await self.do(lambda number: UpdateEntity(number, path, asked.settings))
        if error is not None:
            raise http_refusals.of_broker(error)

    async def put_reply(self, call: EntityCall, asked: AskedEntity, changes: tuple[str, ...] = ()) -> Reply:
        is_update = call.if_match is not None
        found = await self.find(call.target.entity_path)
        if found is None:  # deleted by another request in the same moment
            raise http_refusals.nothing_to_update()
        entry = self.entry_of(found, call)
        entry.content = write_description(found, call.version, call.base, hidden_after(asked, is_update))
        if is_update and found.kind != SUBSCRIPTION:
            entry.published_ms = None
        return Reply(200 if is_update else 201, entry.xml(), ENTRY, changes=changes)

    def read_asked(self, call: EntityCall, kinds: tuple[str, ...]) -> AskedEntity:
        element = parse_description(call.body)
        kind = DESCRIPTIONS.get(local_name(element))
        if kind not in kinds:
            wanted = " or ".join(name for name, each in DESCRIPTIONS.items() if each in kinds)
            raise bad_request(f"The entry must hold a {wanted}, not a '{local_name(element)[:100]}'.")
        return read_description(element, kind, call.version, call.if_match is not None)

    def entry_of(self, found: Description, call: EntityCall) -> Entry:
        is_part = found.kind == SUBSCRIPTION
        title = call.target.subscription if is_part else found.path
        return Entry(
            id=call.url,
            title=title,
            link=call.url,
            updated_ms=found.settings.updated_ms,
            published_ms=found.settings.created_ms,
            author=None if is_part else self.namespace.name,
            content=write_description(found, call.version, call.base),
        )

    def nothing(self) -> Reply:
        now_ms = self.namespace.now_ms()
        tracking_id = self.namespace.tracking_text("", now_ms).partition("TrackingId:")[2].partition("_")[0]
        return Reply(200, nothing_here(tracking_id, now_ms), FEED)

    # -- subscriptions ---------------------------------------------------------------------------------------------

    async def subscription(self, call: EntityCall) -> Reply:
        path = call.target.entity_path
        if call.method == "PUT":
            return await self.put_subscription(call)
        if call.method == "DELETE":
            error = await self.do(lambda number: DeleteEntity(number, path))
            if error is not None:
                raise self.part_fault(error, call.target)
            return Reply(200)
        found = await self.find(path)
        if found is None:
            raise http_refusals.part_not_found(self.shown(call.target))
        return Reply(200, self.entry_of(found, call).xml(), ENTRY)

    async def put_subscription(self, call: EntityCall) -> Reply:
        asked = self.read_part(call)
        path = call.target.entity_path
        before = await self.find(path)
        self.check_forwards(call, asked, before)
        if call.if_match is None:
            if asked.default_rule is not None:
                asked.settings.rules = [read_rule(asked.default_rule, "", self.namespace.now_ms())]
            error = await self.do(lambda number: CreateEntity(number, SUBSCRIPTION, path, asked.settings))
            if error is not None:
                raise self.part_fault(error, call.target)
        else:
            if before is None:
                raise http_refusals.part_not_found(self.shown(call.target))
            await self.update(call, asked, before)
        return await self.put_reply(call, asked)

    def read_part(self, call: EntityCall) -> AskedEntity:
        """The service leaves the SubCode away where a part of a topic is refused."""
        try:
            return self.read_asked(call, (SUBSCRIPTION,))
        except HttpRefusal as fault:
            raise HttpRefusal(fault.status, fault.detail.removeprefix("SubCode=40000. ")) from None

    def part_fault(self, error: BrokerError, target: RequestTarget) -> HttpRefusal:
        if isinstance(error, EntityAlreadyExists):
            return http_refusals.part_exists_already(self.shown(target))
        if isinstance(error, EntityNotFound):
            return http_refusals.part_not_found(self.shown(target))
        return http_refusals.of_broker(error)

    # -- rules -----------------------------------------------------------------------------------------------------

    async def rule(self, call: EntityCall) -> Reply:
        target = call.target
        if call.method == "PUT":
            return await self.put_rule(call)
        if call.method == "DELETE":
            path = target.entity_path
            error = await self.do(lambda number: RemoveRule(number, path, target.rule))
            if error is not None:
                raise self.part_fault(error, target)
            return Reply(200)
        return Reply(200, self.rule_entry(await self.find_rule(target), call, is_stored=True).xml(), ENTRY)

    async def find_rule(self, target: RequestTarget) -> Rule:
        for rule in await self.rules_of(target, 0, 1, target.rule) or []:
            return rule
        raise http_refusals.part_not_found(self.shown(target))

    async def put_rule(self, call: EntityCall) -> Reply:
        target = call.target
        element = parse_description(call.body)
        if local_name(element) != "RuleDescription":
            raise bad_request(f"The entry must hold a RuleDescription, not a '{local_name(element)[:100]}'.")
        rule = read_rule(element, target.rule, self.namespace.now_ms())
        if call.if_match is None:
            path = target.entity_path
            error = await self.do(lambda number: AddRule(number, path, rule))
            if error is not None:
                raise self.part_fault(error, target)
        else:
            await self.replace_rule(target, rule)
        return Reply(201 if call.if_match is None else 200, self.rule_entry(rule, call, is_stored=False).xml(), ENTRY)

    async def replace_rule(self, target: RequestTarget, rule: Rule) -> None:
        """Out and in again in one turn: no message is published between the two. Checked before: in must not fail."""
        before = await self.find_rule(target)
        rule.name = before.name
        rule.created_ms = before.created_ms
        try:
            CompiledRule(rule)
        except BrokerError as error:
            raise http_refusals.of_broker(error) from None
        path = target.entity_path
        answers = await self.namespace.pump.ask_together(
            [lambda number: RemoveRule(number, path, before.name), lambda number: AddRule(number, path, rule)]
        )
        for answer in answers:
            if isinstance(answer, Failed):
                raise self.part_fault(answer.error, target)

    def rule_entry(self, rule: Rule, call: EntityCall, is_stored: bool) -> Entry:
        content = write_rule(rule, is_stored)
        return Entry(call.url, rule.name, call.url, rule.created_ms, rule.created_ms, None, content)

    # -- lists -----------------------------------------------------------------------------------------------------

    async def list_entities(self, call: EntityCall) -> Reply:
        is_queues = call.target.kind == paths.QUEUES
        kind = QUEUE if is_queues else TOPIC
        page, has_more, feed = await self.page(call, kind, "", "Queues" if is_queues else "Topics")
        for found in page:
            title = found.path
            entry = self.entry_of(found, call)
            entry.title = title
            entry.id = f"{call.base}/{title}{call.version_query}"
            entry.link = f"../{title}{call.version_query}"
            feed.entries.append(entry)
        return self.feed_reply(call, feed, has_more)

    async def list_subscriptions(self, call: EntityCall) -> Reply:
        topic = await self.find(call.target.root)
        if topic is None or topic.kind != TOPIC:
            raise http_refusals.part_not_found(self.shown(call.target))
        page, has_more, feed = await self.page(call, SUBSCRIPTION, topic.path, "Subscriptions")
        for found in page:
            entry = self.entry_of(found, call)
            entry.title = found.path.rpartition("/")[2]
            self.put_below(entry, call)
            feed.entries.append(entry)
        return self.feed_reply(call, feed, has_more)

    async def list_rules(self, call: EntityCall) -> Reply:
        skip, top = self.window(call)
        rules = await self.rules_of(call.target, skip, top + 1)
        if rules is None:
            raise http_refusals.part_not_found(self.shown(call.target))
        feed = Feed("Rules", call.url, self.namespace.now_ms())
        for rule in rules[:top]:
            entry = self.rule_entry(rule, call, is_stored=True)
            self.put_below(entry, call)
            feed.entries.append(entry)
        return self.feed_reply(call, feed, len(rules) > top)

    def put_below(self, entry: Entry, call: EntityCall) -> None:
        """JavaScript takes names from the id, behind the list's path as it was asked for."""
        last = call.target.path.rpartition("/")[2]
        entry.id = f"{call.base}/{call.target.path}/{entry.title}{call.version_query}"
        entry.link = f"{last}/{entry.title}{call.version_query}"

    async def page(self, call: EntityCall, kind: str, path: str, title: str) -> tuple[list[Description], bool, Feed]:
        skip, top = self.window(call)
        answer = await self.namespace.pump.ask(lambda number: ListEntities(number, kind, path, skip, top))
        if isinstance(answer, Failed):
            raise http_refusals.of_broker(answer.error)
        assert isinstance(answer, Descriptions), "a list was asked for"
        return answer.descriptions, answer.has_more, Feed(title, call.url, self.namespace.now_ms())

    def window(self, call: EntityCall) -> tuple[int, int]:
        skip = call.number("$skip", 0, SKIP_MAX)
        top = call.number("$top", TOP_DEFAULT, TOP_MAX)
        if top == 0:
            raise bad_request("$top must be above zero.")
        return skip, top

    def feed_reply(self, call: EntityCall, feed: Feed, has_more: bool) -> Reply:
        if has_more:
            skip, top = self.window(call)
            more = f"&{call.version_query[1:]}" if call.version else ""
            feed.next_link = f"{call.base}/{call.target.path}?$skip={skip + top}&$top={top}{more}"
        return Reply(200, feed.xml(), FEED)
