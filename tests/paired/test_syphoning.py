"""How the syphon of a pairing reaches the namespaces: as its factories do, or pairing is refused."""

import ssl
import time
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusMessage, TransportType

from spillway.client import OutgoingMessage, parse_connection_string
from spillway.client.credentials import sign_sas
from spillway.paired import MessagingFactory, PairingError, SendAvailabilityPairedNamespaceOptions
from spillway.paired.syphoning import NOT_HONOURED, opener_of
from tests.paired.namespaces import NO_KEEP_ALIVE, Namespaces, close_all
from tests.paired.test_syphon import divert
from tests.tools.broker_process import BrokerProcess


async def goes_through(factory: MessagingFactory, path: str) -> None:
    """A message, over the connection that the syphon would have."""
    async with await opener_of(factory, "messaging_factory")() as connection:
        await (await connection.sender(path)).send(OutgoingMessage("x"))
    await factory.close()


def key_of(broker: BrokerProcess) -> tuple[str, str]:
    parts = parse_connection_string(broker.connection_string)
    assert parts.key_name is not None and parts.key is not None
    return parts.key_name, parts.key


class Token:
    """A token credential whose tokens are signatures, since the broker knows no others."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, name: str, key: str) -> None:
        self.name = name
        self.key = key

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        expires_s = int(time.time()) + 600
        token = sign_sas(scopes[0], self.name, self.key, expires_s)
        return type("AccessToken", (), {"token": token, "expires_on": expires_s})()


@pytest.mark.parametrize("kind", ["named key", "signature", "token"])
@pytest.mark.parametrize(
    "options", [{}, {"transport_type": TransportType.AmqpOverWebsocket}], ids=["amqp", "websocket"]
)
async def test_a_host_with_each_kind_of_credential_over_tls(
    namespaces: Namespaces, kind: str, options: dict[str, Any]
) -> None:
    broker, path = namespaces.primary, namespaces.queue()
    name, key = key_of(broker)
    host = f"localhost:{broker.port}"
    credential: Any = {
        "named key": AzureNamedKeyCredential(name, key),
        "signature": AzureSasCredential(sign_sas(f"sb://{host}/", name, key, int(time.time()) + 600)),
        "token": Token(name, key),
    }[kind]
    await goes_through(MessagingFactory(host, credential, ca_file=broker.ca_file, **options), path)
    assert await namespaces.bodies(broker, path) == ["x"]


async def test_a_string_for_development_is_clear_text_whatever_the_ca_file_says(namespaces: Namespaces) -> None:
    broker, path = namespaces.primary, namespaces.queue()
    assert "UseDevelopmentEmulator=true" in broker.connection_string
    factory = MessagingFactory.from_connection_string(broker.connection_string, ca_file=__file__)
    await goes_through(factory, path)
    text = broker.connection_string.replace("UseDevelopmentEmulator=true", "UseDevelopmentEmulator=false")
    await goes_through(MessagingFactory.from_connection_string(text, connection_verify=broker.ca_file), path)
    websocket = TransportType.AmqpOverWebsocket
    await goes_through(
        MessagingFactory.from_connection_string(text, ca_file=broker.ca_file, transport_type=websocket), path
    )
    assert await namespaces.bodies(broker, path) == ["x"] * 3


UNHONOURED: dict[str, Any] = {
    "http_proxy": {"proxy_hostname": "proxy.example", "proxy_port": 8080},
    "ssl_context": ssl.create_default_context(),
    "custom_endpoint_address": "sb://gateway.example:443",
}


@pytest.mark.parametrize("option", NOT_HONOURED)
@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_an_option_that_the_syphon_cannot_honour_is_refused_by_name_and_only_with_the_syphon(
    namespaces: Namespaces, option: str, side: str
) -> None:
    given = {option: UNHONOURED[option]}
    primary = namespaces.primary_factory(namespace_name=namespaces.unique_name(), **given if side == "primary" else {})
    secondary = namespaces.secondary_factory(**given if side == "secondary" else {})
    manager = namespaces.manager()
    with pytest.raises(PairingError, match=f"enable_syphon: .*{option}") as refused:
        await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, enable_syphon=True))
    assert "spillway syphon" in str(refused.value)
    if side == "primary":  # whatever the SDK makes of it
        await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 1))
        assert primary.pairing is not None
    await close_all(primary, secondary, manager)


async def test_what_cannot_be_used_is_a_pairing_error_without_the_secret() -> None:
    factory = MessagingFactory("contoso.example", Token("k", "topsecret"), connection_verify=7)
    with pytest.raises(PairingError, match="connection_verify"):
        opener_of(factory, "messaging_factory")
    await factory.close()
    text = "Endpoint=sb://contoso.example;SharedAccessKeyName=k;SharedAccessKey=topsecret;OperationTimeout=1"
    other = MessagingFactory.from_connection_string(text)
    with pytest.raises(PairingError, match="enable_syphon: messaging_factory cannot be used") as refused:
        opener_of(other, "messaging_factory")
    assert "topsecret" not in str(refused.value)
    await other.close()


async def test_a_paired_program_with_named_keys_syphons(namespaces: Namespaces) -> None:
    """The SDK leaves out the port of a host with TLS; in clear text it does not."""
    path, name = namespaces.queue(), namespaces.unique_name()
    factories = [
        MessagingFactory(
            f"localhost:{broker.port}",
            AzureNamedKeyCredential(*key_of(broker)),
            namespace_name=name,
            operation_timeout=10.0,
            use_tls=False,
            **NO_KEEP_ALIVE,
        )
        for broker in (namespaces.primary, namespaces.secondary)
    ]
    primary, secondary = factories
    manager = namespaces.manager()
    async with namespaces.paired(1, namespace_name=name) as pair:
        await divert(namespaces, pair, path, ServiceBusMessage("around"))
        await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, enable_syphon=True))
        await namespaces.until_bodies(namespaces.primary, path, ["around"])
        await close_all(primary, secondary, manager)
