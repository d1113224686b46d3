"""Whether a failed send speaks of the message that was sent, or of the entity and the way to it.

A syphon needs to know: what is wrong with an entity holds for everything that goes there, and is waited for; what is
wrong with one message must not hold up those behind it.
"""

from typing import Final

from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from spillway.paired.policy import FailoverPolicy, Verdict, is_unencodable

# AMQP conditions that have no class of their own in the SDK, and say nothing of a message.
_CONDITIONS_OF_THE_WAY: Final = (
    "amqp:client-error",
    "amqp:internal-error",
    "amqp:resource-",
    "amqp:socket-error",
    "amqp:unknown-error",
    "amqp:connection:",
    "amqp:session:",
    "amqp:link:",
)


def is_of_message(error: BaseException, policy: FailoverPolicy) -> bool:
    """Whether others that go to the same entity may fare better: each is to be sent for itself."""
    if isinstance(error, MessageSizeExceededError):
        return True
    if not isinstance(error, (ServiceBusError, OSError)):
        return policy.judge(error) is Verdict.CALLERS
    if type(error) is not ServiceBusError:  # what has a class of its own is of the entity, or of the way to it
        return False
    if is_unencodable(error):
        return True
    condition = getattr(error.inner_exception, "condition", None)  # of a refusal, as `amqp:not-allowed`
    return condition is not None and not _text(condition).startswith(_CONDITIONS_OF_THE_WAY)


def _text(condition: object) -> str:
    value = getattr(condition, "value", condition)  # the SDK has an enumeration of those it knows
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
