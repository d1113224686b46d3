"""`spillway serve`: one broker process, one or more namespaces, each on a port of its own."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spillway.cli.errors import UsageError
from spillway.cli.parts.serve_plan import EntityPlan, NamespacePlan, ServePlan

if TYPE_CHECKING:
    from spillway.model.quotas import Quotas

DEFAULT_NAMESPACE: Final = "sbemulatorns"
DEFAULT_PORT: Final = 5672
DEFAULT_DATA: Final = "spillway-data"


def command(
    namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PORT", help="A namespace and its port; 0 picks a free one. May be repeated."),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen. localhost is 127.0.0.1 and ::1.")
    ] = "localhost",
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=f"Where messages, keys and certificates are kept. Default: ./{DEFAULT_DATA}"),
    ] = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="Use the emulator's well-known key, SAS_KEY_VALUE. This machine only.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Config.json of Microsoft's emulator: its entities are made or updated."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Make this queue in every namespace unless it is there. May be repeated."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Make this topic in every namespace unless it is there. May be repeated."),
    ] = None,
    subscription: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC/NAME", help="Make this subscription, and its topic, likewise. May be repeated."),
    ] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Keep nothing: messages are gone at exit.")] = False,
    also_listen: Annotated[
        list[int] | None,
        typer.Option(metavar="PORT", help="Serve the first namespace on this port too. May be repeated."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --dev: a name of this machine that is no local one. May be repeated."),
    ] = None,
    clear_text: Annotated[
        bool,
        typer.Option(
            "--clear-text", help="Let other machines connect without TLS: keys and messages can be read on the way."
        ),
    ] = False,
    movable_clock: Annotated[
        bool,
        typer.Option("--movable-clock", help="Let `spillway clock advance` move the clock ahead. --dev allows it too."),
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set a limit of every namespace; 0 is none. May be repeated."),
    ] = None,
    loop: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The event loop: uvloop, asyncio, or auto, which is uvloop if it is installed."
        ),
    ] = "auto",
    late_delivery: Annotated[
        bool,
        typer.Option("--late-delivery", help="Hand a message to a waiting receiver only when its send is on the disk."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="On ready, print one line of JSON on stdout.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every connection.")] = False,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    When it is ready it prints a connection string for each namespace. Queues come from --queue and --config, and from
    what the data directory remembers.
    """
    plan = make_plan(
        namespaces=namespace or [],
        host=host,
        data=data,
        is_development=dev,
        config=config,
        queues=queue or [],
        topics=topic or [],
        subscriptions=subscription or [],
        is_memory=memory,
        also_listen=also_listen or [],
        allow_hosts=allow_host or [],
        is_clear_text_allowed=clear_text,
        is_clock_movable=movable_clock,
        limits=limit or [],
        loop=loop,
        delivers_early=not late_delivery,
        is_json=as_json,
        is_verbose=verbose,
    )
    from spillway.cli.parts.serving import run

    raise typer.Exit(run(plan))


def make_plan(
    *,
    namespaces: list[str],
    host: str,
    data: Path | None,
    is_development: bool,
    config: Path | None,
    queues: list[str],
    topics: list[str],
    subscriptions: list[str],
    is_memory: bool,
    also_listen: list[int],
    allow_hosts: list[str],
    is_clear_text_allowed: bool,
    is_clock_movable: bool,
    limits: list[str],
    loop: str,
    delivers_early: bool,
    is_json: bool,
    is_verbose: bool,
) -> ServePlan:
    ports = parse_namespaces(namespaces)
    warnings: list[str] = []
    wanted: dict[str, list[EntityPlan]] = {}
    if config is not None:
        wanted = read_entities(config, ports, warnings)
    ports = ports or {DEFAULT_NAMESPACE: DEFAULT_PORT}
    check_host(host, is_development)
    for port in also_listen:
        check_port(port, f"--also-listen {port}")
    check_ports_differ(ports, also_listen)
    in_every = plan_entities(queues, topics, subscriptions)
    quotas = parse_limits(limits, is_development)
    plans = [NamespacePlan(name, port, merged(wanted.get(name.lower(), []), in_every)) for name, port in ports.items()]
    for planned in plans:
        check_count(planned, quotas)
    return ServePlan(
        namespaces=plans,
        host=host,
        data=data if data is not None or is_memory else Path(DEFAULT_DATA),
        is_memory=is_memory,
        is_development=is_development,
        is_clear_text_allowed=is_clear_text_allowed,
        is_clock_movable=is_clock_movable or is_development,
        also_ports=tuple(also_listen),
        allowed_hosts=frozenset(parse_host(value) for value in allow_hosts),
        quotas=quotas,
        loop=check_loop(loop),
        delivers_early=delivers_early,
        is_json=is_json,
        log_level="DEBUG" if is_verbose else log_level(),
        warnings=warnings,
    )


def parse_namespaces(values: list[str]) -> dict[str, int]:
    from spillway.model.namespaces import namespace_name_problem

    ports: dict[str, int] = {}
    seen: dict[str, str] = {}
    for value in values:
        name, equals, port_text = value.partition("=")
        if not equals or not (port_text.isascii() and port_text.isdigit()) or len(port_text) > 5:
            raise UsageError(f"--namespace {value}: must be NAME=PORT, for example {DEFAULT_NAMESPACE}={DEFAULT_PORT}")
        problem = namespace_name_problem(name)
        if problem is not None:
            raise UsageError(f"--namespace {value}: a namespace's name is {problem}")
        if name.lower() in seen:
            raise UsageError(f"--namespace {value}: there is a namespace {seen[name.lower()]} already")
        seen[name.lower()] = name
        check_port(int(port_text), f"--namespace {value}")
        ports[name] = int(port_text)
    return ports


def parse_host(value: str) -> str:
    name = value.lower().rstrip(".")
    if not name or not name.isascii() or not all(each.isalnum() or each in "-._" for each in name):
        raise UsageError(f"--allow-host {value}: must be a name without scheme and port, for example sb.contoso.com")
    return name


def parse_limits(values: list[str], is_development: bool) -> "Quotas":
    """What is not set has Azure Standard's value; memory has most of what there is, unless this is for development."""
    from spillway.model.quotas import Quotas
    from spillway.server.memory import memory_mb_default

    quotas = Quotas()
    if not is_development:
        quotas.memory_mb = memory_mb_default()
    for value in values:
        name, equals, number = value.partition("=")
        if not equals or not (number.isascii() and number.isdigit()) or len(number) > 12:
            raise UsageError(f"--limit {value}: must be NAME=NUMBER, for example operations-per-second=1000")
        try:
            quotas.set(name, int(number))
        except ValueError as error:
            raise UsageError(f"--limit {value}: {error}") from None
    return quotas


def check_loop(wanted: str) -> str:
    """The loop must be there before anything is opened."""
    from spillway.server.event_loop import CHOICES, LoopMissing, choose_loop

    if wanted not in CHOICES:
        raise UsageError(f"--loop {wanted}: must be auto, uvloop or asyncio")
    try:
        choose_loop(wanted)
    except LoopMissing as error:
        raise UsageError(
            f"--loop {wanted}: {error}; install it (pip install uvloop), or leave the option out"
        ) from None
    return wanted


def check_port(port: int, option: str) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(f"{option}: a port is between 1 and 65535, or 0 for any that is free")


def check_ports_differ(ports: dict[str, int], also_listen: list[int]) -> None:
    used: set[int] = set()
    for port in (*ports.values(), *also_listen):
        if port != 0 and port in used:
            raise UsageError(f"port {port} is asked for twice; each namespace and --also-listen needs its own")
        used.add(port)


def plan_entities(queues: list[str], topics: list[str], subscriptions: list[str]) -> list[EntityPlan]:
    """What the options ask for in every namespace."""
    from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, entity_name_problem, subscription_name_problem
    from spillway.model.entity import subscription_path as path_of

    plans: list[EntityPlan] = []
    for kind, names in ((QUEUE, queues), (TOPIC, topics)):
        for name in names:
            problem = entity_name_problem(name)
            if problem is not None:
                raise UsageError(f"--{kind} {name}: {problem}")
            plans.append(EntityPlan(kind, name))
    for value in subscriptions:
        topic, _, name = value.rpartition("/")
        if not topic:
            raise UsageError(f"--subscription {value}: must be TOPIC/NAME")
        problem = entity_name_problem(topic) or subscription_name_problem(path_of(topic, name))
        if problem is not None:
            raise UsageError(f"--subscription {value}: {problem}")
        plans += [EntityPlan(TOPIC, topic), EntityPlan(SUBSCRIPTION, path_of(topic, name))]
    return merged([], plans)


def merged(first: list[EntityPlan], more: list[EntityPlan]) -> list[EntityPlan]:
    """All entities, each once: what the file says of one stands. One path for two kinds is refused when they are
    made."""
    plans: dict[tuple[str, str], EntityPlan] = {}
    for plan in (*first, *more):
        plans.setdefault((plan.kind, plan.path.lower()), plan)
    return list(plans.values())


def check_count(plan: NamespacePlan, quotas: "Quotas") -> None:
    from spillway.model.entity import SUBSCRIPTION

    count = sum(each.kind != SUBSCRIPTION for each in plan.entities)
    if count > quotas.entities:
        raise UsageError(
            f"namespace {plan.name} is to have {count} queues and topics; it may have {quotas.entities}, "
            f"unless you say --limit entities={count}"
        )


def check_host(host: str, is_development: bool) -> None:
    from spillway.server.listener import is_loopback

    if is_development and host != "localhost" and not is_loopback(host):
        raise UsageError(
            f"--dev --host {host}: the development key is known to everyone, so it serves this machine only; "
            f"leave out one of the two"
        )


def read_entities(path: Path, ports: dict[str, int], warnings: list[str]) -> dict[str, list[EntityPlan]]:
    """By namespace, what the file asks for. Without --namespace its one namespace is served on the usual port."""
    from spillway.emulator_config.reader import read_config
    from spillway.emulator_config.values import ConfigError

    try:
        config = read_config(path)
    except ConfigError as error:
        raise UsageError(*error.lines) from None
    warnings += config.warnings
    names = [namespace.name for namespace in config.namespaces]
    if not ports:
        if len(names) > 1:
            options = " ".join(f"--namespace {name}={DEFAULT_PORT + index}" for index, name in enumerate(names))
            raise UsageError(f"{path}: names {len(names)} namespaces; say which port each is on: {options}")
        ports[names[0]] = DEFAULT_PORT
    served = {name.lower() for name in ports}
    for name in names:
        if name.lower() not in served:
            raise UsageError(f"{path}: namespace {name} is not served; add --namespace {name}=PORT")
    return {
        namespace.name.lower(): [EntityPlan(each.kind, each.path, each.settings) for each in namespace.entities]
        for namespace in config.namespaces
    }


def log_level() -> str:
    level = os.environ.get("SPILLWAY_LOG_LEVEL", "INFO").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise UsageError(f"SPILLWAY_LOG_LEVEL={level}: must be DEBUG, INFO, WARNING or ERROR")
    return level
