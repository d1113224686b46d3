"""What a `Config.json` can say: its keys, and which setting of an entity each property is."""

from typing import Final

from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC

ROOT_KEYS: Final = ("UserConfig",)
USER_CONFIG_KEYS: Final = ("Namespaces", "Logging")
NAMESPACE_KEYS: Final = ("Name", "Queues", "Topics")
QUEUE_KEYS: Final = ("Name", "Properties")
TOPIC_KEYS: Final = ("Name", "Properties", "Subscriptions")
SUBSCRIPTION_KEYS: Final = ("Name", "Properties", "Rules")
LOGGING_KEYS: Final = ("Type",)
LOGGING_TYPES: Final = ("File", "Console", "File,Console")

# Each with its name in `EntitySettings`; a duration's name ends with its unit.
PROPERTIES: Final = {
    "DeadLetteringOnMessageExpiration": "dead_letter_on_expiry",
    "DefaultMessageTimeToLive": "default_ttl_ms",
    "DuplicateDetectionHistoryTimeWindow": "duplicate_window_ms",
    "ForwardDeadLetteredMessagesTo": "forward_dead_letters_to",
    "ForwardTo": "forward_to",
    "LockDuration": "lock_duration_ms",
    "MaxDeliveryCount": "max_delivery_count",
    "MaxSizeInMegabytes": "max_size_mb",
    "RequiresDuplicateDetection": "requires_duplicate_detection",
    "RequiresSession": "requires_session",
}
OF_QUEUES_AND_TOPICS: Final = (
    "DuplicateDetectionHistoryTimeWindow",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
)
PROPERTIES_OF: Final = {
    QUEUE: tuple(PROPERTIES),
    TOPIC: ("DefaultMessageTimeToLive", *OF_QUEUES_AND_TOPICS),
    SUBSCRIPTION: tuple(name for name in PROPERTIES if name not in OF_QUEUES_AND_TOPICS),
}
OURS: Final = ("MaxSizeInMegabytes",)  # unknown to the emulator: left out where it is as by default
# What is not among them, as the administration calls it.
UNSAID: Final = {
    "access_rules": "AuthorizationRules",
    "auto_delete_ms": "AutoDeleteOnIdle",
    "dead_letter_on_filter_error": "DeadLetteringOnFilterEvaluationExceptions",
    "is_batched": "EnableBatchedOperations",
    "is_express": "EnableExpress",
    "is_partitioned": "EnablePartitioning",
    "status": "Status",
    "supports_ordering": "SupportOrdering",
    "user_metadata": "UserMetadata",
}
KEPT_BY_THE_BROKER: Final = (
    *("created_ms", "updated_ms", "duplicates_since_ms", "rules"),
    *("forward_to_address", "forward_dead_letters_address"),  # another spelling of what the file says
)

RULE_KEYS: Final = ("Name", "Properties")
RULE_PROPERTIES: Final = ("FilterType", "CorrelationFilter", "SqlFilter", "Action")
SQL_KEYS: Final = ("SqlExpression",)
# Each with the name it has in `model.rules.CorrelationFilter`.
CORRELATION_TEXTS: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
CORRELATION_KEYS: Final = (*CORRELATION_TEXTS, "Properties")
