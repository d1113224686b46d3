"""The verdict finds what it must find: each kind of wrong, planted."""

from typing import Any

from tests.tools.history import body_of, judge


def seen(number: int, message_id: str, **more: Any) -> dict[str, Any]:
    return {
        "event": "received",
        "id": message_id,
        "queue": "q",
        "client": "r1",
        "opened_ns": 0,
        "intact": True,
        "sequence_number": number,
        **more,
    }


def in_order(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"ns": at, "client": "r1", **event} for at, event in enumerate(events, start=1)]


def did(event: str, message_id: str) -> dict[str, Any]:
    return {"event": event, "id": message_id}


GOOD = [did("sending", "a"), did("sent", "a"), seen(1, "a"), did("completing", "a"), did("completed", "a")]


def test_a_message_sent_received_and_completed_once_is_clean() -> None:
    verdict = judge(in_order(*GOOD))
    assert verdict.is_clean
    assert (verdict.acknowledged, verdict.received, verdict.completed, verdict.redelivered) == (1, 1, 1, 0)


def test_an_acknowledged_message_that_nobody_ever_completes_is_lost() -> None:
    verdict = judge(in_order(*GOOD, did("sending", "b"), did("sent", "b")))
    assert verdict.lost == ["b"]


def test_a_send_of_unknown_outcome_may_be_gone_and_may_come_out() -> None:
    assert judge(in_order(did("sending", "b"))).is_clean
    assert judge(in_order(did("sending", "b"), seen(1, "b"), did("completing", "b"), did("completed", "b"))).is_clean


def test_a_completed_message_on_a_later_connection_is_resurrected() -> None:
    verdict = judge(in_order(*GOOD, seen(1, "a", client="r2", opened_ns=6)))
    assert verdict.resurrected == ["a"]


def test_a_completed_message_that_its_own_client_sees_again_is_resurrected() -> None:
    assert judge(in_order(*GOOD, seen(1, "a"))).resurrected == ["a"]


def test_an_old_delivery_in_the_buffer_of_another_connection_is_a_redelivery_only() -> None:
    verdict = judge(in_order(*GOOD, seen(1, "a", client="r2", opened_ns=0)))
    assert verdict.is_clean
    assert verdict.redelivered == 1


def test_an_unconfirmed_complete_may_be_redelivered() -> None:
    again = [did("sending", "a"), did("sent", "a"), seen(1, "a"), did("completing", "a"), seen(1, "a", opened_ns=5)]
    assert judge(in_order(*again)).is_clean


def test_messages_never_sent_damaged_ones_and_numbers_used_twice_are_reported() -> None:
    verdict = judge(in_order(*GOOD, seen(2, "ghost"), seen(1, "a2", intact=False)))
    assert verdict.invented == ["a2", "ghost"]
    assert verdict.damaged == ["a2"]
    assert verdict.sequence_numbers_reused == [1]
    assert not verdict.is_clean


def test_a_body_is_known_from_its_id() -> None:
    assert len(body_of("a", 1000)) == 1000
    assert body_of("a", 1000) != body_of("b", 1000)


def test_a_message_under_two_numbers_of_one_queue_is_duplicated() -> None:
    verdict = judge(in_order(did("sending", "b"), *GOOD, did("sending", "a"), seen(2, "a", client="r2")))
    assert (verdict.duplicated, verdict.sent_again, verdict.is_clean) == (["a"], 1, False)
    assert judge(in_order(*GOOD, seen(1, "a", queue="q/$DeadLetterQueue", client="r2"))).duplicated == []
