"""The status of an entity: what one that was disabled refuses.

As Azure documents it: nothing is sent to an entity that is disabled or send-disabled, nothing received from or settled
in one that is disabled or receive-disabled; messages stay, topics go on copying into their subscriptions, scheduled
messages become active, expired ones go. Administration goes on. A dead-letter queue has the status of its entity.
"""

from spillway.broker.commands import (
    BatchDelete,
    ReceiveDeferred,
    RenewLocks,
    Request,
    Schedule,
    SessionRequest,
    UpdateDisposition,
)
from spillway.broker.entity import Entity
from spillway.model.entity import STATUS_ACTIVE, STATUS_DISABLED, EntitySettings, statuses_of
from spillway.model.errors import ArgumentError, BrokerError, entity_disabled


def refuse_status(kind: str, settings: EntitySettings) -> BrokerError | None:
    if settings.status in statuses_of(kind):
        return None
    return ArgumentError(f"The status of a {kind} is {', '.join(statuses_of(kind))}, not '{settings.status[:100]}'.")


def refuse_sender(entity: Entity) -> BrokerError | None:
    return None if entity.settings.may_send() else entity_disabled(entity.path, entity.settings.status)


def refuse_receiver(entity: Entity) -> BrokerError | None:
    return None if entity.settings.may_receive() else entity_disabled(entity.path, entity.settings.status)


def refuse_request(entity: Entity, request: Request) -> BrokerError | None:
    """Over `$management`. Browsing is no receiving; cancelling belongs to sending and adds nothing."""
    settings = entity.settings
    if settings.status == STATUS_ACTIVE or request.is_administrative:
        return None
    if isinstance(request, Schedule):
        return None  # refused as any other send
    if settings.status == STATUS_DISABLED:
        return entity_disabled(entity.path, settings.status)
    if isinstance(request, (RenewLocks, UpdateDisposition, ReceiveDeferred, BatchDelete, SessionRequest)):
        return refuse_receiver(entity)
    return None
