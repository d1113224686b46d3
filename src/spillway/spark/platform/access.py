"""How a namespace is reached: a connection string, or the name of a secret, looked up by whoever connects."""

from dataclasses import dataclass, field
from typing import Final

from spillway.client import secrets
from spillway.client.connection_string import NO_CREDENTIAL, parse_connection_string
from spillway.client.identity import check_installed

PATIENCE_S: Final = 600.0
SECRET: Final = "env:SPILLWAY_CONNECTION_STRING"  # of a job that is told nothing else


class OptionError(ValueError):
    """An option is missing, not known, or has a value that it cannot have."""


def shown(text: str) -> str:
    """Of a value that is wrong as much as helps; a key in the wrong place stays out of the log."""
    return f"'{text}'" if len(text) <= 24 and "=" not in text else f"({len(text)} characters)"


def access_options(secret: str, connection_string: str, ca_file: str) -> dict[str, str]:
    """A job's way to its namespace, as options of the source and the sink."""
    found = {}
    if connection_string:
        found["connectionString"] = connection_string
    if secret or not connection_string:
        found["secretName"] = secret or SECRET
    if ca_file:
        found["caFile"] = ca_file
    return found


@dataclass(frozen=True)
class Access:
    """How to reach a namespace. It travels to the workers, where a secret that is only named is looked up."""

    secret_name: str = ""
    connection_string: str = field(default="", repr=False)
    ca_file: str = ""
    timeout_s: float = 60.0
    patience_s: float = PATIENCE_S  # how long an outage is waited for

    def resolve(self) -> str:
        """The connection string. Only the process that connects asks for it."""
        if self.connection_string:
            return self.connection_string
        return checked(read_secret(self.secret_name), f"secretName={self.secret_name}")


def checked(text: str, where: str) -> str:
    """A connection string that can be used, or an error that does not repeat it."""
    try:
        found = parse_connection_string(text)
        if found.identity is not None:
            check_installed()
    except ValueError as error:
        raise OptionError(f"{where}: {error}") from None
    if not found.has_credential:
        raise OptionError(f"{where}: {NO_CREDENTIAL}")
    return text


def read_secret(name: str) -> str:
    """`env:NAME` or `NAME`: an environment variable; `file:PATH`: a file, as Kubernetes mounts secrets."""
    try:
        return secrets.read_secret(name)
    except ValueError as error:
        raise OptionError(f"secretName={error}") from None
