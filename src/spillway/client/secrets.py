"""Where a connection string is found: `env:NAME`, `file:PATH`, or the string itself.

A secret that is only named is in no list of processes and in no history of a shell. Errors are ValueErrors, and repeat
the name, never what was found there.
"""

import os
from pathlib import Path
from typing import Final

from spillway.client.connection_string import NO_CREDENTIAL, parse_connection_string
from spillway.client.identity import check_installed

SECRET_BYTES_MAX: Final = 16_384
_ENV: Final = "env:"
_FILE: Final = "file:"


def connection_string_at(where: str) -> str:
    """The connection string that is named, or given; one with a key or a signature."""
    if where.startswith((_ENV, _FILE)):
        return _checked(read_secret(where), f"{where}: ")
    return _checked(where, "")


def read_secret(name: str) -> str:
    """`env:NAME` or `NAME`: an environment variable; `file:PATH`: a file, as Kubernetes mounts secrets."""
    if name.startswith(_FILE):
        return _read_file(name)
    variable = name.removeprefix(_ENV)
    text = os.environ.get(variable, "").strip()
    if not text:
        raise ValueError(
            f"{name}: there is no environment variable {variable} in this process; env:NAME names one, file:PATH a file"
        )
    return text


def _read_file(name: str) -> str:
    try:
        with Path(name.removeprefix(_FILE)).open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{name}: the file cannot be read here: {error.strerror}") from None
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > SECRET_BYTES_MAX:
        raise ValueError(f"{name}: the file does not hold a connection string")
    return text


def _checked(text: str, where: str) -> str:
    try:
        found = parse_connection_string(text)
        if found.identity is not None:
            check_installed()
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None
    if not found.has_credential:
        raise ValueError(f"{where}{NO_CREDENTIAL}")
    return text
