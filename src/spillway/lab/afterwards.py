"""What the brokers hold and have counted, when all is over: written down like everything else, for the verdict."""

import asyncio
import json
from collections import Counter
from typing import Final

from spillway.client import connect
from spillway.lab.histories import LEDGER, LEFT, History
from spillway.lab.processes import Broker

PEEK: Final = 500


def count_stored(brokers: list[Broker]) -> int:
    """Messages of all of them, locked ones and dead letters too. Asking is no operation that the ledger counts."""
    return sum(int(broker.ask("GET", "status")["messages"]) for broker in brokers)


def note_ledgers(brokers: list[Broker], history: History) -> None:
    """Before anybody looks into the queues: that would be counted too."""
    for broker in brokers:
        operations: Counter[str] = Counter()
        for row in broker.ask("GET", "ledger")["rows"]:
            operations[row["kind"]] += row["operations"]
        history.write(LEDGER, namespace=broker.name, operations=dict(operations))


def note_left(queues: list[tuple[Broker, str]], history: History) -> None:
    asyncio.run(_note_left(queues, history))


async def _note_left(queues: list[tuple[Broker, str]], history: History) -> None:
    for broker, path in queues:
        async with await connect(broker.connection_string) as connection:
            for place in (path, f"{path}/$DeadLetterQueue"):
                after = 0
                while messages := await connection.management(place).peek(after, PEEK):
                    for message in messages:
                        history.write(LEFT, id=_identity(message.body), q=f"{broker.name}/{place}")
                    after = (messages[-1].sequence_number or 0) + 1


def _identity(body: object) -> str:
    try:
        return str(json.loads(body)["id"])  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError):
        return f"a stranger: {str(body)[:50]}"
