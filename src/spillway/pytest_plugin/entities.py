"""Entities with the settings that administration clients know, made as an administration client makes them.

The administration's own reader checks them, so a test is refused what Azure refuses, and gets every setting that is
served, under the name it has in the SDK.
"""

from datetime import timedelta
from typing import Any, Final

from spillway.admin.atom import ATOM, SCHEMA_INSTANCE, SERVICE_BUS, tag
from spillway.admin.descriptions import NAMES
from spillway.admin.http_refusals import HttpRefusal
from spillway.admin.namespace import AdministeredNamespace
from spillway.admin.paths import parse_target
from spillway.admin.service import EntityCall, Service
from spillway.model.entity import SUBSCRIPTION, duration_text
from spillway.model.rules import DEFAULT_RULE

API_VERSION: Final = "api-version=2021-05"
BASE: Final = "https://localhost"


async def create(
    namespace: AdministeredNamespace, kind: str, path: str, settings: dict[str, Any], sql_filter: str | None
) -> None:
    """`ValueError` says what is wrong with a name or a setting."""
    body = entry_xml(kind, settings, sql_filter)
    try:
        call = EntityCall("PUT", parse_target(path), API_VERSION, BASE, None, body.encode(), may_forward)
        await Service(namespace).answer(call)
    except HttpRefusal as fault:
        text = " ".join(fault.detail.split())
        raise ValueError(
            f"{kind} {path!r}: {text.partition('. ')[2] if text.startswith('SubCode=') else text}"
        ) from None


def may_forward(header: str, path: str) -> bool:
    """Whether a caller may forward there: inside the process it may do everything."""
    return True


def entry_xml(kind: str, settings: dict[str, Any], sql_filter: str | None) -> str:
    inner = "".join(tag(element_name(name), text_of(name, value)) for name, value in settings.items())
    if sql_filter is not None:
        assert kind == SUBSCRIPTION, "only subscriptions have filters"
        filter_xml = f'<Filter i:type="SqlFilter">{tag("SqlExpression", sql_filter)}</Filter>'
        inner += f"<DefaultRuleDescription>{filter_xml}{tag('Name', DEFAULT_RULE)}</DefaultRuleDescription>"
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<{NAMES[kind]} xmlns="{SERVICE_BUS}" xmlns:i="{SCHEMA_INSTANCE}">{inner}</{NAMES[kind]}></content></entry>'
    )


def element_name(name: str) -> str:
    """`lock_duration` is `LockDuration`."""
    if not name.replace("_", "").isalnum() or not name.isascii():
        raise ValueError(f"{name!r} is no setting")
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def text_of(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        if value <= timedelta(0):
            raise ValueError(f"{name} must be longer than zero, not {value}")
        return duration_text(value // timedelta(milliseconds=1))
    if isinstance(value, int | str):
        return str(value)
    raise ValueError(f"{name} must be a timedelta, a number, a string or True or False, not {value!r}")
