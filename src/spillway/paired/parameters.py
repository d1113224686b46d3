"""Checks of what a caller hands in: what is of the wrong kind or out of range is refused with its parameter's name.

`TypeError` for the kind, `ValueError` for the value, at once: a `"false"` that turns something on, or a number where a
timedelta belongs, would else show in the middle of an outage. Nothing that may be a key is ever shown.
"""

import datetime
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

T = TypeVar("T")
SHOWN_CHARS_MAX: Final = 60  # of a value that is shown
NAMESPACE_CHARS_MAX: Final = 200  # a path has at most 260, and ends with /x-servicebus-transfer/ and the index
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")


def instance(name: str, value: object, kind: type[T], what: str) -> T:
    """`what` says which kind, with its article: "a FailoverPolicy"."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, not {_kind_of(value)}")
    return value


def text(name: str, value: object) -> str:
    checked = instance(name, value, str, "a str")
    if not checked.strip():
        raise ValueError(f"{name} must not be empty")
    return checked


def optional_text(name: str, value: object) -> str | None:
    return None if value is None else text(name, value)


def optional_namespace_name(name: str, value: object) -> str | None:
    """What backlog queues may be named after: administration would refuse each of them else."""
    checked = optional_text(name, value)
    if checked is not None and (len(checked) > NAMESPACE_CHARS_MAX or not _NAMESPACE.fullmatch(checked)):
        raise ValueError(
            f"{name} must be letters, digits, '.', '_', '-' and '/', begin and end with a letter or digit, and have at "
            f"most {NAMESPACE_CHARS_MAX} characters, not {_shown(checked)}"
        )
    return checked


def flag(name: str, value: object) -> bool:
    """Nothing but True and False: the text "false" would be true."""
    return instance(name, value, bool, "True or False")


def count(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {_kind_of(value)}")
    if most is not None and not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {value}")
    if value < least:
        raise ValueError(f"{name} must be greater than {least - 1}, not {value}")
    return value


def optional_count(name: str, value: object) -> int | None:
    return None if value is None else count(name, value)


def seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {_kind_of(value)}")
    if not value > 0:
        raise ValueError(f"{name} must be greater than 0, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value!r}")
    return float(value)


def optional_seconds(name: str, value: object) -> float | None:
    return None if value is None else seconds(name, value)


def duration(name: str, value: object, least: datetime.timedelta, most: datetime.timedelta) -> datetime.timedelta:
    checked = instance(name, value, datetime.timedelta, "a timedelta")
    if not least <= checked <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {checked}")
    return checked


def moment(name: str, value: object) -> datetime.datetime:
    return instance(name, value, datetime.datetime, "a datetime")


def choice(name: str, value: object, allowed: tuple[str, ...]) -> Any:
    expected = " or ".join(f"'{each}'" for each in allowed)
    checked = instance(name, value, str, expected)
    if checked not in allowed:
        raise ValueError(f"{name} must be {expected}, not {_shown(checked)}")
    return checked


def location(name: str, value: object) -> str:
    """A file or directory, as text."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a str or a Path, not {_kind_of(value)}")
    return text(name, os.fspath(value))


def optional_file(name: str, value: object) -> str | None:
    """A file that is there: the SDK says of a missing one no more than that a handler failed."""
    if value is None:
        return None
    checked = location(name, value)
    if not os.path.isfile(checked):
        raise ValueError(f"{name}: there is no file {_shown(checked)}")
    return checked


def entity_path(name: str, value: object) -> str:
    """The name of a queue, topic or subscription, without slashes around it."""
    checked = instance(name, value, str, "a str").strip().strip("/")
    if not checked:
        raise ValueError(f"{name} must be the name of a queue, topic or subscription")
    return checked


def callback(name: str, value: object) -> Any:
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {_kind_of(value)}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(f"{name} must be a plain function: nobody would await a coroutine function")
    return value


def error(name: str, value: object) -> BaseException:
    return instance(name, value, BaseException, "an exception")


def host(name: str, value: object) -> str:
    """A host, and a port if there is one. What may be a connection string is not shown."""
    checked = text(name, value)
    if ";" in checked or "=" in checked:
        raise ValueError(f"{name} must be a host name; a connection string is for from_connection_string")
    if "/" in checked or any(each.isspace() for each in checked):
        raise ValueError(
            f"{name} must be a host name such as contoso.servicebus.windows.net, without scheme, path or whitespace, "
            f"not {_shown(checked)}"
        )
    return checked


def messaging_credential(name: str, value: object) -> Any:
    if callable(getattr(value, "get_token", None)) or isinstance(value, (AzureNamedKeyCredential, AzureSasCredential)):
        return value
    expected = "a token credential, an AzureNamedKeyCredential or an AzureSasCredential"
    raise TypeError(f"{name} must be {expected}, not {_kind_of(value)}")


def administration_credential(name: str, value: object) -> Any:
    """The SDK's administration client takes fewer kinds."""
    if callable(getattr(value, "get_token", None)):
        return value
    raise TypeError(
        f"{name} must be a token credential, not {_kind_of(value)}; a shared access key is for from_connection_string"
    )


def sequence_numbers(name: str, value: object) -> list[int]:
    """One number, or several."""
    if isinstance(value, (str, bytes)) or not isinstance(value, (int, Iterable)):
        raise TypeError(f"{name} must be an int or a list of them, not {_kind_of(value)}")
    numbers = [value] if isinstance(value, int) else list(value)
    for each in numbers:
        if isinstance(each, bool) or not isinstance(each, int):
            raise TypeError(f"{name} must be an int or a list of them, not of {_kind_of(each)}")
    return numbers


# -- of one call each -----------------------------------------------------------------------------------------------


def check_send(timeout: object) -> None:
    """Check the parameters of `send_messages`; what the messages may be is for whoever unpacks them."""
    optional_seconds("timeout", timeout)


def check_schedule(schedule_time_utc: object, timeout: object) -> None:
    """Check the parameters of `schedule_messages`."""
    moment("schedule_time_utc", schedule_time_utc)
    optional_seconds("timeout", timeout)


def check_cancel(numbers: object, timeout: object) -> list[int]:
    """Check the parameters of `cancel_scheduled_messages`; the numbers, one by one."""
    checked = sequence_numbers("sequence_numbers", numbers)
    optional_seconds("timeout", timeout)
    return checked


def check_batch(max_size_in_bytes: object) -> None:
    """Check the parameter of `create_message_batch`."""
    optional_count("max_size_in_bytes", max_size_in_bytes)


Check = Callable[[str, object], object]
# What a factory takes beside host and credential, or a connection string.
FACTORY: Final[dict[str, Check]] = {
    "ca_file": optional_file,
    "namespace_name": optional_namespace_name,
    "operation_timeout": seconds,
    "max_in_flight": count,
    "max_in_flight_bytes": count,
    "senders_per_entity": count,
}


def check_factory(**values: object) -> None:
    for name, value in values.items():
        FACTORY[name](name, value)


def _kind_of(value: object) -> str:
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _shown(value: str) -> str:
    return repr(value if len(value) <= SHOWN_CHARS_MAX else value[:SHOWN_CHARS_MAX] + "…")
