"""What is done to the two brokers of a random play: one method for each ailment, one for its end."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from spillway.client import RECEIVE_AND_DELETE, ClientError, Connection, connect
from spillway.client.faults import Fault, RemoteFaults
from spillway.client.message import OutgoingMessage, ReceivedMessage
from spillway.lab.field import plan as plans
from spillway.lab.field.content import digest
from spillway.lab.field.lines import STORED
from spillway.lab.field.plan import PRIMARY, SECONDARY, Ailment, PlannedEntity, PlayPlan
from spillway.lab.guard import Guard
from spillway.lab.histories import LEFT, History
from spillway.lab.processes import LabBroker
from spillway.model.backlogs import backlog_path

PAIRING_NAME: Final = "field"
FILLERS: Final = (200_000, 20_000, 2_000, 200, 1)  # bytes, until none of them fits
FILLER: Final = "filler"
PEEK: Final = 250
DRAIN_S: Final = 0.5
LIVES: Final = {"DefaultMessageTimeToLive": "P10D"}
LOCK_S: Final = 61  # a lock in the backlog has ended by then


class Stage:
    """Two brokers, and what befalls them."""

    def __init__(self, plan: PlayPlan, directory: Path, guard: Guard, history: History) -> None:
        self.plan = plan
        self.directory = directory
        self.history = history
        self.entities = {entity.name: entity for entity in plan.entities}
        config = directory / "config.json"
        config.write_text(json.dumps(primary_config(plan)))
        self.brokers = {
            PRIMARY: LabBroker(PRIMARY, directory, ["--config", str(config)], guard),
            SECONDARY: LabBroker(SECONDARY, directory, [], guard),
        }
        self._injected: dict[str, list[int]] = {PRIMARY: [], SECONDARY: []}

    @property
    def primary(self) -> LabBroker:
        return self.brokers[PRIMARY]

    @property
    def secondary(self) -> LabBroker:
        return self.brokers[SECONDARY]

    @property
    def backlog_paths(self) -> list[str]:
        return [backlog_path(PAIRING_NAME, index) for index in range(self.plan.backlog_queues)]

    # -- ailments -------------------------------------------------------------------------------------------------

    def apply(self, ailment: Ailment) -> None:
        broker = self.brokers[ailment.side]
        begin: dict[str, Callable[[], None]] = {
            plans.KILL: broker.kill,
            plans.FREEZE: broker.freeze,
            plans.DISABLE: lambda: self._set_status(ailment.paths[0], "SendDisabled"),
            plans.FILL: lambda: asyncio.run(self._fill(ailment.paths[0])),
            plans.DELETE: lambda: self._delete(ailment.paths[0]),
        }
        if ailment.what in begin:
            begin[ailment.what]()
        else:
            self._inject(ailment)

    def mend(self, ailment: Ailment) -> None:
        broker = self.brokers[ailment.side]
        end: dict[str, Callable[[], None]] = {
            plans.KILL: broker.start,
            plans.FREEZE: broker.thaw,
            plans.DISABLE: lambda: self._set_status(ailment.paths[0], "Active"),
            plans.FILL: lambda: asyncio.run(self._drain(ailment.paths[0])),
            plans.DELETE: lambda: self._make_anew(ailment.paths[0]),
        }
        if ailment.what in end:
            end[ailment.what]()
        else:
            faults = RemoteFaults(broker.connection_string)
            for number in self._injected[ailment.side]:
                faults.remove(number)
            self._injected[ailment.side] = []

    def _inject(self, ailment: Ailment) -> None:
        faults = RemoteFaults(self.brokers[ailment.side].connection_string)
        for path in ailment.paths:
            at = path
            if ailment.side == SECONDARY and path != plans.EVERYTHING:
                at = self.backlog_paths[int(path)]
            self._injected[ailment.side].append(faults.add(_fault(ailment, at)).number)

    def _set_status(self, path: str, status: str) -> None:
        with administration(self.primary) as client:
            is_topic = self.entities[path].is_topic
            found = client.get_topic(path) if is_topic else client.get_queue(path)
            found.status = status
            (client.update_topic if is_topic else client.update_queue)(found)

    # -- a queue that is really full ------------------------------------------------------------------------------

    async def _fill(self, path: str) -> None:
        async with await connect(self.primary.connection_string) as connection:
            sender = await connection.sender(path)
            number = 0
            for size in FILLERS:
                while True:
                    number += 1
                    filler = OutgoingMessage(b"x" * size, message_id=f"{FILLER}-{path}-{size}-{number}")
                    try:
                        await sender.send(filler)
                    except ClientError:  # full, for messages of this size
                        break

    async def _drain(self, path: str) -> None:
        async with await connect(self.primary.connection_string) as connection:
            receiver = await connection.receiver(path, mode=RECEIVE_AND_DELETE)
            while messages := await receiver.receive(PEEK, max_wait=DRAIN_S):
                for message in messages:
                    self._note_stored(path, message)

    # -- an entity that is deleted and made anew ------------------------------------------------------------------

    def _delete(self, path: str) -> None:
        """Delete an entity as an operator would: no more sends, then what is in it is taken care of, then it goes."""
        self._set_status(path, "SendDisabled")
        asyncio.run(self._note_all([self.entities[path]]))
        with administration(self.primary) as client:
            (client.delete_topic if self.entities[path].is_topic else client.delete_queue)(path)

    def _make_anew(self, path: str) -> None:
        entity = self.entities[path]
        with administration(self.primary) as client:
            if entity.is_topic:
                client.create_topic(path)
                client.create_subscription(path, "all")
            else:
                client.create_queue(path, requires_duplicate_detection=entity.dedup, requires_session=entity.sessions)

    # -- what is where --------------------------------------------------------------------------------------------

    def count_backlog(self) -> int:
        counts = self.secondary.ask("GET", "counts")["entities"]
        return sum(int(row.get("active", 0)) for row in counts)

    def end_locks(self) -> None:
        """What somebody locked in the backlog before a connection broke is there again: time is stepped, not slept."""
        self.secondary.ask("POST", "clock", {"advance_s": LOCK_S})

    def note_where_all_is(self) -> None:
        asyncio.run(self._note_all(list(self.plan.entities)))
        asyncio.run(self._note_left())

    async def _note_all(self, entities: list[PlannedEntity]) -> None:
        async with await connect(self.primary.connection_string) as connection:
            for entity in entities:
                for message in await peek_all(connection, entity.place):
                    self._note_stored(entity.name, message)
                for message in await peek_all(connection, f"{entity.place}/$DeadLetterQueue"):
                    self.history.write(LEFT, id=str(message.message_id), q=f"{entity.place}/$DeadLetterQueue")

    async def _note_left(self) -> None:
        async with await connect(self.secondary.connection_string) as connection:
            for path in self.backlog_paths:
                for place in (path, f"{path}/$DeadLetterQueue"):
                    for message in await peek_all(connection, place):
                        self.history.write(LEFT, id=str(message.message_id), q=place)

    def _note_stored(self, path: str, message: ReceivedMessage) -> None:
        identity = str(message.message_id)
        if not identity.startswith(FILLER):
            number = message.sequence_number or 0
            self.history.write(STORED, id=identity, h=digest(message), seq=number, path=path)


def _fault(ailment: Ailment, path: str) -> Fault:
    if ailment.what == plans.CUT:
        return Fault("restart", path, delay_ms=1, duration_ms=1)
    if ailment.what == plans.UNREACHABLE:
        return Fault("drop", path, ["send", "attach", "management"])
    if ailment.what == plans.BUSY:
        return Fault("server-busy", path, ["send"])
    if ailment.what == plans.SILENT:
        return Fault("timeout", path, ["send"])
    if ailment.what == plans.SLOW:
        return Fault("slow", path, ["send"], delay_ms=ailment.delay_ms)
    assert ailment.what == plans.REFUSE, f"nobody knows the ailment {ailment.what}"
    return Fault("refuse", path, ["send"], condition=ailment.condition)


async def peek_all(connection: Connection, place: str) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    after = 0
    while messages := await connection.management(place).peek(after, PEEK):
        found += messages
        after = (messages[-1].sequence_number or 0) + 1
    return found


def administration(broker: LabBroker) -> Any:
    from azure.servicebus.management import ServiceBusAdministrationClient

    return ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=broker.ca_file
    )


def primary_config(plan: PlayPlan) -> dict[str, Any]:
    """The primary's entities as a Config.json."""
    queues = [
        {
            "Name": entity.name,
            "Properties": {
                **LIVES,
                "DuplicateDetectionHistoryTimeWindow": "PT3H",
                "RequiresDuplicateDetection": entity.dedup,
                "RequiresSession": entity.sessions,
                "MaxSizeInMegabytes": entity.size_mb,
            },
        }
        for entity in plan.entities
        if not entity.is_topic
    ]
    topics = [
        {"Name": entity.name, "Properties": LIVES, "Subscriptions": [{"Name": "all", "Properties": LIVES}]}
        for entity in plan.entities
        if entity.is_topic
    ]
    return {"UserConfig": {"Namespaces": [{"Name": PRIMARY, "Queues": queues, "Topics": topics}]}}
