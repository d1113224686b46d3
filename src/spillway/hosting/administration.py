"""Puts a served namespace and its administration side by side: neither room imports the other."""

import asyncio

from spillway.admin.front import HttpFront
from spillway.admin.http_refusals import MANAGE_NEEDED, NOT_CLAIMED
from spillway.admin.namespace import AdministeredNamespace
from spillway.server.keys import is_key_known
from spillway.server.namespace_server import NamespaceServer
from spillway.server.tokens import TokenGate


def administer(server: NamespaceServer, allowed_hosts: frozenset[str] = frozenset()) -> HttpFront:
    """From now on HTTP clients of the namespace's port are administrators; each request shows a token with Manage.

    Those that ask for a WebSocket get one, with AMQP in it.
    """
    front = HttpFront(
        AdministeredNamespace(
            name=server.options.name,
            pump=server.pump,
            gate=TokenGate(server.rights, server.clock, server.audit, MANAGE_NEEDED, NOT_CLAIMED),
            audit=server.audit,
            now_ms=server.clock.now_ms,
            real_ms=server.clock.real_ms,
            tracking_text=server.tracking.tracking_text,
            created_ms=server.created_ms,
            is_key_known=lambda: is_key_known(server.rights),
            facts=server.facts,
            counts=server.counts,
            is_clock_movable=server.is_clock_movable,
            advance=server.advance,
            sealed_days=server.journal.days,
            budget=server.budget,
            allowed_hosts=allowed_hosts,
        )
    )
    server.acceptor.http = front
    return front


async def warm_up(fronts: list[HttpFront]) -> None:
    """Import what serves HTTP beside the loop: it takes a fifth of a second that no AMQP client should wait for."""
    await asyncio.to_thread(import_http)
    for front in fronts:
        front.warm_up()


def import_http() -> None:
    import spillway.admin.app
    import spillway.admin.protocol  # noqa: F401
