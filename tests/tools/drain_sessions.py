"""Accepts the next message session again and again over many links, and empties each; for `make load`.

Runs in a process of its own, with the same build as the broker: a client in the measuring process would be what is
measured. Prints one JSON object.
"""

import argparse
import asyncio
import json
import time

from spillway.client import Connection, OperationTimeout, Receiver, connect

QUEUE_WAIT_S = 2.0  # without a session for so long, there is none left
MESSAGE_WAIT_S = 30.0


class Drained:
    def __init__(self) -> None:
        self.sessions = 0
        self.messages = 0
        self.seen: set[str] = set()
        self.last = 0.0


async def empty(receiver: Receiver, per_session: int, drained: Drained) -> None:
    """All of one session, in order."""
    session_id = receiver.session_id
    assert session_id is not None and session_id not in drained.seen, f"{session_id} was given out twice"
    drained.seen.add(session_id)
    count = 0
    last_number = 0
    while count < per_session:
        messages = await receiver.receive(per_session - count, MESSAGE_WAIT_S)
        assert messages, f"{session_id}: {count} of {per_session} messages came"
        for message in messages:
            assert message.session_id == session_id
            number = message.sequence_number
            assert number is not None and number > last_number, f"{session_id} is out of order"
            last_number = number
        await asyncio.gather(*[receiver.complete(message) for message in messages])
        count += len(messages)
    drained.messages += count
    drained.sessions += 1
    drained.last = time.monotonic()


async def work(connection: Connection, queue: str, per_session: int, drained: Drained) -> None:
    while True:
        try:
            receiver = await connection.session_receiver(queue, credit=per_session, max_wait=QUEUE_WAIT_S)
        except OperationTimeout:
            return
        await empty(receiver, per_session, drained)
        await receiver.close()


async def drain(connection_string: str, queue: str, per_session: int, links: int, connections: int) -> Drained:
    drained = Drained()
    opened = [await connect(connection_string) for _ in range(connections)]
    await asyncio.gather(*[work(opened[number % connections], queue, per_session, drained) for number in range(links)])
    await asyncio.gather(*[connection.close() for connection in opened])
    return drained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("connection_string")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--per-session", type=int, required=True)
    parser.add_argument("--links", type=int, default=500)
    parser.add_argument("--connections", type=int, default=10)
    chosen = parser.parse_args()
    begun = time.monotonic()
    drained = asyncio.run(
        drain(chosen.connection_string, chosen.queue, chosen.per_session, chosen.links, chosen.connections)
    )
    elapsed_s = drained.last - begun
    print(
        json.dumps(
            {
                "sessions": drained.sessions,
                "messages": drained.messages,
                "elapsed_s": round(elapsed_s, 3),
                "sessions_per_s": round(drained.sessions / elapsed_s),
                "messages_per_s": round(drained.messages / elapsed_s),
            }
        )
    )


if __name__ == "__main__":
    main()
