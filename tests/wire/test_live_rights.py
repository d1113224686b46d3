"""Rights of links that are open: they end with their token, their rule, their key and their entity (S3, S4, S22)."""

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from spillway.broker.commands import CreateEntity, DeleteEntity, UpdateEntity
from spillway.client import (
    ClientError,
    Connection,
    OutgoingMessage,
    Receiver,
    SasCredential,
    Sender,
    Unauthorized,
    connect,
)
from spillway.client.credentials import Token
from spillway.model.access import LISTEN, NAMESPACE_SCOPE, SEND, AccessRule
from spillway.model.entity import QUEUE, TOPIC, EntitySettings
from spillway.model.errors import Unauthorized as UnauthorizedHere
from spillway.server.keys import DEVELOPMENT_KEY, KEY_NAME
from spillway.testing.clock import FakeClock
from tests.wire.live import LiveBroker

ONE = base64.b64encode(b"1" * 32).decode()
TWO = base64.b64encode(b"2" * 32).decode()
NEW = base64.b64encode(b"3" * 32).decode()
LIFE_S = 10
WITHIN_MS = 1_000  # S3, S4
HOUR_MS = 3_600_000
SOON_S = 5.0  # of real time, for what has happened already to arrive


class Stepped(FakeClock):
    """The broker's time, real time included, is what the test says; it begins now, because tokens are signed now."""

    def __init__(self, floor_ms: int) -> None:
        super().__init__(int(time.time() * 1000))


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    broker = LiveBroker(tmp_path_factory.mktemp("stepped"), make_clock=Stepped)
    yield broker
    broker.run(pass_time(broker, 60_000))  # whoever is slow to leave is not waited for
    broker.close()


async def pass_time(broker: LiveBroker, by_ms: int) -> None:
    clock = broker.server.clock
    assert isinstance(clock, Stepped)
    clock.advance(by_ms)


def ms_left(broker: LiveBroker, expires_s: int) -> int:
    return expires_s * 1000 - broker.server.clock.real_ms()


class Signed(SasCredential):
    """Signs for ten seconds of the broker's time, and remembers when the last one ends."""

    def __init__(self, broker: LiveBroker) -> None:
        super().__init__(KEY_NAME, DEVELOPMENT_KEY, LIFE_S)
        self.broker = broker
        self.expires_s = 0

    async def token_for(self, audience: str, now_s: float) -> Token:
        token = await super().token_for(audience, self.broker.server.clock.wall_ms() / 1000)
        self.expires_s = int(token.expires_s)
        token.expires_s += 3_600  # the connection does not renew it by itself
        return token


async def is_ended(link: Receiver | Sender) -> ClientError:
    """The link's end arrives; what it was told."""
    for _ in range(int(SOON_S / 0.005)):
        if link.error is not None:
            return link.error
        await asyncio.sleep(0.005)
    raise AssertionError("it never ended")


async def test_a_link_ends_with_its_token_and_nothing_is_delivered_after(stepped: LiveBroker) -> None:
    queue = stepped.queue()
    credential = Signed(stepped)
    async with (
        await connect(stepped.connection_string, credential=credential) as connection,
        await connect(stepped.connection_string) as other,
    ):
        receiver = await connection.receiver(queue, credit=10)
        sender = await connection.sender(queue)
        steady = await other.sender(queue)
        await asyncio.to_thread(stepped.run, pass_time(stepped, ms_left(stepped, credential.expires_s) - 1))
        await steady.send(OutgoingMessage("in time"))
        assert [message.body for message in await receiver.receive(max_wait=SOON_S)] == [b"in time"]
        await asyncio.to_thread(stepped.run, pass_time(stepped, 1))
        await steady.send(OutgoingMessage("too late"))  # the pump has not ticked yet
        error = await is_ended(receiver)
        assert isinstance(error, Unauthorized)
        assert "The token of this link has expired" in str(error)
        with pytest.raises(Unauthorized):
            await receiver.receive(max_wait=SOON_S)
        assert isinstance(await is_ended(sender), Unauthorized), "all links of the token, not only the one in use"
        await steady.send(OutgoingMessage("later still"))
    locked = stepped.locked_count(queue)
    assert [message.body for message in stepped.peek(queue)] == [b"in time", b"too late", b"later still"]
    assert [message.delivery_count for message in stepped.peek(queue)][1:] == [0, 0]
    assert locked == 1, "the one that was delivered in time"


async def test_an_idle_link_ends_within_a_second_of_its_token(stepped: LiveBroker) -> None:
    queue = stepped.queue()
    credential = Signed(stepped)
    async with await connect(stepped.connection_string, credential=credential) as connection:
        receiver = await connection.receiver(queue, credit=10)
        await asyncio.to_thread(stepped.run, pass_time(stepped, ms_left(stepped, credential.expires_s) - 1))
        assert receiver.error is None
        await asyncio.to_thread(stepped.run, pass_time(stepped, 1 + WITHIN_MS))
        assert isinstance(await is_ended(receiver), Unauthorized)


async def test_a_renewed_token_keeps_its_links(stepped: LiveBroker) -> None:
    queue = stepped.queue()
    credential = Signed(stepped)
    async with await connect(stepped.connection_string, credential=credential) as connection:
        receiver = await connection.receiver(queue, credit=10)
        first = credential.expires_s
        for _ in range(3):
            await asyncio.to_thread(stepped.run, pass_time(stepped, LIFE_S * 800))
            await connection._authorisation._put(f"sb://localhost:{stepped.server.port}/{queue}")
        assert credential.expires_s > first + LIFE_S, "the first ones are long over"
        await asyncio.to_thread(stepped.send, queue, "still here")
        assert [message.body for message in await receiver.receive(max_wait=SOON_S)] == [b"still here"]


async def set_wall(broker: LiveBroker, by_ms: int) -> None:
    """Somebody sets the clock of the machine; the broker notices within a second."""
    clock = broker.server.clock
    assert isinstance(clock, Stepped)
    clock.wall_ahead_ms += by_ms
    clock.advance(WITHIN_MS)


async def test_a_wall_clock_set_back_costs_no_token(stepped: LiveBroker) -> None:
    """Clients sign by the same clock: two hours behind what the broker saw before."""
    queue = stepped.queue()
    await asyncio.to_thread(stepped.run, set_wall(stepped, -2 * HOUR_MS))
    try:
        async with await connect(stepped.connection_string, credential=Signed(stepped)) as connection:
            sender = await connection.sender(queue)
            await sender.send(OutgoingMessage("taken"))
    finally:
        await asyncio.to_thread(stepped.run, set_wall(stepped, 2 * HOUR_MS))
    assert [message.body for message in stepped.peek(queue)] == [b"taken"]


async def test_a_wall_clock_set_ahead_ends_the_tokens_that_are_over_by_it(stepped: LiveBroker) -> None:
    queue = stepped.queue()
    credential = Signed(stepped)
    async with await connect(stepped.connection_string, credential=credential) as connection:
        receiver = await connection.receiver(queue, credit=10)
        old = await credential.token_for(f"sb://localhost:{stepped.server.port}/{queue}", 0)
        await asyncio.to_thread(stepped.run, set_wall(stepped, 2 * HOUR_MS))
        try:
            error = await is_ended(receiver)
            assert "The token of this link has expired" in str(error)
            with pytest.raises(UnauthorizedHere, match="ExpiredToken"):
                stepped.server.rights.check_token(old.text, queue, stepped.server.clock.wall_ms())
        finally:
            await asyncio.to_thread(stepped.run, set_wall(stepped, -2 * HOUR_MS))


async def test_without_a_token_the_connection_ends_after_twenty_seconds(stepped: LiveBroker) -> None:
    queue = stepped.queue()
    credential = Signed(stepped)
    async with await connect(stepped.connection_string, credential=credential) as connection:
        receiver = await connection.receiver(queue)
        await asyncio.to_thread(stepped.run, pass_time(stepped, ms_left(stepped, credential.expires_s) + WITHIN_MS))
        await is_ended(receiver)
        assert connection.error is None
        await asyncio.to_thread(stepped.run, pass_time(stepped, 20_000 - 2 * WITHIN_MS))
        assert connection.error is None
        await asyncio.to_thread(stepped.run, pass_time(stepped, 2 * WITHIN_MS))
        for _ in range(int(SOON_S / 0.005)):
            if connection.error is not None:
                break
            await asyncio.sleep(0.005)
        assert "ran out and was not renewed" in str(connection.error)


# -- rules that change ---------------------------------------------------------------------------------------------


def ruled(*rules: AccessRule) -> EntitySettings:
    settings = EntitySettings()
    settings.access_rules = list(rules)
    return settings


@contextlib.asynccontextmanager
async def links(
    live: LiveBroker, entity: str, name: str, key: str
) -> AsyncIterator[tuple[Connection, Sender, Receiver]]:
    """A sender and a receiver that stand on one rule's key."""
    string = live.connection_string.replace(KEY_NAME, name).replace(DEVELOPMENT_KEY, key)
    async with await connect(string) as connection:
        source = f"{entity}/Subscriptions/s" if entity.startswith("topic") else entity
        yield connection, await connection.sender(entity), await connection.receiver(source, credit=1)


BOTH = AccessRule("own", SEND | LISTEN, ONE, TWO)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """Time passes in it when rights change, and then a second (S3, S4)."""
    broker = LiveBroker(tmp_path_factory.mktemp("still"), make_clock=Stepped)
    yield broker
    broker.run(pass_time(broker, 60_000))
    broker.close()


@pytest.fixture
def entity(live: LiveBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    kind = getattr(request, "param", QUEUE)
    path = f"{kind}/of/rules"
    live.ask(lambda number: CreateEntity(number, kind, path, ruled(BOTH)))
    if kind == TOPIC:
        live.subscription(path, "s")
    yield path
    if live.server.core.exists(path):
        live.delete(path)


def change(live: LiveBroker, path: str, *rules: AccessRule) -> None:
    """The entity has these, for a second."""
    live.ask(lambda number: UpdateEntity(number, path, ruled(*rules)))
    live.run(pass_time(live, WITHIN_MS))


@pytest.mark.parametrize("entity", [QUEUE, TOPIC], indirect=True)
@pytest.mark.parametrize(
    ("rules", "sender_lives", "receiver_lives"),
    [
        pytest.param([], False, False, id="the rule goes"),
        pytest.param([AccessRule("own", SEND | LISTEN, NEW, TWO)], False, False, id="its key is another"),
        pytest.param([AccessRule("own", SEND | LISTEN, ONE, NEW)], True, True, id="its other key is another"),
        pytest.param([AccessRule("own", SEND | LISTEN, TWO, ONE)], True, True, id="its keys change places"),
        pytest.param([AccessRule("own", SEND, ONE, TWO)], True, False, id="it loses Listen"),
        pytest.param([AccessRule("own", LISTEN, ONE, TWO)], False, True, id="it loses Send"),
        pytest.param([AccessRule("renamed", SEND | LISTEN, ONE, TWO)], False, False, id="it has another name"),
        pytest.param([BOTH, AccessRule("more", SEND, NEW, NEW)], True, True, id="another one comes"),
    ],
)
async def test_links_live_as_long_as_what_they_stand_on(
    live: LiveBroker, entity: str, rules: list[AccessRule], sender_lives: bool, receiver_lives: bool
) -> None:
    async with links(live, entity, "own", ONE) as (_, sender, receiver):
        await asyncio.to_thread(change, live, entity, *rules)
        for link, lives in ((sender, sender_lives), (receiver, receiver_lives)):
            if not lives:
                error = await is_ended(link)
                assert isinstance(error, Unauthorized)
                assert "has changed or gone" in str(error)
        if sender_lives:
            await sender.send(OutgoingMessage("m"))
        if receiver_lives:
            await asyncio.to_thread(live.send, entity, "n")
            assert await receiver.receive(max_wait=SOON_S)


async def test_a_deleted_entity_takes_its_rules_along(live: LiveBroker, entity: str) -> None:
    async with links(live, entity, "own", ONE) as (connection, sender, _):
        await asyncio.to_thread(live.ask, lambda number: DeleteEntity(number, entity))
        await asyncio.to_thread(live.run, pass_time(live, WITHIN_MS))
        await is_ended(sender)
        await asyncio.to_thread(live.ask, lambda number: CreateEntity(number, QUEUE, entity, EntitySettings()))
        with pytest.raises(Unauthorized):
            await connection.sender(entity)


async def test_the_rules_of_one_entity_are_none_of_anothers_business(live: LiveBroker, entity: str) -> None:
    other = f"{entity}/below"
    live.ask(lambda number: CreateEntity(number, QUEUE, other, ruled(BOTH)))
    async with links(live, other, "own", ONE) as (_, sender, receiver):
        await asyncio.to_thread(change, live, entity)
        await sender.send(OutgoingMessage("m"))
        assert await receiver.receive(max_wait=SOON_S)
    live.delete(other)


async def test_the_rules_of_the_namespace_are_followed_too(live: LiveBroker, entity: str) -> None:
    before = live.server.rights.book.of(NAMESPACE_SCOPE)

    async def put(*rules: AccessRule) -> None:
        live.server.set_rules([*before, *rules], "a test")
        await asyncio.sleep(0)  # a turn
        await pass_time(live, WITHIN_MS)

    await asyncio.to_thread(live.run, put(AccessRule("shop", SEND | LISTEN, ONE, TWO)))
    async with links(live, entity, "shop", TWO) as (_, sender, receiver):
        await asyncio.to_thread(live.run, put(AccessRule("shop", LISTEN, ONE, TWO)))
        assert isinstance(await is_ended(sender), Unauthorized)
        assert receiver.error is None
        await asyncio.to_thread(live.run, put())
        assert isinstance(await is_ended(receiver), Unauthorized)


def test_a_password_of_an_entity_opens_that_entity_and_ends_with_its_rule(live: LiveBroker, entity: str) -> None:
    """python-qpid-proton speaks SASL PLAIN; no SDK does."""
    from proton.utils import BlockingConnection, LinkDetached

    url = f"amqp://localhost:{live.server.port}"
    other = live.queue()
    connection = BlockingConnection(
        url, user="own", password=ONE, allowed_mechs="PLAIN", sasl_enabled=True, timeout=SOON_S
    )
    receiver = connection.create_receiver(entity)
    with pytest.raises(LinkDetached, match="unauthorized-access"):
        connection.create_receiver(other)
    change(live, entity)
    with pytest.raises(LinkDetached, match="unauthorized-access"):
        receiver.receive(timeout=SOON_S)
    connection.close()


def test_what_happens_to_rights_is_in_the_audit_log(live: LiveBroker, caplog: pytest.LogCaptureFixture) -> None:
    from tests.admin.client import Client, entry, token

    caplog.set_level(logging.INFO, "spillway.audit")
    rule = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>{}</AccessRights></Rights>"
        "<KeyName>shop</KeyName></AuthorizationRule></AuthorizationRules>"
    )
    http = Client(live.server.port)
    http.ask("PUT", "/audited", entry("QueueDescription", rule.format("Send")))
    http.ask("PUT", "/audited", entry("QueueDescription", rule.format("Listen")), headers={"If-Match": "*"})
    (shop,) = live.server.rights.book.of("audited")
    string = live.connection_string.replace(KEY_NAME, "shop").replace(DEVELOPMENT_KEY, shop.primary_key)
    with pytest.raises(Unauthorized):
        live.run(attach(string, "audited", is_sender=True))
    with pytest.raises(Unauthorized):
        live.run(attach(string.replace(shop.primary_key, ONE), "audited", is_sender=False))
    live.run(purge(string, "audited"))
    http.token = token(f"https://localhost:{http.port}", shop.primary_key, "shop")
    http.ask("DELETE", "/audited")
    http.token = token(f"https://localhost:{http.port}")
    http.ask("DELETE", "/audited")
    http.close()
    said = [record.getMessage() for record in caplog.records]
    place = "client=127.0.0.1 path=audited"
    bad = "InvalidSignature: the token has an invalid signature. Check SharedAccessKeyName and SharedAccessKey."
    assert said == [
        f'done namespace=wire what=PUT rule={KEY_NAME} {place} text="rule shop added with Send"',
        f'done namespace=wire what=PUT rule={KEY_NAME} {place} text="rule shop has Listen now"',
        f'refused namespace=wire what=attach rule=shop {place} text="{lacking("Send")}"',
        f'refused namespace=wire what=put-token rule=shop {place} text="{bad}"',
        f"done namespace=wire what=com.microsoft:batch-delete-messages rule=shop {place}",
        f'refused namespace=wire what=http rule=shop {place} text="{lacking("Manage")}"',
        f"done namespace=wire what=DELETE rule={KEY_NAME} {place}",
    ]
    assert not any(key in caplog.text for key in (*shop.secrets(), ONE))


async def attach(connection_string: str, path: str, is_sender: bool) -> None:
    async with await connect(connection_string) as connection:
        await (connection.sender(path) if is_sender else connection.receiver(path))


async def purge(connection_string: str, path: str) -> None:
    async with await connect(connection_string) as connection:
        await connection.management(path).batch_delete(10)


def lacking(right: str) -> str:
    return (
        f"Unauthorized access. '{right}' claim(s) are required to perform this operation on 'audited', and no valid "
        "token that carries them was put."
    )
