"""What a link or a token points at (docs/wire.md, "Addresses").

Python writes `amqps://host:port/name`, JavaScript a bare `name`. Paths are compared without regard to case by whoever
looks them up (`model.entity.entity_key`); here names keep the case in which they were written, for error texts, and the
words between them (`Subscriptions`, `$DeadLetterQueue`) get the one they are known by.
"""

from typing import Final

from spillway.model.entity import DEAD_LETTER_SUFFIX, SUBSCRIPTIONS, entity_key, split_subscription

ENTITY: Final = 0
MANAGEMENT: Final = 1
CBS: Final = 2

_MANAGEMENT_NODE: Final = "$management"
_CBS_NODE: Final = "$cbs"
_DEAD_LETTER_KEY: Final = DEAD_LETTER_SUFFIX.lower()
TRANSFER_SUFFIX: Final = "/$Transfer"  # and the dead letters of what could not be passed on are below it

SHOWN_CHARS_MAX: Final = 300  # of a name that a client made up, in an error text


class Address:
    """`node` says what is meant: an entity itself, its management node, or the connection's `$cbs`."""

    def __init__(self, node: int, path: str) -> None:
        self.node = node
        self.path = path  # of the entity; empty for `$cbs`
        self.key = entity_key(path)
        self.transfer_of = ""  # the entity whose transfer dead letters these are


def strip_authority(text: str) -> str:
    """The path of a URI, or the text itself when it is none. Slashes at the ends do not count."""
    at = text.find("://")
    if at >= 0 and "/" not in text[:at]:
        slash = text.find("/", at + 3)
        text = "" if slash < 0 else text[slash:]
    return text.strip("/")


def authority_of(text: str) -> str:
    """Host and port of a URI; empty when the text is none."""
    at = text.find("://")
    if at < 0 or "/" in text[:at]:
        return ""
    slash = text.find("/", at + 3)
    return text[at + 3 :] if slash < 0 else text[at + 3 : slash]


def parse_address(text: str) -> Address:
    path = strip_authority(text)
    key = path.lower()
    if key == _CBS_NODE:
        return Address(CBS, "")
    node = ENTITY
    if key == _MANAGEMENT_NODE or key.endswith("/" + _MANAGEMENT_NODE):
        node = MANAGEMENT
        path = path[: -len(_MANAGEMENT_NODE)].strip("/")
        key = path.lower()
    if key.endswith(_DEAD_LETTER_KEY):
        path = path[: -len(_DEAD_LETTER_KEY)] + DEAD_LETTER_SUFFIX
    topic, rest = split_subscription(path)
    if topic:
        path = topic + SUBSCRIPTIONS + rest
    address = Address(node, path)
    end = len(path) - len(DEAD_LETTER_SUFFIX)
    if key.endswith(TRANSFER_SUFFIX.lower() + _DEAD_LETTER_KEY):
        address.transfer_of = path[: end - len(TRANSFER_SUFFIX)]
    return address


def shown(path: str) -> str:
    """A client's name for something, short enough for an error text."""
    return path if len(path) <= SHOWN_CHARS_MAX else path[:SHOWN_CHARS_MAX] + "…"
