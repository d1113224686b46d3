"""The process behind `spillway serve`: opens the data directory, serves, and ends in order on a signal."""

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway.cli.errors import CommandError, UsageError
from spillway.cli.parts.serve_plan import EntityPlan, NamespacePlan, ServePlan

if TYPE_CHECKING:
    from spillway.admin.front import HttpFront
    from spillway.model.access import AccessRule
    from spillway.server.event_loop import ChosenLoop
    from spillway.server.key_watch import KeyWatch
    from spillway.server.namespace_server import NamespaceServer, ServerOptions
    from spillway.store.directory import DataDirectory
    from spillway.store.journal import Journal

log = logging.getLogger("spillway.serve")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
FILES_WANTED: Final = 16_384
NAMES_SHOWN_MAX: Final = 10
LOOK_AT_KEYS_S: Final = 0.25
# Messages are plain values without cycles: looking for garbage among them every 700 allocations is time lost.
GC_THRESHOLDS: Final = (50_000, 20, 50)
# The thread that writes asks for the interpreter some 25 times a commit and once a row; while clients keep the other
# one busy it has it after so long. By Python's own 5 ms the send of somebody who waits takes four times as long beside
# somebody busy (tools/neighbours.py, frames). Where many rows are written the rate counts, and each time costs.
SWITCH_S: Final = {True: 0.00001, False: 0.005}


def run(plan: ServePlan) -> int:
    from spillway.server.event_loop import choose_loop
    from spillway.server.logs import log_to_stderr

    log_to_stderr(plan.log_level)
    for warning in plan.warnings:
        log.warning("%s", warning)
    raise_file_limit()
    loop = choose_loop(plan.loop)
    with data_directory(plan) as directory, asyncio.Runner(loop_factory=loop.new) as runner:
        return runner.run(serve(plan, directory, loop))


async def serve(plan: ServePlan, directory: "DataDirectory", loop: "ChosenLoop") -> int:
    from spillway.dialect.rights import Rights
    from spillway.hosting.administration import administer, warm_up
    from spillway.model.budget import namespace_budget, process_budget
    from spillway.server.clock import BrokerClock, MovableClock
    from spillway.server.key_watch import KeyWatch
    from spillway.server.keys import served_rules
    from spillway.server.namespace_server import NamespaceServer, ServerOptions
    from spillway.server.tls import ensure_certificates, server_context

    stopping = asyncio.Event()
    on_signals(stopping)
    data = directory.path
    with explained(data):
        watch = KeyWatch(data, plan.is_development)
        rules = served_rules(data, plan.is_development)
        certificates = ensure_certificates(data / "tls", plan.host)
        tls = server_context(certificates)
    make_clock = MovableClock if plan.is_clock_movable else BrokerClock
    servers: list[NamespaceServer] = []
    fronts: list[HttpFront] = []
    held = process_budget(plan.quotas)
    try:
        for index, namespace in enumerate(plan.namespaces):
            options = ServerOptions(
                name=namespace.name,
                host=plan.host,
                port=namespace.port,
                also_ports=plan.also_ports if index == 0 else (),
                is_clear_text_allowed=plan.is_clear_text_allowed,
                quotas=plan.quotas,
                delivers_early=plan.delivers_early,
            )
            with explained(data):
                journal = open_journal(plan, directory, namespace)
                on_fatal = partial(fail_one, servers, namespace.name)
                budget = namespace_budget(held, len(plan.namespaces))
                servers.append(
                    NamespaceServer(options, journal, Rights(rules), tls, on_fatal, None, make_clock, budget)
                )
            fronts.append(administer(servers[-1], plan.allowed_hosts))
            await begin(servers[-1], namespace)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        announce(plan, data, servers, root_key_of(rules), certificates.ca, loop)
        await warm_up(fronts)
        await follow_keys(watch, servers, stopping)
        log.info("stopping")
    finally:
        for front in fronts:
            front.stop()
        await asyncio.gather(*(server.stop() for server in servers))
    log.info("stopped")
    return EXIT_FAILED if any(server.is_failed for server in servers) else EXIT_OK


async def follow_keys(watch: "KeyWatch", servers: "list[NamespaceServer]", stopping: asyncio.Event) -> None:
    """Until the end. The file is read in another thread: nobody's messages wait for it."""
    loop = asyncio.get_running_loop()

    def set_rules(rules: "list[AccessRule]") -> None:
        for server in servers:
            server.set_rules(rules, "the key file")

    def tell(rules: "list[AccessRule]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(set_rules, rules)

    watch.follow(LOOK_AT_KEYS_S, tell)
    try:
        await stopping.wait()
    finally:
        watch.stop()


def root_key_of(rules: "list[AccessRule]") -> str:
    from spillway.server.keys import KEY_NAME

    return next(rule.primary_key for rule in rules if rule.name == KEY_NAME)


async def begin(server: "NamespaceServer", namespace: NamespacePlan) -> None:
    server.start()
    # What forwards can be made when what it forwards to is there.
    entities = namespace.entities
    missing = [each for each in entities if each.is_forwarding and not server.core.exists(each.path)]
    if missing:
        others = [each for each in entities if not each.is_forwarding]
        await ensure(server, [*others, *(each.without_forwarding() for each in missing)])
    await ensure(server, entities)
    try:
        server.listen()
    except OSError as error:
        raise CommandError(f"namespace {namespace.name} {listen_text(error, server.options)}") from error


async def ensure(server: "NamespaceServer", entities: list[EntityPlan]) -> None:
    """Create entities all at once: they are decided in this order and share their commits."""
    from spillway.model.errors import BrokerError, InternalError, ServerBusy

    making = [server.ensure_entity(each.kind, each.path, each.settings) for each in entities]
    for wanted, failure in zip(entities, await asyncio.gather(*making, return_exceptions=True), strict=True):
        # The disk has no space, or the entity is out of service: what is there is served, and can be deleted.
        if isinstance(failure, (ServerBusy, InternalError)):
            log.warning("%s %s in %s is left as it is: %s", wanted.kind, wanted.path, server.options.name, failure)
            continue
        if isinstance(failure, BrokerError):
            place = f"{wanted.kind} {wanted.path} in {server.options.name}"
            raise CommandError(f"{place}: {failure.description}") from failure
        if failure is not None:
            raise failure


def listen_text(error: OSError, options: "ServerOptions") -> str:
    """Why there is no listening, and what to change."""
    where = f"cannot listen on {options.host}:{options.port}"
    if options.also_ports:
        where += f" (and {', '.join(str(port) for port in options.also_ports)})"
    if isinstance(error, socket.gaierror):
        return f"{where}: --host {options.host} is no address of this machine"
    text = f"{where}: {os_text(error)}"
    if error.errno == errno.EADDRINUSE:
        text += f"; another port: --namespace {options.name}=PORT"
    return text


def open_journal(plan: ServePlan, directory: "DataDirectory", namespace: NamespacePlan) -> "Journal":
    if plan.is_memory:
        from spillway.store.memory import MemoryJournal

        return MemoryJournal(namespace.name.lower())
    from spillway.store.logged import LoggedJournal

    path = directory.journal_path(namespace.name.lower())
    return LoggedJournal(
        path,
        directory=directory,
        on_write=share_time,
        synchronous=unsafe_synchronous() or "FULL",
        batch_bytes=plan.quotas.log_batch_bytes(),
    )


def share_time(are_rows_few: bool) -> None:
    """How soon the thread that writes gets the interpreter."""
    sys.setswitchinterval(SWITCH_S[are_rows_few])


def unsafe_synchronous() -> str | None:
    """The negative control of the durability tests: a broker that answers without waiting for the disk."""
    value = os.environ.get("SPILLWAY_UNSAFE_SYNCHRONOUS")
    if value not in (None, "OFF", "NORMAL"):
        raise UsageError(f"SPILLWAY_UNSAFE_SYNCHRONOUS={value}: must be OFF or NORMAL (a power cut loses messages)")
    if value is not None:
        log.warning("SPILLWAY_UNSAFE_SYNCHRONOUS=%s: a power cut loses what was acknowledged", value)
    return value


@contextlib.contextmanager
def data_directory(plan: ServePlan) -> "Iterator[DataDirectory]":
    """The directory for keys, certificates and messages, locked; a passing one if nothing is to be kept."""
    from spillway.store.directory import DataDirectory

    path = plan.data or Path(tempfile.mkdtemp(prefix="spillway-"))
    with explained(path):
        directory = DataDirectory(path)
    try:
        yield directory
    finally:
        directory.close()
        if plan.data is None:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def explained(data: Path) -> Iterator[None]:
    """What can go wrong with a data directory, in one line."""
    from spillway.server.keys import BadKeyFile
    from spillway.store.errors import StoreError

    try:
        yield
    except (StoreError, BadKeyFile) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"data directory {error.filename or data}: {os_text(error)}") from error


def os_text(error: OSError) -> str:
    return error.strerror or str(error)


# -- ready ------------------------------------------------------------------------------------------------------------


def announce(
    plan: ServePlan, data: Path, servers: "list[NamespaceServer]", key: str, ca_file: Path, loop: "ChosenLoop"
) -> None:
    from spillway.cli.version import build_text, not_compiled_because
    from spillway.server.keys import connection_string
    from spillway.server.listener import is_loopback

    is_local = plan.host == "localhost" or is_loopback(plan.host)
    host = "localhost" if is_local or plan.host in ("0.0.0.0", "::") else plan.host
    is_clear_text = host == "localhost" or plan.is_clear_text_allowed
    entries = [
        {
            "name": server.options.name,
            "port": server.port,
            "connection_string": connection_string(host, server.port, key, is_clear_text),
            "ca_file": str(ca_file.resolve()),
        }
        for server in servers
    ]
    if plan.data is not None:
        remember_where(data, host, is_clear_text, servers, plan.is_development)
    if plan.is_json:
        facts = {"not_compiled_because": not_compiled_because(), "event_loop": loop.name}
        say(json.dumps({"ready": True, **facts, "namespaces": entries}))
    else:
        for entry, server in zip(entries, servers, strict=True):
            say(f"Namespace {entry['name']} is ready on port {entry['port']}:")
            say(f"  {entry['connection_string']}")
            say(f"  queues and topics: {names_text(server.entity_names)}")
        say(f"For TLS, trust the development CA: {ca_file.resolve()}")
    if not is_local:
        log.warning(
            "serving other machines on %s%s", plan.host, ", in clear text" if plan.is_clear_text_allowed else ""
        )
    if plan.is_development:
        log.warning("the development key is in use: everyone on this machine knows it")
    for server in servers:
        if not server.entity_names:
            log.warning(
                "namespace=%s has no queue or topic: make one with --queue NAME or an administration client",
                server.options.name,
            )
    ports = ", ".join(f"{server.options.name}={server.port}" for server in servers)
    log.info("ready: %s; %s; event loop: %s", ports, build_text(), loop.text)


def names_text(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN_MAX]) or "none yet"
    return shown if len(names) <= NAMES_SHOWN_MAX else f"{shown} and {len(names) - NAMES_SHOWN_MAX:,} more"


def say(line: str) -> None:
    print(line, file=sys.stdout, flush=True)


def remember_where(
    data: Path, host: str, is_clear_text: bool, servers: "list[NamespaceServer]", is_development: bool
) -> None:
    """For `spillway connection-string`."""
    from spillway.hosting.running_file import Running, write_running

    ports = {server.options.name: server.port for server in servers}
    try:
        write_running(data, Running(host, is_clear_text, is_development, ports))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise CommandError(f"data directory {error.filename or data}: {os_text(error)}") from error
        log.warning("no space to write down where this directory is served: other commands may not find the broker")


# -- signals, limits, the worst case ----------------------------------------------------------------------------------


def on_signals(stopping: asyncio.Event) -> None:
    """The first signal stops in order; a second one is not waited for."""
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        stopping.set()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


def fail_one(servers: "list[NamespaceServer]", name: str, error: BaseException) -> None:
    """A write or sync of one namespace failed: what is in memory of it can no longer be trusted.

    Each has a store of its own. The others go on; with the last of them the process ends, here and now. Nothing of what
    failed was acknowledged; a restart reads what the disk really has.
    """
    from spillway.server.logs import redact
    from spillway.store.errors import StoreError

    if not isinstance(error, (StoreError, OSError)):
        log.critical("a fault of the broker", exc_info=error)
    text = " ".join(str(error).split()) or type(error).__name__
    others = [server.options.name for server in servers if server.options.name != name and not server.is_failed]
    if not others:
        sys.stderr.write(redact(f"spillway: stopped at once: {text}\n"))
        sys.stderr.flush()
        os._exit(EXIT_FAILED)
    for server in servers:
        if server.options.name == name:
            server.abandon()
    log.critical(
        "%s", redact(f"namespace={name} stopped at once: {text}. The others go on; a restart serves it again.")
    )


def raise_file_limit() -> None:
    """Each client costs a file descriptor; the usual soft limit of 1,024 is below what a namespace may have."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
