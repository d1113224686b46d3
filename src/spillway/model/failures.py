"""What an AMQP condition means to whoever sends: one table, for the paired senders on the SDK and for the syphon on our
own client.

The same condition means one thing as the refusal of a message and another as the end of a link: a queue that rejects a
transfer with `amqp:not-allowed` speaks of that message, one that detaches with it speaks of itself. So a condition is
looked up with how it was said. In doubt it is the entity's or the way's, since only those lead around.
https://learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-troubleshoot
"""

import enum
from typing import Final, NamedTuple


class Blame(enum.Enum):
    """The one to blame for an error."""

    MESSAGE = "message"  # nobody would take this one, whatever becomes of others
    CALLER = "caller"  # the client is set up wrongly: its key, its arguments
    ENTITY = "entity"  # the queue or topic; another may do
    NAMESPACE = "namespace"  # it cannot be connected to: none of its entities
    WAY = "way"  # link, connection, silence: whose it is cannot be told


class Failure(NamedTuple):
    """What to make of a failed send. `FailoverPolicy.judge` of a pairing returns it."""

    blame: Blame
    is_busy: bool = False  # throttled: wait at least ten seconds, send again (contract D7, I6)
    is_retried: bool = False  # the same call tries again before it counts
    is_outcome_unknown: bool = False  # the service may have stored what was sent
    spoils_sender: bool = False  # a sender of the SDK that met it may be in any state
    ends_link: bool = False  # said of a link or connection, not of this message: an old one may have been dead before
    is_lasting: bool = False  # no waiting cures it, when a ping meets it: gone, or not allowed
    is_certain: bool = True  # False: a refusal in words that nobody knows, which may be the message's

    @property
    def counts_against_entity(self) -> bool:
        """Whether the failure starts the failover timer (contract D3, D5 to D7)."""
        return not self.is_busy and self.blame in (Blame.ENTITY, Blame.NAMESPACE, Blame.WAY)


OF_MESSAGE: Final = Failure(Blame.MESSAGE)
OF_CALLER: Final = Failure(Blame.CALLER)
UNAUTHORISED: Final = Failure(Blame.CALLER, spoils_sender=True, ends_link=True, is_lasting=True)
OF_ENTITY: Final = Failure(Blame.ENTITY)
MISSING: Final = Failure(Blame.ENTITY, spoils_sender=True, ends_link=True, is_lasting=True)
BUSY: Final = Failure(Blame.ENTITY, is_busy=True)
TROUBLED: Final = Failure(Blame.ENTITY, is_retried=True, is_outcome_unknown=True)
SILENT: Final = Failure(Blame.WAY, is_retried=True, is_outcome_unknown=True, spoils_sender=True)
BROKEN: Final = Failure(
    Blame.WAY, is_retried=True, is_outcome_unknown=True, spoils_sender=True, ends_link=True
)  # fmt: skip
UNKNOWN_REFUSAL: Final = Failure(Blame.ENTITY, is_certain=False)
UNKNOWN_END: Final = Failure(Blame.ENTITY, spoils_sender=True, ends_link=True)

# By condition: as the refusal of a message, and as the end of a link, session or connection.
CONDITIONS: Final[dict[str, tuple[Failure, Failure]]] = {
    # of messages
    "amqp:link:message-size-exceeded": (OF_MESSAGE, OF_MESSAGE._replace(spoils_sender=True)),
    "amqp:decode-error": (OF_MESSAGE, OF_MESSAGE._replace(spoils_sender=True)),
    "amqp:not-allowed": (OF_MESSAGE, UNKNOWN_END),
    "amqp:invalid-field": (OF_MESSAGE, UNKNOWN_END),
    "amqp:not-implemented": (OF_MESSAGE, UNKNOWN_END),
    "amqp:precondition-failed": (OF_MESSAGE, UNKNOWN_END),
    "com.microsoft:precondition-failed": (OF_MESSAGE, UNKNOWN_END),
    "com.microsoft:argument-error": (OF_MESSAGE, UNKNOWN_END),
    "com.microsoft:argument-out-of-range": (OF_MESSAGE, UNKNOWN_END),
    # of the client
    "amqp:unauthorized-access": (UNAUTHORISED, UNAUTHORISED),
    "com.microsoft:auth-failed": (UNAUTHORISED, UNAUTHORISED),
    "com.microsoft:message-lock-lost": (OF_CALLER, OF_CALLER),
    "com.microsoft:message-not-found": (OF_CALLER, OF_CALLER),
    "com.microsoft:session-lock-lost": (OF_CALLER, OF_CALLER),
    "com.microsoft:session-cannot-be-locked": (OF_CALLER, OF_CALLER),
    "com.microsoft:entity-already-exists": (OF_CALLER, OF_CALLER),
    # of the entity
    "amqp:not-found": (OF_ENTITY._replace(is_lasting=True), MISSING),
    "amqp:resource-deleted": (OF_ENTITY._replace(is_lasting=True), MISSING),
    "amqp:resource-limit-exceeded": (OF_ENTITY, UNKNOWN_END),
    "amqp:resource-locked": (TROUBLED, BROKEN),
    "amqp:internal-error": (TROUBLED, BROKEN),
    "com.microsoft:entity-disabled": (OF_ENTITY, UNKNOWN_END),
    "com.microsoft:operation-cancelled": (TROUBLED, BROKEN),
    "com.microsoft:server-busy": (BUSY, BUSY._replace(spoils_sender=True)),
    # of the way
    "com.microsoft:timeout": (SILENT, SILENT),
    "amqp:link:detach-forced": (BROKEN, BROKEN),
    "amqp:link:redirect": (BROKEN, BROKEN),
    "amqp:link:stolen": (BROKEN, BROKEN),
    "amqp:link:transfer-limit-exceeded": (BROKEN, BROKEN),
    "amqp:connection:forced": (BROKEN, BROKEN),
    "amqp:connection:framing-error": (BROKEN, BROKEN),
    "amqp:connection:redirect": (BROKEN, BROKEN),
    "amqp:session:errant-link": (BROKEN, BROKEN),
    "amqp:session:handle-in-use": (BROKEN, BROKEN),
    "amqp:session:unattached-handle": (BROKEN, BROKEN),
    "amqp:session:window-violation": (BROKEN, BROKEN),
    "amqp:frame-size-too-small": (BROKEN, BROKEN),
    "amqp:illegal-state": (BROKEN, BROKEN),
    # words of the client, not of the service
    "amqp:client-error": (BROKEN, BROKEN),
    "amqp:socket-error": (BROKEN, BROKEN),
    "amqp:unknown-error": (BROKEN, BROKEN),
    "amqp:vendor-error": (UNKNOWN_REFUSAL, UNKNOWN_END),
}


def failure_for(condition: str, is_refusal: bool) -> Failure:
    """`is_refusal`: it was said of this message or request, and not of the link."""
    refused, ended = CONDITIONS.get(condition, (UNKNOWN_REFUSAL, UNKNOWN_END))
    return refused if is_refusal else ended
