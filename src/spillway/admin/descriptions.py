"""Queues, topics and subscriptions as the administration API describes them: settings in, descriptions out.

The elements and their order are the service's (docs/wire.md, "Descriptions and feeds"). What this version does not
serve is refused, so that nobody believes to have what he has not.
"""

from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element

from spillway.admin.access import ELEMENT, access_rules_xml, read_access_rules
from spillway.admin.atom import children_of, description_xml, tag, text_of
from spillway.admin.durations import NEVER, moment_text, time_span_text
from spillway.admin.http_refusals import MORE, HttpRefusal, bad_request, bad_value, unserved
from spillway.broker.effects import Description
from spillway.model import limits
from spillway.model.entity import (
    FOR_EVER_MS,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    EntitySettings,
    duration_text,
    parse_setting_ms,
    statuses_of,
)

OLD_VERSION: Final = "2017-04"
FILTER_COUNTS_SINCE: Final = "2024-05"
FILTER_COUNTS: Final = frozenset({"SqlFilterCount", "CorrelationFilterCount"})
DESCRIPTIONS: Final = {"QueueDescription": QUEUE, "TopicDescription": TOPIC, "SubscriptionDescription": SUBSCRIPTION}
NAMES: Final = {kind: name for name, kind in DESCRIPTIONS.items()}
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
MESSAGE_KB: Final = limits.MESSAGE_BYTES_MAX // limits.KIB
MAX_MESSAGE_SIZE: Final = "MaxMessageSizeInKilobytes"
INT_MAX: Final = 2**31 - 1
ADDRESS_CHARS_MAX: Final = limits.ENTITY_NAME_CHARS_MAX + 300  # a path behind a host, whose name has 253 at most

# Shown as they are, whatever an update says about them.
READ_ONLY: Final = frozenset(
    {"SizeInBytes", "MessageCount", "CreatedAt", "UpdatedAt", "AccessedAt", "CountDetails", "SubscriptionCount"}
    | {"SqlFilterCount", "CorrelationFilterCount", "EntityAvailabilityStatus", "SupportOrdering"}
)
# Echoed by an update of a queue or topic only if they were sent.
ECHOED: Final = READ_ONLY - {"EntityAvailabilityStatus"} | {
    "IsAnonymousAccessible",
    "FilteringMessagesBeforePublishing",
    "EnableSubscriptionPartitioning",
}
# Accepted with the one value that this version has, shown with it.
ONE_VALUE: Final = {
    "EnableSubscriptionPartitioning": "false",
    "FilteringMessagesBeforePublishing": "false",
    "IsAnonymousAccessible": "false",
    "IsClientAffine": "false",
}


@dataclass(frozen=True)
class AskedEntity:
    """What a PUT asks for."""

    kind: str
    settings: EntitySettings
    names: frozenset[str]  # of the elements that were there
    default_rule: Element | None


def read_description(element: Element, kind: str, version: str, is_update: bool) -> AskedEntity:
    """Elements that are missing have their default. Raises a fault that names the element."""
    fields = children_of(element)
    refuse_version(fields, kind, version)
    for name, text in ((name, text_of(child)) for name, child in fields.items()):
        refuse_unserved(name, text, kind, is_update)
    settings = EntitySettings()
    if ELEMENT in fields and kind != SUBSCRIPTION:
        settings.access_rules = read_access_rules(fields[ELEMENT])
    default_rule = None
    for name, child in fields.items():
        if name == "DefaultRuleDescription" and kind == SUBSCRIPTION:
            default_rule = child
        else:
            set_field(settings, name, text_of(child), kind, is_update)
    if settings.is_partitioned and not is_update:
        # What is asked for is the size of each partition, what is shown that of all of them.
        settings.max_size_mb = min(settings.max_size_mb * limits.PARTITIONS, limits.ENTITY_SIZE_MB_MAX)
        if "SupportOrdering" not in fields:
            settings.supports_ordering = False
    if kind == SUBSCRIPTION and settings.forward_to:
        settings.auto_delete_ms = FOR_EVER_MS  # as the service answers: what forwards is never idle
    return AskedEntity(kind, settings, frozenset(fields), default_rule)


def refuse_version(fields: dict[str, Element], kind: str, version: str) -> None:
    if version == OLD_VERSION and MAX_MESSAGE_SIZE in fields:
        raise bad_request(
            f"The entity description of type '{NAMES[kind]}' has unsupported properties for api-version '{version}' "
            "in the request. Try including the correct api-version query string in the request."
        )


def refuse_unserved(name: str, text: str, kind: str, is_update: bool) -> None:
    only = ONE_VALUE.get(name)
    if only is None or text.lower() == only.lower():
        return
    boolean(name, text)
    raise unserved(f"{name} {text[:100]}")


def set_field(settings: EntitySettings, name: str, text: str, kind: str, is_update: bool) -> None:
    if name == "LockDuration":
        settings.lock_duration_ms = lock_duration_ms(name, text)
    elif name == "RequiresSession":
        settings.requires_session = boolean(name, text)
    elif name == "MaxSizeInMegabytes":
        settings.max_size_mb = integer(name, text, 1, limits.ENTITY_SIZE_MB_MAX)
    elif name == "DefaultMessageTimeToLive":
        settings.default_ttl_ms = duration_ms(name, text)
    elif name == "DeadLetteringOnMessageExpiration":
        settings.dead_letter_on_expiry = boolean(name, text)
    elif name == "DeadLetteringOnFilterEvaluationExceptions":
        settings.dead_letter_on_filter_error = boolean(name, text)
    elif name == "RequiresDuplicateDetection" and kind != SUBSCRIPTION:
        settings.requires_duplicate_detection = boolean(name, text)
    elif name == "DuplicateDetectionHistoryTimeWindow":
        settings.duplicate_window_ms = window_ms(name, text)
    elif name == "MaxDeliveryCount":
        settings.max_delivery_count = integer(name, text, 1, INT_MAX)
    elif name == "EnableBatchedOperations":
        settings.is_batched = boolean(name, text)
    elif name == "EnableExpress":
        settings.is_express = boolean(name, text)  # kept and shown: here no message waits in memory for the disk
    elif name == "EnablePartitioning" and kind != SUBSCRIPTION:
        settings.is_partitioned = boolean(name, text)
    elif name == "SupportOrdering" and kind == TOPIC:
        settings.supports_ordering = boolean(name, text)  # kept and shown: here messages are always in order
    elif name == "AutoDeleteOnIdle":
        settings.auto_delete_ms = idle_ms(name, text)
    elif name == "Status":
        settings.status = status(name, text, kind)
    elif name == "ForwardTo" and kind != TOPIC:
        settings.forward_to = forward_path(name, text)
        settings.forward_to_address = forward_address(text)
    elif name == "ForwardDeadLetteredMessagesTo" and kind != TOPIC:
        settings.forward_dead_letters_to = forward_path(name, text)
        settings.forward_dead_letters_address = forward_address(text)
    elif name == "UserMetadata":
        if len(text) > limits.USER_METADATA_CHARS_MAX:
            raise bad_value(
                f"The value has at most {limits.USER_METADATA_CHARS_MAX} characters.", name, f"{len(text)} characters"
            )
        settings.user_metadata = text
    elif name == MAX_MESSAGE_SIZE:
        # The Standard tier refuses it in a create (docs/wire.md, "What Azure does beyond the specification").
        if not is_update:
            raise bad_request(f"Bad Request. {MORE}.")
        integer(name, text, MESSAGE_KB, MESSAGE_KB)
    elif name == ELEMENT and kind == SUBSCRIPTION:
        raise bad_request(f"'{name}' is not a property of a {kind}: it takes those of its topic.")
    elif name not in READ_ONLY and name not in ONE_VALUE and name not in NOT_READ:
        raise bad_request(f"'{name[:100]}' is not a property of a {kind}.")


NOT_READ: Final = frozenset({"AuthorizationRules", "Path", "EntityType"})


def integer(name: str, text: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise bad_value("The value must be a whole number.", name, f"'{text[:100]}'")
    value = int(text)
    if not low <= value <= high:
        raise bad_value(f"The value supplied must be between {low} and {high}.", name, text)
    return value


def boolean(name: str, text: str) -> bool:
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise bad_value("The value must be true or false.", name, f"'{text[:100]}'")


def status(name: str, text: str, kind: str) -> str:
    for each in statuses_of(kind):
        if text.lower() == each.lower():
            return each
    raise bad_value(f"The value must be {' or '.join(statuses_of(kind))}.", name, f"'{text[:100]}'")


def forward_path(name: str, text: str) -> str:
    """The SDKs write the address of an entity of this namespace, `sb://host/path`; a bare path is as good."""
    path = text.partition("://")[2].partition("/")[2] if "://" in text else text
    path = path.strip("/")
    if text and not path:
        raise bad_value("The value must be a queue or topic, or its address.", name, f"'{text[:100]}'")
    if len(path) > limits.ENTITY_NAME_CHARS_MAX:
        raise bad_value(
            f"The value has at most {limits.ENTITY_NAME_CHARS_MAX} characters.", name, f"{len(path)} characters"
        )
    return path


def forward_address(text: str) -> str:
    """What is shown again: an address, its host in small letters as the service has it; nothing for a bare path."""
    scheme, mark, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    return scheme.lower() + mark + host.lower() + slash + path if mark and len(text) <= ADDRESS_CHARS_MAX else ""


def duration_ms(name: str, text: str) -> int:
    try:
        return parse_setting_ms(text)
    except ValueError:
        raise bad_value("The value must be a duration of ISO 8601, above zero.", name, f"'{text[:100]}'") from None


def lock_duration_ms(name: str, text: str) -> int:
    value_ms = duration_ms(name, text)
    shown = time_span_text(value_ms)
    if value_ms == FOR_EVER_MS or value_ms > limits.LOCK_DURATION_MS_MAX:
        raise bad_value(f"The supplied lock time exceeds the allowed maximum of '5' minutes. {MORE}", name, shown)
    if value_ms < limits.LOCK_DURATION_MS_MIN:
        raise bad_value(f"The supplied lock time is below the allowed minimum of '5' seconds. {MORE}", name, shown)
    return value_ms


def idle_ms(name: str, text: str) -> int:
    value_ms = duration_ms(name, text)
    if value_ms != FOR_EVER_MS and value_ms < limits.AUTO_DELETE_MS_MIN:
        raise bad_value("The value supplied must be at least 00:05:00.", name, time_span_text(value_ms))
    return value_ms


def window_ms(name: str, text: str) -> int:
    value_ms = duration_ms(name, text)
    if not limits.DUPLICATE_WINDOW_MS_MIN <= value_ms <= limits.DUPLICATE_WINDOW_MS_MAX:
        text = "The value supplied must be between 00:00:20 and 7.00:00:00."
        raise bad_value(text, name, time_span_text(value_ms))
    return value_ms


# -- out --------------------------------------------------------------------------------------------------------

NOTHING: Final[frozenset[str]] = frozenset()


def hidden_after(asked: AskedEntity, is_update: bool) -> frozenset[str]:
    """What the answer to a PUT leaves out: an update of a queue or topic says again what was sent, and no more."""
    if asked.kind == SUBSCRIPTION:
        return frozenset({"CountDetails"})
    if is_update:
        return ECHOED - asked.names
    return FILTER_COUNTS | {"AccessedAt", "CountDetails", "SubscriptionCount"}


def write_description(shown: Description, version: str, base: str, hidden: frozenset[str] = NOTHING) -> str:
    """All properties but those that are hidden, in the service's order. `base` is the namespace's, as the client wrote
    it."""
    if shown.kind == TOPIC:
        fields = topic_fields(shown)
    elif shown.kind == SUBSCRIPTION:
        fields = subscription_fields(shown, base, hidden)
    else:
        fields = queue_fields(shown, base)
    if version < FILTER_COUNTS_SINCE:
        hidden = hidden | FILTER_COUNTS
    if version == OLD_VERSION:
        hidden = hidden | {MAX_MESSAGE_SIZE, "IsClientAffine"}
    inner = "".join(xml for name, xml in fields if name not in hidden)
    return description_xml(NAMES[shown.kind], inner)


def queue_fields(shown: Description, base: str) -> list[tuple[str, str]]:
    settings = shown.settings
    counters = shown.counters
    count = counters.active + counters.deferred + counters.scheduled + shown.dead_letter_count
    return [
        field("LockDuration", duration_text(settings.lock_duration_ms)),
        field("MaxSizeInMegabytes", str(settings.max_size_mb)),
        field("RequiresDuplicateDetection", truth(settings.requires_duplicate_detection)),
        field("RequiresSession", truth(settings.requires_session)),
        field("DefaultMessageTimeToLive", duration_text(settings.default_ttl_ms)),
        field("DeadLetteringOnMessageExpiration", truth(settings.dead_letter_on_expiry)),
        field("DuplicateDetectionHistoryTimeWindow", duration_text(settings.duplicate_window_ms)),
        field("MaxDeliveryCount", str(settings.max_delivery_count)),
        field("EnableBatchedOperations", truth(settings.is_batched)),
        field("SizeInBytes", str(shown.size_bytes)),
        field("MessageCount", str(count)),
        field("IsAnonymousAccessible", "false"),
        (ELEMENT, access_rules_xml(settings.access_rules)),
        field("Status", settings.status),
        field("CreatedAt", moment_text(settings.created_ms)),
        field("UpdatedAt", moment_text(settings.updated_ms)),
        field("AccessedAt", accessed_at(shown)),
        field("SupportOrdering", truth(not settings.is_partitioned)),
        count_details(shown),
        field("AutoDeleteOnIdle", duration_text(settings.auto_delete_ms)),
        field("EnablePartitioning", truth(settings.is_partitioned)),
        field("EntityAvailabilityStatus", "Available"),
        field("EnableExpress", truth(settings.is_express)),
        *forward("ForwardTo", settings.forward_to, settings.forward_to_address, base),
        *user_metadata(settings),
        *forward(
            "ForwardDeadLetteredMessagesTo",
            settings.forward_dead_letters_to,
            settings.forward_dead_letters_address,
            base,
        ),
        field(MAX_MESSAGE_SIZE, str(MESSAGE_KB)),
    ]


def topic_fields(shown: Description) -> list[tuple[str, str]]:
    settings = shown.settings
    return [
        field("DefaultMessageTimeToLive", duration_text(settings.default_ttl_ms)),
        field("MaxSizeInMegabytes", str(settings.max_size_mb)),
        field("RequiresDuplicateDetection", truth(settings.requires_duplicate_detection)),
        field("DuplicateDetectionHistoryTimeWindow", duration_text(settings.duplicate_window_ms)),
        field("EnableBatchedOperations", truth(settings.is_batched)),
        field("SizeInBytes", str(shown.size_bytes)),
        field("FilteringMessagesBeforePublishing", "false"),
        field("IsAnonymousAccessible", "false"),
        (ELEMENT, access_rules_xml(settings.access_rules)),
        field("Status", settings.status),
        field("CreatedAt", moment_text(settings.created_ms)),
        field("UpdatedAt", moment_text(settings.updated_ms)),
        field("AccessedAt", accessed_at(shown)),
        field("SupportOrdering", truth(settings.supports_ordering)),
        count_details(shown),
        field("SubscriptionCount", str(shown.subscription_count)),
        field("SqlFilterCount", str(shown.sql_filter_count)),
        field("CorrelationFilterCount", str(shown.correlation_filter_count)),
        field("AutoDeleteOnIdle", duration_text(settings.auto_delete_ms)),
        field("EnablePartitioning", truth(settings.is_partitioned)),
        field("EntityAvailabilityStatus", "Available"),
        field("EnableSubscriptionPartitioning", "false"),
        field("EnableExpress", truth(settings.is_express)),
        *user_metadata(settings),
        field(MAX_MESSAGE_SIZE, str(MESSAGE_KB)),
    ]


def subscription_fields(shown: Description, base: str, hidden: frozenset[str]) -> list[tuple[str, str]]:
    settings = shown.settings
    counters = shown.counters
    count = counters.active + counters.deferred + counters.scheduled + shown.dead_letter_count
    # The answer to a create or update has .NET's earliest time; a GET has a time even if nobody has received yet.
    accessed = NEVER if "CountDetails" in hidden else moment_text(max(counters.used_ms, settings.updated_ms))
    return [
        field("LockDuration", duration_text(settings.lock_duration_ms)),
        field("RequiresSession", truth(settings.requires_session)),
        field("DefaultMessageTimeToLive", duration_text(settings.default_ttl_ms)),
        field("DeadLetteringOnMessageExpiration", truth(settings.dead_letter_on_expiry)),
        field("DeadLetteringOnFilterEvaluationExceptions", truth(settings.dead_letter_on_filter_error)),
        field("MessageCount", str(count)),
        field("MaxDeliveryCount", str(settings.max_delivery_count)),
        field("EnableBatchedOperations", truth(settings.is_batched)),
        field("Status", settings.status),
        *forward("ForwardTo", settings.forward_to, settings.forward_to_address, base),
        field("CreatedAt", moment_text(settings.created_ms)),
        field("UpdatedAt", moment_text(settings.updated_ms)),
        field("AccessedAt", accessed),
        count_details(shown),
        *forward(
            "ForwardDeadLetteredMessagesTo",
            settings.forward_dead_letters_to,
            settings.forward_dead_letters_address,
            base,
        ),
        field("AutoDeleteOnIdle", duration_text(settings.auto_delete_ms)),
        field("EntityAvailabilityStatus", "Available"),
        *user_metadata(settings),
        field("IsClientAffine", "false"),
    ]


def field(name: str, text: str) -> tuple[str, str]:
    return name, tag(name, text)


def truth(value: bool) -> str:
    return "true" if value else "false"


def forward(name: str, path: str, address: str, base: str) -> list[tuple[str, str]]:
    """A forward as the address of an entity, which is how the service shows it: the one given, if one was."""
    return [field(name, address or f"sb://{base.partition('://')[2]}/{path}")] if path else []


def accessed_at(shown: Description) -> str:
    """When somebody last sent to it or received from it; .NET's earliest time if nobody did."""
    used_ms = shown.counters.used_ms
    return moment_text(used_ms) if used_ms else NEVER + "Z"


def user_metadata(settings: EntitySettings) -> list[tuple[str, str]]:
    return [field("UserMetadata", settings.user_metadata)] if settings.user_metadata else []


def count_details(shown: Description) -> tuple[str, str]:
    """JavaScript wants the prefix declared here, as the only attribute (docs/wire.md, "Descriptions and feeds")."""
    counts = (
        ("ActiveMessageCount", shown.counters.active),
        ("DeadLetterMessageCount", shown.dead_letter_count),
        ("ScheduledMessageCount", shown.counters.scheduled),
        ("TransferMessageCount", 0),
        ("TransferDeadLetterMessageCount", 0),
    )
    inner = "".join(tag(f"d2p1:{name}", str(count)) for name, count in counts)
    return "CountDetails", f'<CountDetails xmlns:d2p1="{COUNTS}">{inner}</CountDetails>'


def cannot_change(name: str, kind: str) -> HttpRefusal:
    shown = kind.capitalize()
    return bad_request(f"The value for the {name} property of an existing {shown} cannot be changed. {MORE}.")


def wrong_kind(found: str, path: str) -> HttpRefusal:
    return bad_request(f"'{path}' is a {found}. Delete it first, or use another name.")
