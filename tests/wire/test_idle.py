"""Temporary entities with the SDKs, on a broker that stops and starts again with its store on disk."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.store.sqlite import SqliteJournal
from tests.wire.live import LiveBroker
from tests.wire.sdk import known

FIVE_MINUTES = timedelta(minutes=5)


class Lives:
    """A broker that can be started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker = self._start()

    def _start(self) -> LiveBroker:
        return LiveBroker(self.directory, SqliteJournal(self.directory / "journal.db"))

    def restart(self) -> None:
        self.broker.close()
        self.broker = self._start()

    def administration(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            self.broker.connection_string, connection_verify=str(self.broker.certificates.ca), retry_total=0
        )

    def names(self) -> list[str]:
        with self.administration() as client:
            return [queue.name for queue in client.list_queues()]


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path)
    yield made
    made.broker.close()


def test_an_idle_queue_goes_and_one_that_is_received_from_stays_over_a_restart(lives: Lives) -> None:
    with lives.administration() as client:
        for name in ("idle", "used"):
            client.create_queue(name, auto_delete_on_idle=FIVE_MINUTES)
        client.create_queue("kept")
        assert client.get_queue("used").auto_delete_on_idle == FIVE_MINUTES
    lives.restart()
    messaging = ServiceBusClient.from_connection_string(lives.broker.connection_string, retry_total=0)
    with messaging, messaging.get_queue_receiver("used") as receiver:
        lives.broker.advance(FIVE_MINUTES.total_seconds() + 1)
        assert lives.names() == ["kept", "used"]
        with pytest.raises(ServiceBusAuthenticationError), messaging.get_queue_sender("idle"):
            pass
        lives.broker.send("used", "in time")
        assert [str(message) for message in receiver.receive_messages(1, 10)] == ["in time"]
    lives.broker.advance(FIVE_MINUTES.total_seconds() + 1)
    assert lives.names() == ["kept"]


def test_when_an_entity_was_last_used_and_the_namespace_made_is_known_after_a_restart(lives: Lives) -> None:
    with lives.administration() as client:
        client.create_queue("q")
        assert known(client.get_queue_runtime_properties("q").accessed_at_utc).year == 1
        born = known(client.get_namespace_properties().created_at_utc)
        assert abs(born - datetime.now(UTC)) < FIVE_MINUTES
    lives.broker.advance(600)
    lives.broker.send("q", "used")
    with lives.administration() as client:
        used = known(client.get_queue_runtime_properties("q").accessed_at_utc)
    assert used - born >= timedelta(seconds=600)
    lives.restart()
    with lives.administration() as client:
        assert client.get_queue_runtime_properties("q").accessed_at_utc == used
        assert client.get_namespace_properties().created_at_utc == born
