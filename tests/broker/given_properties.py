"""Messages as rules see them, from dicts."""

from spillway.model.properties import ChangedProperties, MessageProperties, system_name


def given(user: dict[str, object] | None = None, system: dict[str, object] | None = None) -> MessageProperties:
    """A message with these properties and no others. A None among the user's is a property that is null."""
    properties = ChangedProperties(MessageProperties())
    for name, value in (user or {}).items():
        properties.set_user(name, value)
    for name, value in (system or {}).items():
        known = system_name(name)
        assert known is not None, name
        properties.set_system(known, value)
    return properties
