"""Azure's own answers, replayed: status, type, ETag, elements and their order, and every value that could be equal."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from tests.admin.client import Client, token
from tests.admin.differences import DIFFERENCES
from tests.wire.live import NAMESPACE

RECORDINGS = Path(__file__).parent / "recordings"
FILES = ("namespaces", "queues", "topics", "subscriptions", "rules")
TIMES = {"updated", "published", "CreatedAt", "UpdatedAt", "AccessedAt", "CreatedTime", "ModifiedTime"}
BAD_CREDENTIALS = "test_mgmt_queue_list_with_negative_credential"
# The Python SDK sends a little less than for ever back; Azure keeps it to the tick, we know for ever as such.
NEARLY_FOR_EVER = "P10675199DT2H48M5.477539S"
FOR_EVER = "P10675199DT2H48M5.4775807S"


def cases() -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in FILES:
        for line in (RECORDINGS / f"{file}.jsonl").read_text(encoding="utf-8").splitlines():
            step = json.loads(line)
            found.setdefault((file, step["case"]), []).append(step)
    return found


CASES = cases()


def plain(text: str) -> str:
    """Without what depends on host, time or namespace."""
    text = re.sub(r"(https?|sb)://[^/?<]+", "HOST", text.strip())
    text = re.sub(r"servicebustest[a-z0-9]+", NAMESPACE, text)
    text = re.sub(r"uuid:.*", "UUID", text)
    text = text.replace(NEARLY_FOR_EVER, FOR_EVER)
    return text.partition(" TrackingId:")[0]


def tree(element: Element) -> list[Any]:
    """Name, attributes, text and children, comparable."""
    name = element.tag
    is_time = name.rpartition("}")[2] in TIMES
    text = "TIME" if is_time else plain(element.text or "")
    attributes = {key: plain(value) for key, value in element.attrib.items()}
    return [name, attributes, text, [tree(child) for child in element]]


def tree_of(body: str | None) -> list[Any] | None:
    return tree(fromstring(body)) if body else None


@pytest.mark.parametrize(("file", "case"), CASES, ids=lambda value: str(value))
def test_the_answers_are_azures(client: Client, file: str, case: str) -> None:
    client.token = token(f"https://localhost:{client.port}", key="wrong") if case == BAD_CREDENTIALS else client.token
    expected_differences = DIFFERENCES.get((file, case), {})
    for step in CASES[file, case]:
        headers = {} if step["if_match"] is None else {"If-Match": step["if_match"]}
        answer = client.ask(step["method"], step["uri"], step["request_body"], headers=headers)
        difference = expected_differences.get(step["step"])
        if difference is not None:
            assert (answer.status, difference.text in answer.body) == (difference.status, True), (step, answer)
            continue
        where = f"step {step['step']}: {step['method']} {step['uri']} {answer.body}"
        assert answer.status == step["status"], where
        assert answer.content_type == step["content_type"], where
        assert (answer.etag is not None) == step["has_etag"], where
        assert tree_of(answer.body) == tree_of(step["response_body"]), where


def test_every_difference_is_one_of_a_recorded_step() -> None:
    for (file, case), steps in DIFFERENCES.items():
        assert set(steps) <= {step["step"] for step in CASES[file, case]}
