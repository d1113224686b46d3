"""`bench/session_links.py`: what a short message session costs, without Spark around it.

The receiving code of a Spark task in this process, a broker in another. The same messages are received and deleted from
a queue and from sessions: time, CPU of this process and CPU of the broker, for each message and each session. CPU tells
more than time on a machine that does other things too.

    bench/session_links.py                                         2,000 sessions of 2 messages
    bench/session_links.py --at-a-time 32,128,256 --reps 3
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from azure.servicebus.management import ServiceBusAdministrationClient  # noqa: E402

from bench.spark import cpu_s  # noqa: E402
from spillway.client import OutgoingMessage, connect  # noqa: E402
from spillway.spark.platform.access import Access  # noqa: E402
from spillway.spark.platform.connection_pool import ConnectionPool  # noqa: E402
from spillway.spark.platform.operations import Operations  # noqa: E402
from spillway.spark.source import session_reception  # noqa: E402
from spillway.spark.source.options import ReadOptions  # noqa: E402
from tests.tools.broker_process import PACKAGE_PARENT, BrokerProcess  # noqa: E402

MODE = "receiveanddelete"
RECEIVE = 2_000
WAIT_S = 0.2
BODY = b"x" * 1024


async def fill(broker: BrokerProcess, queue: str, sessions: int, count: int) -> None:
    async with await connect(broker.connection_string) as connection:
        sender = await connection.sender(queue)
        posted = []
        for at in range(count):
            await sender.ready()
            name = f"s{at % sessions:06d}" if sessions else None
            posted.append(sender.post(OutgoingMessage(BODY, message_id=f"m{at}", session_id=name)))
        await asyncio.gather(*posted)


async def receive_queue(pool: ConnectionPool, access: Access, queue: str) -> list[tuple[str | None, int]]:
    receiver = await (await pool.connection(access)).receiver(queue, mode=MODE)
    count = 0
    while messages := await receiver.receive(RECEIVE, WAIT_S):
        count += len(messages)
    await receiver.close()
    return [(None, at) for at in range(count)]


async def receive_sessions(pool: ConnectionPool, access: Access, queue: str, sessions: int) -> list[Any]:
    options = ReadOptions(access=access, entities=(queue,), mode=MODE, max_wait_s=WAIT_S)
    names = [f"s{at:06d}" for at in range(sessions)]
    wanted = session_reception.SessionsWanted(queue, names, 0, sessions, is_of_stream=True)
    reception = session_reception.SessionReception(pool, options, wanted, None, Operations())
    found = []
    while messages := await reception.next():
        found += messages
    await reception.end()
    return found


def measured(pool: ConnectionPool, broker: BrokerProcess, work: Coroutine[Any, Any, list[Any]]) -> tuple[Any, Any]:
    """What it found; seconds, CPU here, CPU of the broker."""
    before_s, here_s, there_s = time.monotonic(), time.process_time(), cpu_s(broker.pid)
    found = pool.run(work)
    return found, (time.monotonic() - before_s, time.process_time() - here_s, cpu_s(broker.pid) - there_s)


def in_order(messages: list[Any]) -> bool:
    last: dict[str | None, int] = {}
    for message in messages:
        number = message.sequence_number or 0
        if number <= last.get(message.session_id, 0):
            return False
        last[message.session_id] = number
    return True


def run(broker: BrokerProcess, number: int, sessions: int, each: int, at_a_time: int) -> dict[str, Any]:
    session_reception.SESSIONS_AT_A_TIME = at_a_time  # type: ignore[misc]
    count, pool = sessions * each, ConnectionPool()
    access = Access(connection_string=broker.connection_string)
    plain, divided = f"plain{number}", f"divided{number}"
    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=broker.ca_file
    ) as client:
        client.create_queue(plain)
        client.create_queue(divided, requires_session=True)
    asyncio.run(fill(broker, plain, 0, count))
    asyncio.run(fill(broker, divided, sessions, count))
    found, of_queue = measured(pool, broker, receive_queue(pool, access, plain))
    assert len(found) == count, f"{len(found)} of {count} messages"
    found, of_sessions = measured(pool, broker, receive_sessions(pool, access, divided, sessions))
    assert len(found) == count and in_order(found), f"{len(found)} of {count} messages, each session in order"
    pool.close()
    names = ("microseconds", "client_cpu_us", "broker_cpu_us")
    return {
        "sessions": sessions,
        "messages_of_each": each,
        "at_a_time": at_a_time,
        "a_message_of_a_queue": {name: round(value / count * 1e6) for name, value in zip(names, of_queue, strict=True)},
        "a_session": {name: round(value / sessions * 1e6) for name, value in zip(names, of_sessions, strict=True)},
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=2_000)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--at-a-time", default=str(session_reception.SESSIONS_AT_A_TIME))
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--remark", default="", help="what else the machine did, or which code this is")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "bench-session-links.json")
    chosen = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="spillway-bench-") as directory,
        BrokerProcess(Path(directory) / "broker") as broker,
    ):
        for at_a_time in [int(word) for word in chosen.at_a_time.split(",")] * chosen.reps:
            runs.append(run(broker, len(runs), chosen.sessions, chosen.each, at_a_time))
            print(f"bench: {runs[-1]}", flush=True)
    medians = [
        {
            "at_a_time": at_a_time,
            **{
                name: statistics.median(one["a_session"][name] for one in runs if one["at_a_time"] == at_a_time)
                for name in runs[0]["a_session"]
            },
        }
        for at_a_time in map(int, chosen.at_a_time.split(","))
    ]
    about = {"package": PACKAGE_PARENT.name, "remark": chosen.remark}
    chosen.out.write_text(json.dumps({"about": about, "a_session": medians, "runs": runs}, indent=1) + "\n")
    for line in medians:
        print(f"bench: a session, {json.dumps(line)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
