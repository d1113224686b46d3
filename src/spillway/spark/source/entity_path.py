"""`EntityPath` of a connection string: the entity that its key is for, and that is meant where none is given."""

import json
from typing import Final

from spillway.client.connection_string import parse_connection_string
from spillway.spark.platform.access import Access, OptionError

SHOWN_MAX: Final = 260  # characters of a path: no entity has more


def entity_path_of(access: Access) -> str:
    """The EntityPath, or nothing. `OptionError` if the connection string is not to be found here."""
    return (parse_connection_string(access.resolve()).entity_path or "").strip("/ ")


def entity_or_path(given: str, access: Access) -> str:
    """The entities as they were given, or else the EntityPath of the connection string.

    A secret that this process cannot look up is told where it is needed: by whoever connects, or here if no entity
    is given.
    """
    if given:
        return given
    try:
        path = entity_path_of(access)
        why = "the connection string has no EntityPath"
    except OptionError as error:
        path, why = "", f"whether the connection string has an EntityPath is not known here: {error}"
    if not path:
        raise OptionError(
            "entity is missing: a queue, topic/subscriptions/name, or several with commas between them; " + why
        )
    return json.dumps([path])  # one name, also with a comma in it


def check_entity_path(names: tuple[str, ...], column: str, access: Access) -> None:
    """That a connection string with an EntityPath is used for that entity: its subscriptions and dead letters too."""
    try:
        path = entity_path_of(access)
    except OptionError:
        return
    shown = f"EntityPath={path[:SHOWN_MAX]} of the connection string"
    if path and column:
        raise OptionError(
            f"entityColumn={column} sends each row to an entity of its own, and {shown} says that its key is for one: "
            "take a connection string of the namespace"
        )
    for name in names:
        if path and not f"{name.lower()}/".startswith(f"{path.lower()}/"):
            raise OptionError(
                f"entity={name[:SHOWN_MAX]} and {shown} contradict each other: leave out one of them, or take a "
                "connection string of the namespace"
            )
