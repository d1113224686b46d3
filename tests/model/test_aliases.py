"""What is read of a message in a backlog: notes of the shape that paired senders give them, and no other."""

import json

import pytest
from azure.servicebus._common.constants import MAX_ABSOLUTE_EXPIRY_TIME

from spillway.model.aliases import EXPIRY_MS_MAX, PATH, TYPES, Malformed, read_aliases


@pytest.mark.parametrize(
    "notes",
    [
        {"p": {"k": "LONG", "l": {"l": {"0": "BINARY", "2": {"m": {"x": "?"}}}}}},
        {"a": {"x": "SYMBOL"}, "d": {"y": {"m": {"z": "UUID"}}}, "f": {"k": "TIMESTAMP"}},
        {"b": "BINARY", "m": "UUID", "c": {"l": {"0": "ULONG"}}},
        {"b": {"m": {"TYPE": "LONG", "VALUE": {"l": {"1": "UINT"}}}}},
        {},
    ],
)
def test_notes_as_paired_senders_write_them_are_read(notes: dict[str, object]) -> None:
    assert read_aliases({PATH: "orders", TYPES: json.dumps(notes)}).notes == notes


@pytest.mark.parametrize(
    "written",
    ['{"p":null}', '{"p":1}', '{"a":[]}', '{"d":"LONG"}', '{"f":{"k":1}}', '{"p":{"k":null}}', '{"b":false}']
    + ['{"m":[]}', '{"b":{"l":[]}}', '{"b":{"x":{}}}', '{"b":{"l":{},"m":{}}}', '{"b":{"l":{"0":{"m":7}}}}'],
)
def test_notes_of_another_shape_are_of_no_paired_sender(written: str) -> None:
    with pytest.raises(Malformed, match="'x-spillway-types' is not what a paired sender writes"):
        read_aliases({PATH: "orders", TYPES: written})


def test_notes_may_go_as_deep_as_they_can_be_read() -> None:
    deep = '{"l":{"0":' * 100 + '"LONG"' + "}}" * 100
    assert "b" in read_aliases({PATH: "orders", TYPES: f'{{"b":{deep}}}'}).notes


def test_a_life_that_ends_after_the_year_9999_ends_where_the_sdk_lets_it_end() -> None:
    assert EXPIRY_MS_MAX == MAX_ABSOLUTE_EXPIRY_TIME
