"""A file as the emulator's documentation shows it: a queue, a topic, and subscriptions with rules of every kind."""

from typing import Any


def subscription(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "Name": name,
        "Properties": {
            "DeadLetteringOnMessageExpiration": False,
            "DefaultMessageTimeToLive": "PT1H",
            "LockDuration": "PT1M",
            "MaxDeliveryCount": 3,
            "ForwardDeadLetteredMessagesTo": "",
            "ForwardTo": "",
            "RequiresSession": False,
        },
    }
    if rules:
        made["Rules"] = list(rules)
    return made


def rule(name: str, **properties: Any) -> dict[str, Any]:
    return {"Name": name, "Properties": properties}


SAMPLE: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": False,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                        },
                    }
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "RequiresDuplicateDetection": False,
                        },
                        "Subscriptions": [
                            subscription(
                                "subscription.1",
                                rule(
                                    "app-prop-filter-1",
                                    FilterType="Correlation",
                                    CorrelationFilter={
                                        "ContentType": "application/text",
                                        "CorrelationId": "id1",
                                        "Label": "subject1",
                                        "MessageId": "msgid1",
                                        "ReplyTo": "someQueue",
                                        "ReplyToSessionId": "sessionId",
                                        "SessionId": "session1",
                                        "To": "xyz",
                                    },
                                ),
                            ),
                            subscription(
                                "subscription.2",
                                rule(
                                    "user-prop-filter-1",
                                    FilterType="Correlation",
                                    CorrelationFilter={"Properties": {"prop3": "value3"}},
                                ),
                            ),
                            subscription("subscription.3"),
                            subscription(
                                "subscription.4",
                                rule(
                                    "sql-filter-1",
                                    FilterType="Sql",
                                    SqlFilter={"SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"},
                                    Action={"SqlExpression": "SET sys.To = 'Entity'"},
                                ),
                            ),
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}
