"""`/$spillway/config`: a namespace as a `Config.json` of Microsoft's emulator, and what such a file cannot say."""

from functools import partial
from typing import Final

from spillway.admin import http_refusals
from spillway.admin.namespace import AdministeredNamespace
from spillway.admin.resource import ControlCall
from spillway.broker.commands import ListEntities, Request
from spillway.broker.effects import Answer, Descriptions, Failed
from spillway.emulator_config.entities import EntityConfig, NamespaceConfig
from spillway.emulator_config.writer import write_config
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC

ALL: Final = 10_000_000


class ConfigResource:
    """The resource by which `spillway export` gets the file that `spillway serve --config` reads."""

    methods = ("GET",)

    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace

    async def answer(self, call: ControlCall) -> object:
        """The file, and one line for everything that is not in it."""
        ask = self.namespace.pump.ask_together
        queues, topics = [
            listed(answer) for answer in await ask([partial(_list, QUEUE, ""), partial(_list, TOPIC, "")])
        ]
        subscriptions = await ask([partial(_list, SUBSCRIPTION, topic.path) for topic in topics])
        entities = [*queues, *topics, *(each for answer in subscriptions for each in listed(answer))]
        written = write_config(NamespaceConfig(self.namespace.name, entities))
        return {"config": written.content, "warnings": written.warnings}


def _list(kind: str, path: str, number: int) -> Request:
    return ListEntities(number, kind, path, 0, ALL)


def listed(answer: Answer) -> list[EntityConfig]:
    """The entities that the core describes."""
    if isinstance(answer, Failed):
        raise http_refusals.of_broker(answer.error)
    assert isinstance(answer, Descriptions), "descriptions were asked for"
    return [EntityConfig(each.kind, each.path, each.settings) for each in answer.descriptions]
