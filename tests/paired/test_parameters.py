"""Every parameter that a caller hands in, times what it must not be: refused, and the refusal begins with its name."""

import asyncio
import datetime
import inspect
import math
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential

from spillway import paired
from spillway.paired import parameters, sync

CONN_STR = "Endpoint=sb://localhost:1;SharedAccessKeyName=root;SharedAccessKey=hush;UseDevelopmentEmulator=true;"
ELSEWHERE = CONN_STR.replace("localhost:1", "localhost:2")


class Credential:
    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        raise AssertionError("nobody asks for a token here")


class Things:
    """One flavour of everything, connected to nobody."""

    def __init__(self, flavour: Any) -> None:
        self.flavour = flavour
        self.primary = flavour.MessagingFactory.from_connection_string(CONN_STR)
        self.secondary = flavour.MessagingFactory.from_connection_string(ELSEWHERE)
        self.manager = flavour.NamespaceManager.from_connection_string(ELSEWHERE)

    def options(self, **given: Any) -> Any:
        taken = {"secondary_namespace_manager": self.manager, "messaging_factory": self.secondary, **given}
        return self.flavour.SendAvailabilityPairedNamespaceOptions(**taken)

    async def close(self) -> None:
        for each in (self.primary, self.secondary, self.manager):
            await _done(each.close())


async def _done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@pytest_asyncio.fixture(params=["asyncio", "sync"])
async def things(request: pytest.FixtureRequest) -> AsyncIterator[Things]:
    made = Things(paired if request.param == "asyncio" else sync)
    yield made
    await made.close()


# -- what each kind of parameter must not be --------------------------------------------------------------------------

NO_TEXT: list[object] = [None, 5, b"text", ["text"], ""]
NO_OPTIONAL_TEXT: list[object] = [5, b"text", True, ""]
NO_FLAG: list[object] = ["false", "true", 0, 1, None, []]
NO_COUNT: list[object] = [None, True, 1.5, "3", 0, -1, math.nan]
NO_SECONDS: list[object] = [None, True, "3", datetime.timedelta(seconds=3), 0, -1.0, math.nan, math.inf]
NO_OPTIONAL_SECONDS: list[object] = NO_SECONDS[1:]
NO_DURATION: list[object] = [None, 60, 60.0, "1 minute", datetime.timedelta(days=-1), datetime.timedelta(days=99)]
NO_FILE: list[object] = [5, True, b"ca.pem", "", "/no/such/file.pem", Path("/no/such/file.pem")]
NO_DIRECTORY: list[object] = [None, 5, b"events", ""]
NO_CALLBACK: list[object] = [None, "print", 5, asyncio.sleep]
NO_HOST: list[object] = [*NO_TEXT, "sb://contoso", "contoso/", "con toso", CONN_STR]
NO_CREDENTIAL: list[object] = [None, "key", 5, object()]
NO_OPTIONS: list[object] = [None, "default", {}, paired.PairedNamespaceOptions()]

Handing = Callable[[Things, Any], Any]
ROWS: list[tuple[str, str, list[object], Handing]] = []


def row(where: str, name: str, wrong: list[object], hand: Handing) -> None:
    ROWS.append((where, name, wrong, hand))


FACTORY: dict[str, list[object]] = {
    "ca_file": NO_FILE,
    "namespace_name": [*NO_OPTIONAL_TEXT, "con toso", "-contoso", "contoso/", "n" * 201, "con\ntoso"],
    "operation_timeout": NO_SECONDS,
    "max_in_flight": NO_COUNT,
    "max_in_flight_bytes": NO_COUNT,
    "senders_per_entity": NO_COUNT,
}
OPTIONS: dict[str, list[object]] = {
    "secondary_namespace_manager": [None, "manager", 5],
    "messaging_factory": [None, "factory", 5],
    "backlog_queue_count": [*NO_COUNT, 1_001],
    "failover_interval": NO_DURATION,
    "enable_syphon": NO_FLAG,
    "ping_primary_interval": NO_DURATION,
    "pending": [None, True, "drop", b"hold"],
    "ttl": [None, 5, "half"],
    "policy": ["default", 5, paired.FailoverPolicy, paired.Blame.CALLER],
    "backlog_cool_down": NO_DURATION,
    "syphon_long_poll": NO_DURATION,
    "chance": [0.5, 5, "random", random],
}


def to_the_factory(name: str) -> Handing:
    return lambda things, value: things.flavour.MessagingFactory("h", Credential(), **{name: value})


def to_the_factory_of_a_string(name: str) -> Handing:
    return lambda things, value: things.flavour.MessagingFactory.from_connection_string(CONN_STR, **{name: value})


def to_the_options(name: str) -> Handing:
    return lambda things, value: things.options(**{name: value})


def to_a_method(name: str) -> Handing:
    return lambda things, value: getattr(things.primary, name)(value)


for _name, _wrong in FACTORY.items():
    row("MessagingFactory", _name, _wrong, to_the_factory(_name))
    row("MessagingFactory.from_connection_string", _name, _wrong, to_the_factory_of_a_string(_name))
for _name, _wrong in OPTIONS.items():
    row("SendAvailabilityPairedNamespaceOptions", _name, _wrong, to_the_options(_name))
row("MessagingFactory", "host", NO_HOST, lambda t, value: t.flavour.MessagingFactory(value, Credential()))
row("MessagingFactory", "credential", NO_CREDENTIAL, lambda t, value: t.flavour.MessagingFactory("h", value))
row(
    "MessagingFactory.from_connection_string",
    "conn_str",
    NO_TEXT,
    lambda t, value: t.flavour.MessagingFactory.from_connection_string(value),
)
row("NamespaceManager", "host", NO_HOST, lambda t, value: t.flavour.NamespaceManager(value, Credential()))
row(
    "NamespaceManager",
    "credential",
    [*NO_CREDENTIAL, AzureNamedKeyCredential("root", "hush"), AzureSasCredential("hush")],
    lambda t, value: t.flavour.NamespaceManager("h", value),
)
row(
    "NamespaceManager",
    "ca_file",
    NO_FILE,
    lambda t, value: t.flavour.NamespaceManager("h", Credential(), ca_file=value),
)
row(
    "NamespaceManager.from_connection_string",
    "conn_str",
    NO_TEXT,
    lambda t, value: t.flavour.NamespaceManager.from_connection_string(value),
)
row(
    "NamespaceManager.from_connection_string",
    "ca_file",
    NO_FILE,
    lambda t, value: t.flavour.NamespaceManager.from_connection_string(CONN_STR, ca_file=value),
)
for _method in ("create_message_sender", "create_message_receiver", "create_queue_client", "create_topic_client"):
    row(f"MessagingFactory.{_method}", "path", [*NO_TEXT, "/", " "], to_a_method(_method))
for _method in ("pair_namespace", "pair_namespace_in_background"):
    row(f"MessagingFactory.{_method}", "options", NO_OPTIONS, to_a_method(_method))
row("MessagingFactory.on_event", "callback", NO_CALLBACK, lambda t, value: t.primary.on_event(value))
row("MessagingFactory.record_events", "directory", NO_DIRECTORY, lambda t, value: t.primary.record_events(value))
row(
    "MessagingFactory.record_events",
    "process",
    NO_OPTIONAL_TEXT,
    lambda t, value: t.primary.record_events("events", process=value),
)
row("MessagingFactory.abort", "error", [None, "gone", OSError], lambda t, value: t.primary.abort(value))
row("options.mark_path_healthy", "path", [*NO_TEXT, "/"], lambda t, value: t.options().mark_path_healthy(value))


def set_interval(things: Things, value: Any) -> None:
    things.options().ping_primary_interval = value


row("options", "ping_primary_interval", NO_DURATION, set_interval)


@pytest.mark.parametrize(("where", "name", "wrong", "hand"), ROWS, ids=lambda each: each if type(each) is str else "")
async def test_what_is_of_the_wrong_kind_is_refused_by_name(
    things: Things, where: str, name: str, wrong: list[object], hand: Handing
) -> None:
    for value in wrong:
        with pytest.raises((TypeError, ValueError)) as refused:
            await _done(hand(things, value))
        assert str(refused.value).startswith(name), f"{where}({name}={value!r}): {refused.value}"
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("of", "tables"),
    [
        (paired.MessagingFactory, {"host", "credential"} | FACTORY.keys()),
        (paired.NamespaceManager, {"host", "credential", "ca_file"}),
        (paired.SendAvailabilityPairedNamespaceOptions, OPTIONS.keys()),
    ],
)
def test_the_table_has_every_parameter(of: type, tables: set[str]) -> None:
    taken = inspect.signature(of).parameters.values()
    assert {each.name for each in taken if each.kind is not each.VAR_KEYWORD} == set(tables)
    if of is paired.MessagingFactory:
        assert parameters.FACTORY.keys() == FACTORY.keys()


async def test_what_is_of_the_right_kind_is_taken(things: Things, tmp_path: Path) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.write_text("")
    for ca_file in (None, trusted, str(trusted)):
        made = things.flavour.MessagingFactory("h:5671", Credential(), ca_file=ca_file, operation_timeout=3)
        await _done(made.close())
    for credential in (Credential(), AzureNamedKeyCredential("root", "x"), AzureSasCredential("x")):
        await _done(things.flavour.MessagingFactory("h", credential).close())
    things.options(policy=paired.FailoverPolicy(), chance=random.SystemRandom(), enable_syphon=True, pending="hold")
    things.primary.on_event(print)


async def test_things_of_one_flavour_are_refused_by_the_other() -> None:
    here, there = Things(paired), Things(sync)
    for one, other in ((here, there), (there, here)):
        with pytest.raises(TypeError, match="^secondary_namespace_manager must be"):
            one.options(secondary_namespace_manager=other.manager)
        with pytest.raises(TypeError, match="^messaging_factory must be"):
            one.options(messaging_factory=other.secondary)
        with pytest.raises(TypeError, match="^options must be"):
            await _done(one.primary.pair_namespace(other.options()))
    await here.close()
    await there.close()


# -- what senders ask ------------------------------------------------------------------------------------------------

WHEN = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize("timeout", NO_OPTIONAL_SECONDS)
def test_a_time_out_that_is_none_is_refused_by_every_call(timeout: object) -> None:
    for check in (
        lambda: parameters.check_send(timeout),
        lambda: parameters.check_schedule(WHEN, timeout),
        lambda: parameters.check_cancel([1], timeout),
    ):
        with pytest.raises((TypeError, ValueError), match="^timeout must be "):
            check()


@pytest.mark.parametrize("when", [None, "now", 5, datetime.timedelta(1), datetime.date(2030, 1, 1)])
def test_a_time_to_schedule_for_that_is_none_is_refused(when: object) -> None:
    with pytest.raises(TypeError, match="^schedule_time_utc must be a datetime"):
        parameters.check_schedule(when, None)


@pytest.mark.parametrize("numbers", [None, "12", b"12", 1.5, True, [1, "2"], [None], [True], {"a": 1}])
def test_sequence_numbers_that_are_none_are_refused(numbers: object) -> None:
    with pytest.raises(TypeError, match="^sequence_numbers must be an int or a list of them"):
        parameters.check_cancel(numbers, None)


@pytest.mark.parametrize("size", [True, "1000", 1.5, 0, -1])
def test_a_size_of_a_batch_that_is_none_is_refused(size: object) -> None:
    with pytest.raises((TypeError, ValueError), match="^max_size_in_bytes must be "):
        parameters.check_batch(size)


def test_what_senders_may_be_given_is_taken() -> None:
    parameters.check_send(None)
    parameters.check_send(3)
    parameters.check_schedule(WHEN, 0.5)
    assert parameters.check_cancel(7, None) == [7]
    assert parameters.check_cancel((1, 2), 5) == [1, 2]
    parameters.check_batch(None)
    parameters.check_batch(1_000)
