"""The emulator's Config.json: what is read from it, and one line for each mistake (fault table row B23)."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.cli.config_file import (
    FILE_BYTES_MAX,
    PROBLEMS_SHOWN_MAX,
    QUEUE_PROPERTIES,
    ConfigError,
    EmulatorConfig,
    namespace_name_problem,
    read_config,
)
from spillway.model.entity import FOR_EVER_MS

QUEUE_AT = "$.UserConfig.Namespaces[0].Queues[0]"
PROPERTIES_AT = f"{QUEUE_AT}.Properties"

# Microsoft's sample with its queue as published; topics are not served yet.
SAMPLE = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": False,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                        },
                    }
                ],
                "Topics": [],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def queue_file(**properties: Any) -> dict[str, Any]:
    return {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q", "Properties": properties}]}]}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "Config.json"


def read(path: Path, content: object) -> EmulatorConfig:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_config(path)


def mistakes(path: Path, content: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(path, content)
    assert caught.value.exit_code == 2
    lines = list(caught.value.lines)
    assert all(line.startswith(f"{path}: ") for line in lines), lines
    assert all("\n" not in line and len(line) < 600 for line in lines), lines
    return [line.removeprefix(f"{path}: ") for line in lines]


def test_the_sample_queue_is_read_as_the_emulator_reads_it(path: Path) -> None:
    config = read(path, SAMPLE)
    [namespace] = config.namespaces
    [queue] = namespace.queues
    assert (namespace.name, queue.name) == ("sbemulatorns", "queue.1")
    assert queue.settings.default_ttl_ms == 3_600_000
    assert queue.settings.lock_duration_ms == 60_000
    assert queue.settings.max_delivery_count == 3
    assert queue.settings.dead_letter_on_expiry is False
    assert config.warnings == []


def test_a_queue_without_properties_has_the_emulators_defaults(path: Path) -> None:
    config = read(path, {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q"}]}]}})
    settings = config.namespaces[0].queues[0].settings
    assert (settings.default_ttl_ms, settings.lock_duration_ms) == (3_600_000, 60_000)
    assert (settings.max_delivery_count, settings.dead_letter_on_expiry) == (3, False)


def test_azures_wider_ranges_are_taken(path: Path) -> None:
    config = read(
        path,
        queue_file(
            DefaultMessageTimeToLive="P10675199DT2H48M5.4775807S",
            LockDuration="PT5M",
            MaxDeliveryCount=2_147_483_647,
            DeadLetteringOnMessageExpiration=True,
            DuplicateDetectionHistoryTimeWindow="P7D",
        ),
    )
    settings = config.namespaces[0].queues[0].settings
    assert settings.default_ttl_ms == FOR_EVER_MS
    assert settings.lock_duration_ms == 300_000
    assert settings.max_delivery_count == 2_147_483_647
    assert settings.dead_letter_on_expiry is True
    assert config.warnings == []


def test_a_value_that_only_azure_refuses_is_a_warning(path: Path) -> None:
    config = read(path, queue_file(DuplicateDetectionHistoryTimeWindow="PT5S"))
    at = f"{PROPERTIES_AT}.DuplicateDetectionHistoryTimeWindow"
    assert config.warnings == [f'{path}: {at}: "PT5S": Azure allows PT20S to P7D']


def test_any_number_of_namespaces_with_any_names(path: Path) -> None:
    names = ["contoso", "a", "CONTOSO-2", "9"]
    config = read(path, {"UserConfig": {"Namespaces": [{"Name": name} for name in names]}})
    assert [namespace.name for namespace in config.namespaces] == names


def test_a_byte_order_mark_is_accepted(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SAMPLE).encode())
    assert read_config(path).namespaces[0].name == "sbemulatorns"


DURATION = ", written like P1D, PT1H30M or PT5S"
TTL = f"allowed: a duration from PT1S to for ever{DURATION}"
LOCK = f"allowed: a duration from PT5S to PT5M{DURATION}"
WINDOW = f"allowed: a duration from PT5S to P7D{DURATION}"
COUNT = "allowed: a whole number from 1 to 2147483647"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("LockDuration", "PT5X", f'"PT5X": {LOCK}'),
        ("LockDuration", "PT4S", f'"PT4S": {LOCK}'),
        ("LockDuration", "PT5M1S", f'"PT5M1S": {LOCK}'),
        ("LockDuration", "P10675199D", f'"P10675199D": {LOCK}'),
        ("LockDuration", 60, f"60: {LOCK}"),
        ("LockDuration", None, f"null: {LOCK}"),
        ("LockDuration", "", f'"": {LOCK}'),
        ("LockDuration", "x" * 1_000, '"' + "x" * 59 + f"…: {LOCK}"),
        ("DefaultMessageTimeToLive", "PT0S", f'"PT0S": {TTL}'),
        ("DefaultMessageTimeToLive", "PT0.9S", f'"PT0.9S": {TTL}'),
        ("DefaultMessageTimeToLive", "P1W", f'"P1W": {TTL}'),
        ("DuplicateDetectionHistoryTimeWindow", "PT4S", f'"PT4S": {WINDOW}'),
        ("DuplicateDetectionHistoryTimeWindow", "P7DT1S", f'"P7DT1S": {WINDOW}'),
        ("MaxDeliveryCount", 0, f"0: {COUNT}"),
        ("MaxDeliveryCount", -1, f"-1: {COUNT}"),
        ("MaxDeliveryCount", 2**31, f"2147483648: {COUNT}"),
        ("MaxDeliveryCount", 3.0, f"3.0: {COUNT}"),
        ("MaxDeliveryCount", "3", f'"3": {COUNT}'),
        ("MaxDeliveryCount", True, f"true: {COUNT}"),
        ("DeadLetteringOnMessageExpiration", "true", '"true": allowed: true or false'),
        ("DeadLetteringOnMessageExpiration", 1, "1: allowed: true or false"),
        ("RequiresSession", "yes", '"yes": allowed: true or false'),
        ("RequiresSession", True, "true: allowed: false: not served by this version"),
        ("RequiresDuplicateDetection", True, "true: allowed: false: not served by this version"),
        ("ForwardTo", "other", '"other": allowed: "": forwarding is not served by this version'),
        ("ForwardTo", 5, '5: allowed: a string, "" in this version'),
        ("ForwardDeadLetteredMessagesTo", "d", '"d": allowed: "": forwarding is not served by this version'),
    ],
)
def test_a_wrong_property_is_one_line_with_path_value_and_what_is_allowed(
    path: Path, key: str, value: object, line: str
) -> None:
    assert mistakes(path, queue_file(**{key: value})) == [f"{PROPERTIES_AT}.{key}: {line}"]


def namespaces(*items: object) -> dict[str, Any]:
    return {"UserConfig": {"Namespaces": list(items)}}


NAMESPACE_NAME = "allowed: letters, digits and '-', a letter or digit first and last, at most 50 characters"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({}, "$.UserConfig: missing: it is required"),
        ([], "$: []: allowed: an object with UserConfig"),
        ("null", "$: null: allowed: an object with UserConfig"),
        ({"UserConfig": {}}, "$.UserConfig.Namespaces: missing: it is required"),
        ({"UserConfig": 5}, "$.UserConfig: 5: allowed: an object with Namespaces, Logging"),
        ({"UserConfig": {"Namespaces": {}}}, "$.UserConfig.Namespaces: an object: allowed: an array"),
        ({"UserConfig": {"Namespaces": []}}, "$.UserConfig.Namespaces: []: allowed: at least one namespace"),
        (namespaces({}), "$.UserConfig.Namespaces[0].Name: missing: it is required"),
        (namespaces({"Name": 1}), "$.UserConfig.Namespaces[0].Name: 1: allowed: a string"),
        (namespaces({"Name": "a/b"}), f'$.UserConfig.Namespaces[0].Name: "a/b": {NAMESPACE_NAME}'),
        (namespaces({"Name": ".."}), f'$.UserConfig.Namespaces[0].Name: "..": {NAMESPACE_NAME}'),
        (
            namespaces({"Name": "n"}, {"Name": "N"}),
            '$.UserConfig.Namespaces[1].Name: "N": '
            "allowed: a name of its own, whatever its case: $.UserConfig.Namespaces[0] has this one",
        ),
        (
            namespaces({"Name": "n", "Queues": [{"Name": "q"}, {"Name": "Q"}]}),
            '$.UserConfig.Namespaces[0].Queues[1].Name: "Q": '
            f"allowed: a name of its own, whatever its case: {QUEUE_AT} has this one",
        ),
        (
            namespaces({"Name": "n", "Queues": [{"Name": "a//b"}]}),
            f'{QUEUE_AT}.Name: "a//b": '
            "allowed: the parts of an entity name between slashes must not be empty, '.' or '..'",
        ),
        (
            namespaces({"Name": "n", "Queue": []}),
            "$.UserConfig.Namespaces[0].Queue: []: allowed: no such key; the keys here are Name, Queues, Topics",
        ),
        (
            namespaces({"Name": "n", "Queues": [{"Name": "q", "Properties": []}]}),
            f"{PROPERTIES_AT}: []: allowed: an object with {', '.join(QUEUE_PROPERTIES)}",
        ),
        (
            namespaces({"Name": "n", "Topics": [{"Name": "t"}]}),
            '$.UserConfig.Namespaces[0].Topics[0]: "t": allowed: queues only: topics are not served by this version',
        ),
        (
            {"UserConfig": {"Namespaces": [{"Name": "n"}], "Logging": {"Type": "Syslog"}}},
            '$.UserConfig.Logging.Type: "Syslog": allowed: File or Console or File,Console',
        ),
    ],
)
def test_a_wrong_shape_is_one_line(path: Path, content: object, line: str) -> None:
    assert mistakes(path, content) == [line]


def test_an_unknown_property_lists_the_known_ones(path: Path) -> None:
    [line] = mistakes(path, queue_file(LockDurationn="PT1M"))
    keys = ", ".join(QUEUE_PROPERTIES)
    assert line == f'{PROPERTIES_AT}.LockDurationn: "PT1M": allowed: no such key; the keys here are {keys}'


def test_a_key_that_comes_twice_is_a_mistake(path: Path) -> None:
    text = '{"UserConfig": {"Namespaces": [{"Name": "a", "Name": "b"}]}}'
    assert mistakes(path, text) == ['$.UserConfig.Namespaces[0].Name: "b": allowed: each key once']


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "line 1, column 1: the end of the line or file: not JSON: Expecting value"),
        ("{\n  // ours\n}", 'line 2, column 3: "// ours": JSON has no comments'),
        ("/* ours */ {}", 'line 1, column 1: "/* ours */ {}": JSON has no comments'),
        ("{'UserConfig': 1}", "line 1, column 2: \"'UserConfig': 1}\": JSON has double quotes only"),
        ('{"UserConfig": NaN}', "a number that is too long, NaN or Infinity: allowed: plain numbers"),
        ('{"UserConfig": ' + "9" * 5_000 + "}", "a number that is too long, NaN or Infinity: allowed: plain numbers"),
        ('{"UserConfig": 1} x', 'line 1, column 19: "x": not JSON: Extra data'),
        ("[" * 100_000, "nested too deeply to be a configuration"),
    ],
)
def test_what_is_not_json_is_one_line_that_says_where(path: Path, text: str, line: str) -> None:
    assert mistakes(path, text) == [line]


@pytest.mark.parametrize("text", ['{"UserConfig": 1,\n}', '{"UserConfig": [1,\n]}'])
def test_a_trailing_comma_is_named_with_its_line_and_column(path: Path, text: str) -> None:
    [line] = mistakes(path, text)
    assert line.startswith(("line 1, column ", "line 2, column 1"))  # Python 3.13 points at the comma
    assert line.endswith(": JSON has no comma before a closing bracket")


def test_a_missing_file_is_one_line(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.lines == (f"{path}: cannot be read: No such file or directory",)


def test_a_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path)
    assert caught.value.lines == (f"{tmp_path}: cannot be read: Is a directory",)


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Root may read everything; step down for a moment."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)


def test_an_unreadable_file_is_one_line(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)
    with as_an_ordinary_user(), pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.lines == (f"{path}: cannot be read: Permission denied",)


def test_a_file_of_fifty_megabytes_is_refused_without_reading_it_all(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50 * 1024 * 1024)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.lines == (f"{path}: larger than {FILE_BYTES_MAX // 1024 // 1024} MB, the most that is read",)


def test_a_device_without_end_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: larger than 16 MB"):
        read_config(Path("/dev/zero"))


def test_another_encoding_is_one_line(path: Path) -> None:
    path.write_bytes(json.dumps(SAMPLE).encode("utf-16"))
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.lines == (f"{path}: byte 0 is not UTF-8, the encoding that is allowed",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SharedAccessKey", "hunter2hunter2"),
        ("Password", "hunter2hunter2"),
        ("ForwardTo", "Endpoint=sb://x;SharedAccessKeyName=k;SharedAccessKey=hunter2hunter2"),
    ],
)
def test_a_secret_that_strayed_into_the_file_is_not_printed(path: Path, key: str, value: str) -> None:
    [line] = mistakes(path, queue_file(**{key: value}))
    assert "hunter2" not in line
    assert "(a value that is not shown)" in line


def test_all_mistakes_are_found_in_one_go_and_the_list_is_bounded(path: Path) -> None:
    queues = [{"Name": f"q{number}", "Properties": {"MaxDeliveryCount": 0}} for number in range(1_000)]
    lines = mistakes(path, namespaces({"Name": "n", "Queues": queues}))
    assert len(lines) == PROBLEMS_SHOWN_MAX + 1
    assert lines[-1] == "and 980 more mistakes"


def test_three_different_mistakes_are_three_lines(path: Path) -> None:
    lines = mistakes(path, queue_file(LockDuration="PT5X", MaxDeliveryCount=0, RequiresSession=True))
    assert [line.split(":")[0].rpartition(".")[2] for line in lines] == [
        "LockDuration",
        "MaxDeliveryCount",
        "RequiresSession",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from(["Name"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(
    value=JSON, place=st.sampled_from(["root", "user", "namespace", "queue", "properties", "name", *QUEUE_PROPERTIES])
)
def test_whatever_stands_in_the_file_the_answer_is_a_config_or_lines(
    tmp_path_factory: pytest.TempPathFactory, value: object, place: str
) -> None:
    contents: dict[str, object] = {
        "root": value,
        "user": {"UserConfig": value},
        "namespace": namespaces(value),
        "queue": namespaces({"Name": "n", "Queues": [value]}),
        "properties": namespaces({"Name": "n", "Queues": [{"Name": "q", "Properties": value}]}),
        "name": namespaces({"Name": value}),
    }
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(contents.get(place) if place in contents else queue_file(**{place: value})))
    try:
        config = read_config(path)
    except ConfigError as error:
        assert error.lines
        assert all("\n" not in line and "\r" not in line for line in error.lines)
    else:
        assert all(namespace_name_problem(namespace.name) is None for namespace in config.namespaces)
