"""What the brokers hold and have counted, when all is over: written down like everything else, for the verdict."""

import asyncio
import gzip
import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from spillway.client import connect
from spillway.lab.histories import LEDGER, LEFT, History
from spillway.lab.processes import LabBroker
from spillway.model.ledger import FORMAT

PEEK: Final = 500


def count_stored(brokers: list[LabBroker]) -> int:
    """Messages of all of them, locked ones and dead letters too. Asking is no operation that the ledger counts."""
    return sum(int(broker.ask("GET", "status")["messages"]) for broker in brokers)


def note_ledgers(brokers: list[LabBroker], history: History) -> None:
    """Before anybody looks into the queues: that would be counted too."""
    for broker in brokers:
        operations: Counter[str] = Counter()
        for row in broker.ask("GET", "ledger")["rows"]:
            operations[row["kind"]] += row["operations"]
        history.write(LEDGER, namespace=broker.name, operations=dict(operations))


def save_ledger(broker: LabBroker, directory: Path) -> None:
    """Write all rows into files like those of sealed days: this namespace counts no more."""
    days: dict[str, list[str]] = defaultdict(list)
    for row in broker.ask("GET", "ledger", query={"by": "minute"})["rows"]:
        day = datetime.fromtimestamp(row["epoch_s"], UTC).strftime("%Y-%m-%d")
        days[day].append(json.dumps({"format": FORMAT, "namespace": broker.name, **row}) + "\n")
    for day, lines in days.items():
        path = directory / f"day={day}" / f"{broker.name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(lines).encode()))


def note_left(queues: list[tuple[LabBroker, str]], history: History) -> None:
    asyncio.run(_note_left(queues, history))


async def _note_left(queues: list[tuple[LabBroker, str]], history: History) -> None:
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
