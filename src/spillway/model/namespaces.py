"""What a namespace may be called."""

from typing import Final

NAMESPACE_CHARS_MAX: Final = 50  # Azure's limit; the name is also a directory's
NAMESPACE_NAMES_RESERVED: Final = ("lock", "tls")  # beside the namespaces in the data directory


def namespace_name_problem(name: str) -> str | None:
    """What is wrong with a namespace's name, or None. It becomes a host label and a directory."""
    allowed = f"letters, digits and '-', a letter or digit first and last, at most {NAMESPACE_CHARS_MAX} characters"
    if not name or len(name) > NAMESPACE_CHARS_MAX or not name.isascii():
        return allowed
    if not (name[0].isalnum() and name[-1].isalnum() and name.replace("-", "").isalnum()):
        return allowed
    if name.lower() in NAMESPACE_NAMES_RESERVED:
        return f"any but {' and '.join(NAMESPACE_NAMES_RESERVED)}, which the data directory has of its own"
    return None
