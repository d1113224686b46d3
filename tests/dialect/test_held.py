"""Whatever a client makes the broker hold is charged to it, bounded, and given back when it goes.

Each row is something that a client can make us hold beyond the turn it came in. docs/limits.md has the same table;
tests/test_limits_page.py holds the two together.
"""

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from spillway.amqp.frames import encode_frame
from spillway.amqp.message import Properties, encode_amqp_value, encode_data, encode_message
from spillway.amqp.performatives import Attach, Begin, Detach, End, Modified, Source, Target, Transfer
from spillway.amqp.session import HANDLE_BYTES
from spillway.amqp.types import LONGS, Array, Int
from spillway.broker.commands import Peek, Request, Send
from spillway.broker.effects import Deliver, Done, Messages
from spillway.dialect.nodes import BROWSING_MAX
from spillway.dialect.peer import Peer
from spillway.model import limits
from spillway.model.message import Message, StoredMessage
from tests.dialect.holding import FRAME_BYTES, HoldingClient, House
from tests.dialect.visit import NOW_MS, sas_token

BYTES_MAX = 4 * limits.MIB
STEPS_MAX = 12_000
# One step's worth beyond it, until the end of the turn.
OVERSHOOT_BYTES = 2 * limits.MIB

Step = Callable[[HoldingClient, int], None]


def stored(size: int) -> StoredMessage:
    """One that shares no bytes with another, as two that were read from the store."""
    message = Message(bytes(size))
    message.message_id = "m"
    return StoredMessage(message, 1, NOW_MS)


ONE = stored(1)


# -- what is held: a step of each holds a little more -----------------------------------------------------------------


def unfinished_deliveries(client: HoldingClient, step: int) -> None:
    if step == 0:
        client.begin()
    client.attach_sender(step)
    client.say(Transfer(step, step, b"t", 0, more=True), bytes(60_000))
    for _ in range(2):
        client.say(Transfer(step, more=True), bytes(60_000))


def unfinished_deliveries_with_a_state(client: HoldingClient, step: int) -> None:
    if step == 0:
        client.begin()
    client.attach_sender(step)
    state = Modified(True, False, {f"k{n}": n for n in range(2_000)})
    client.say(Transfer(step, step, b"t", 0, more=True, state=state))


def sessions(client: HoldingClient, step: int) -> None:
    client.say(Begin(None, 0, 5_000, 5_000), channel=step)


def links(client: HoldingClient, step: int) -> None:
    if step == 0:
        client.begin()
    client.attach_sender(step, "\U0001f600" * 1_000 + str(step))


def attaches_without_an_answer(client: HoldingClient, step: int) -> None:
    """A receiver may wait for hours for the next message session."""
    client.answers = False
    if step == 0:
        client.begin()
    heavy: dict[object, object] = {f"property {number}": [str(number)] for number in range(1_000)}
    client.say(Attach(f"r{step}", step, True, 0, 0, Source("q"), Target("here"), properties=heavy))


def deliveries_not_settled(client: HoldingClient, step: int) -> None:
    if step == 0:
        client.begin(incoming_window=1 << 30)
        client.attach_receiver(0)
        client.flow(0, 1 << 30, window=1 << 30)
    client.peer.dispatch(Deliver(client.links[0], "q", ONE, step.to_bytes(16, "big"), NOW_MS), NOW_MS)
    client.hear()


def deliveries_before_a_shut_window(client: HoldingClient, step: int) -> None:
    if step == 0:
        client.begin(incoming_window=1)
    client.attach_receiver(step)
    client.flow(step, 1, window=1)
    client.peer.dispatch(Deliver(client.links[step], "q", stored(100_000), step.to_bytes(16, "big"), NOW_MS), NOW_MS)
    client.hear()


def deleted_and_not_taken(client: HoldingClient, step: int) -> None:
    if step == 0:
        client.begin()
        client.attach_receiver(0, deletes=True)
    client.peer.dispatch(Deliver(client.links[0], "q", stored(10_000), b"", 0), NOW_MS)
    client.hear()


def _node(client: HoldingClient, address: str, credit: int) -> None:
    client.begin()
    client.attach_sender(0, address=address)
    client.attach_receiver(1, address=address)
    client.flow(1, credit)


def _send(client: HoldingClient, step: int, payload: bytes, handle: int = 0) -> None:
    at = 0
    while at < len(payload):
        piece = payload[at : at + 60_000]
        at += len(piece)
        is_first = at == len(piece)
        transfer = Transfer(handle, step if is_first else None, b"t" if is_first else None, 0, more=at < len(payload))
        transfer.settled = True
        client.say(transfer, piece)


def _request(operation: str, body: object, message_id: object, name: str = "q") -> bytes:
    return encode_message(
        properties=Properties(message_id=message_id, reply_to="here"),
        application_properties={"operation": operation, "name": name},
        body=encode_amqp_value(body),
    )


def requests_with_large_ids(client: HoldingClient, step: int) -> None:
    if step == 0:
        _node(client, "q/$management", 1_000)
    _send(client, step, _request("com.microsoft:get-session-state", {"session-id": "s"}, f"{step}" + "x" * 150_000))


def requests_with_long_lists(client: HoldingClient, step: int) -> None:
    if step == 0:
        _node(client, "q/$management", 1_000)
    numbers = Array(LONGS, list(range(step * 5_000 + 1_000, step * 5_000 + 6_000)))
    _send(client, step, _request("com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers}, str(step)))


def answers_not_taken(client: HoldingClient, step: int) -> None:
    """Each over a pair of links of its own: one link alone is ended at 4 MB."""
    if step == 0:
        client.begin()
    client.attach_sender(2 * step, address="q/$management")
    client.attach_receiver(2 * step + 1, address="q/$management")
    request = _request("com.microsoft:renew-session-lock", {"session-id": "s"}, "x" * 50_000)
    _send(client, step, request, 2 * step)
    for command in client.commands:
        assert isinstance(command, Request)
        client.peer.dispatch(Done(command.request_id), NOW_MS)
    client.commands.clear()
    client.hear()


def tokens(client: HoldingClient, step: int) -> None:
    if step == 0:
        _node(client, "$cbs", 100_000)
    audience = f"sb://localhost:5672/q/{step}" + "x" * 20_000
    put = encode_message(
        properties=Properties(message_id=str(step), reply_to="here"),
        application_properties={"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience},
        body=encode_amqp_value(sas_token("sb://localhost:5672/q")),
    )
    _send(client, step, put)


ROWS: dict[str, Step] = {
    "deliveries of several frames that do not end": unfinished_deliveries,
    "their delivery states": unfinished_deliveries_with_a_state,
    "AMQP sessions": sessions,
    "links, with their names": links,
    "attaches that wait for their answer": attaches_without_an_answer,
    "deliveries that are not settled": deliveries_not_settled,
    "deliveries before a closed session window": deliveries_before_a_shut_window,
    "messages received and deleted, whose credit was taken back": deleted_and_not_taken,
    "requests under way, with their ids": requests_with_large_ids,
    "requests under way, with what they list": requests_with_long_lists,
    "answers that wait for credit": answers_not_taken,
    "tokens": tokens,
}


def _close(peer: Peer) -> None:
    peer.close(None)


def hold(client: HoldingClient, step: Step, until_bytes: int) -> int:
    """Make it hold more and more, until it is ended or holds so much; the most that was held on the way."""
    most = 0
    for number in range(STEPS_MAX):
        step(client, number)
        most = max(most, client.house.budget.bytes_used)
        if client.is_ended or client.account.held_bytes >= until_bytes:
            return most
    raise AssertionError(f"after {STEPS_MAX} steps only {client.account.held_bytes} bytes are held")


@pytest.mark.parametrize("step", ROWS.values(), ids=ROWS)
def test_a_connection_that_holds_more_than_its_bound_is_closed(step: Step) -> None:
    house = House(BYTES_MAX)
    client = house.client()
    most = hold(client, step, 1 << 40)
    assert client.condition() == "amqp:resource-limit-exceeded"
    assert most <= BYTES_MAX // 2 + OVERSHOOT_BYTES


@pytest.mark.parametrize("step", ROWS.values(), ids=ROWS)
def test_what_was_held_is_given_back_when_the_connection_is_closed(step: Step) -> None:
    house = House(BYTES_MAX)
    client = house.client()
    hold(client, step, limits.MIB)
    assert not client.is_ended
    client.peer.close(None)
    assert house.budget.bytes_used == 0
    assert not house.budget.accounts
    lost = house.client()
    hold(lost, step, limits.MIB)
    lost.peer.lost()
    assert house.budget.bytes_used == 0
    assert house.budget.parent is not None
    assert house.budget.parent.bytes_used == 0


@pytest.mark.parametrize("step", ROWS.values(), ids=ROWS)
def test_when_all_together_hold_too_much_the_largest_is_closed_and_the_neighbour_stays(step: Step) -> None:
    house = House(BYTES_MAX)
    neighbour = house.client()
    hold(neighbour, unfinished_deliveries, 150_000)
    greedy = house.client()
    hold(greedy, step, 1_200 * limits.KIB)
    modest = [house.client() for _ in range(5)]
    for client in modest:
        if not greedy.is_ended:
            hold(client, step, 700 * limits.KIB)
    assert greedy.is_ended
    assert greedy.account.is_pressed
    assert not neighbour.is_ended
    assert house.budget.bytes_used <= BYTES_MAX + OVERSHOOT_BYTES


@pytest.mark.parametrize("step", ROWS.values(), ids=ROWS)
def test_what_is_charged_is_at_least_what_it_takes(step: Step) -> None:
    house = House(BYTES_MAX)
    client = house.client()
    step(client, 0)
    gc.collect()
    tracemalloc.start()
    try:
        before = client.account.held_bytes
        count = 1
        while client.account.held_bytes - before < limits.MIB and count < STEPS_MAX:
            step(client, count)
            count += 1
        if step is not requests_with_long_lists:
            client.commands.clear()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        charged = client.account.held_bytes - before
    finally:
        tracemalloc.stop()
    assert charged >= 0.7 * taken, f"{charged} bytes charged, {taken} taken"
    assert charged <= 40 * taken, f"{charged} bytes charged, {taken} taken"


@pytest.mark.parametrize("ends", [Peer.lost, _close], ids=["lost", "closed"])
@pytest.mark.parametrize("step", ROWS.values(), ids=ROWS)
def test_what_was_held_leaves_memory_with_the_connection_and_waits_for_no_garbage_collection(
    step: Step, ends: Callable[[Peer], None]
) -> None:
    """A collection is called for by the number of objects; a few hundred of them may have a gigabyte."""
    house = House(BYTES_MAX)
    client = house.client()
    step(client, 0)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        count = 1
        while client.account.held_bytes < limits.MIB and count < STEPS_MAX:
            step(client, count)
            count += 1
        client.commands.clear()
        client.links.clear()
        taken, _ = tracemalloc.get_traced_memory()
        ends(client.peer)
        client.peer.pop_commands(1 << 30, 1 << 40)
        client.peer.drain_registered()
        client.peer.drain_unregistered()
        client.peer.drain_output()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left <= 0.1 * taken, f"{left} of {taken} bytes are still there"


@pytest.mark.parametrize("step", [unfinished_deliveries, sessions, links, tokens])
def test_what_is_let_go_in_order_is_not_charged_any_more(step: Step) -> None:
    """By the client itself, while the connection lives."""
    house = House(BYTES_MAX)
    client = house.client()
    client.begin(channel=100)
    client.say(Begin(None, 0, 5_000, 5_000), channel=101)
    before = client.account.held_bytes
    if step is tokens:
        hold(client, step, 300_000)
        client.peer.auth_state.expire(NOW_MS + 10_000_000)
        assert client.peer.auth_state.grants.held_bytes < 1_000
        return
    channels = {100}
    if step is sessions:
        for number in range(10):
            step(client, number)
        channels = set(range(10))
    else:
        hold(client, step, 300_000)
        channels = {0}
    for channel in channels:
        client.say(End(), channel=channel)
    assert client.account.held_bytes <= before + 2_000


def test_handles_that_were_detached_with_an_error_are_counted_until_they_are_used_again() -> None:
    client = House(BYTES_MAX).client()
    client.begin()
    before = client.account.held_bytes
    for handle in range(100):
        client.attach_sender(handle, address="nowhere/$management")
        client.say(Detach(handle, True))
    assert client.account.held_bytes == before + 100 * HANDLE_BYTES
    for handle in range(100):
        client.attach_sender(handle)
        client.say(Detach(handle, True))
    assert client.account.held_bytes == before


def test_a_stranger_may_hold_little() -> None:
    house = House(64 * limits.MIB)
    client = house.client(is_known=False)
    client.begin()
    client.attach_sender(0, address="$cbs")
    client.attach_receiver(1, address="$cbs")
    for number in range(400):
        payload = _request("put-token", "x" * 10_000, "i" * 20_000)
        _send(client, number, payload)
    assert (
        client.account.held_bytes <= limits.UNAUTHENTICATED_HELD_BYTES_MAX + limits.CONNECTION_BYTES + limits.TLS_BYTES
    )


def test_unfinished_frames_of_many_connections_are_counted_too() -> None:
    house = House(BYTES_MAX)
    clients = [house.client() for _ in range(100)]
    half = encode_frame(0, Transfer(0, 0, b"t", 0), bytes(FRAME_BYTES - 100))[: FRAME_BYTES - 200]
    for client in clients:
        client.raw(half)
    assert house.budget.bytes_used <= BYTES_MAX
    assert sum(client.is_ended for client in clients) >= 30


def test_messages_are_not_browsed_for_an_answer_that_nobody_would_take() -> None:
    """What is read for it would be in memory: the core is asked when there is credit, two at a time."""
    client = House(1 << 30).client()
    client.begin()
    client.attach_sender(0, address="q/$management")
    client.attach_receiver(1, address="q/$management")
    for step in range(5):
        body = {"from-sequence-number": 0, "message-count": Int(5_000)}
        _send(client, step, _request("com.microsoft:peek-message", body, str(step)))
    assert not [command for command in client.commands if isinstance(command, Peek)]
    client.flow(1, 10)
    asked = [command for command in client.commands if isinstance(command, Peek)]
    assert len(asked) == BROWSING_MAX
    client.peer.dispatch(Messages(asked[0].request_id, [], [], 0), NOW_MS)
    client.hear()
    assert len([command for command in client.commands if isinstance(command, Peek)]) == BROWSING_MAX + 1


@pytest.mark.parametrize(
    ("address", "weight"),
    [("$cbs", limits.TOKEN_FRAMES), ("q/$management", limits.REQUEST_FRAMES)],
    ids=["tokens", "requests"],
)
@pytest.mark.parametrize("frames_of_each", [1, 3])
def test_what_asks_for_work_counts_as_many_frames_and_is_read_less_of_at_a_time(
    address: str, weight: int, frames_of_each: int
) -> None:
    client = House(BYTES_MAX).client()
    _node(client, address, 1_000)
    connection = client.peer.connection
    payload = _request("no such operation", {}, "i")
    size = len(payload) // frames_of_each + 1
    burst = b""
    for number in range(100):
        for at in range(0, len(payload), size):
            first = (number, b"t") if at == 0 else (None, None)
            transfer = Transfer(0, first[0], first[1], 0, more=at + size < len(payload), settled=True)
            burst += encode_frame(0, transfer, payload[at : at + size])
    before = connection.frames_count
    client.peer.receive(burst, NOW_MS, limits.FRAMES_PER_VISIT_MAX)
    read = (connection.frames_count - before) / frames_of_each
    assert client.peer.has_unread
    assert read <= limits.FRAMES_PER_VISIT_MAX / (weight + frames_of_each) + 1
    client.peer.receive(b"", NOW_MS)
    assert connection.frames_count - before == 100 * frames_of_each


def test_of_the_last_words_of_a_client_sends_count_and_what_it_asks_for_does_not() -> None:
    """Thousands of tokens that came before the end of a socket would be checked in one go, for nobody."""
    client = House(BYTES_MAX).client()
    _node(client, "q/$management", 1_000)
    client.attach_sender(2, address="$cbs")
    client.attach_receiver(3, address="$cbs")
    client.attach_sender(4)
    client.peer.last_words()
    _send(client, 0, _request("com.microsoft:get-session-state", {"session-id": "s"}, "i"))
    held_bytes = client.account.held_bytes
    tokens_count = len(client.peer.auth_state.grants.by_scope)
    put = encode_message(
        properties=Properties(message_id="i", reply_to="here"),
        application_properties={
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": "sb://h/q",
        },
        body=encode_amqp_value(sas_token("sb://h/q")),
    )
    _send(client, 1, put, handle=2)
    _send(client, 2, encode_message(body=encode_data(b"the last")), handle=4)
    (command,) = client.commands
    assert isinstance(command, Send)
    assert (client.account.held_bytes, len(client.peer.auth_state.grants.by_scope)) == (held_bytes, tokens_count)
