"""Options are checked by name and value, and what is wrong is said without repeating a secret."""

import re
from pathlib import Path

import pytest

from spillway.spark.platform.access import Access, OptionError, read_secret
from spillway.spark.source.options import OPTIONS, check_names, entities_of, read_options, write_options

KEY = "bm90IGEga2V5LCBidXQgaXQgbG9va3MgbGlrZSBvbmU="
STRING = f"Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
NAMED = {"secretName": "env:BUS", "entity": "orders"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"entiy": "q"}, "there is no option 'entiy'. Did you mean entity"),
        ({"zzz": "q"}, "There are secretName, connectionString"),
        ({"secretName": "env:BUS"}, "entity is missing"),
        ({"entity": "q"}, "give either secretName .* none is there"),
        ({**NAMED, "connectionString": STRING}, "give either secretName .* not both"),
        ({"entity": "q", "secretName": STRING}, "not the connection string"),
        ({"entity": "q", "connectionString": "Endpoint=sb://h"}, "neither a SharedAccessKey nor"),
        ({"entity": "q", "connectionString": f"Endpoint=sb://h;SharedAccessKey={KEY}"}, "one of them is missing"),
        ({**NAMED, "mode": "peek"}, "mode='peek': it is browse, peeklock or receiveanddelete"),
        ({**NAMED, "mode": "receiveanddelete"}, "Say allowLoss=true"),
        ({**NAMED, "allowLoss": "yes"}, "allowLoss='yes': it is true or false"),
        ({**NAMED, "partitions": "0"}, "partitions='0': a whole number from 1 to 1,000"),
        ({**NAMED, "maxMessages": "many"}, "maxMessages='many': a whole number"),
        ({**NAMED, "maxMessages": "9" * 30}, r"maxMessages=\(30 characters\)"),
        ({**NAMED, "maxWaitSeconds": "nan"}, "maxWaitSeconds='nan': seconds from 0 to 300"),
        ({**NAMED, "startAt": "yesterday"}, "startAt='yesterday': it is earliest, latest or a sequence number"),
        ({**NAMED, "endAt": "earliest"}, "endAt='earliest': it is latest or a sequence number"),
        ({**NAMED, "startAt": "9", "endAt": "8"}, "endAt=8 lies before startAt=9"),
        ({**NAMED, "mode": "peeklock", "startAt": "9"}, "startAt is for mode=browse"),
        ({**NAMED, "onReset": "latest"}, "onReset='latest': it is fail or earliest"),
        ({**NAMED, "mode": "peeklock", "onReset": "fail"}, "onReset is for mode=browse"),
        ({**NAMED, "patienceSeconds": "-1"}, "patienceSeconds='-1': seconds from 0 to 86400"),
        ({**NAMED, "maxOperationsPerSecond": "0"}, "maxOperationsPerSecond='0': a number from 0.1 to 1e"),
        ({**NAMED, "holder": "me"}, "holder is for streams with mode=peeklock"),
        ({**NAMED, "mode": "peeklock", "holder": "m" * 101}, "at most 100 characters"),
        ({**NAMED, "settle": "manual"}, "settle is for mode=peeklock"),
        ({**NAMED, "mode": "peeklock", "settle": "auto"}, "settle='auto': it is manual, or not given"),
        ({**NAMED, "maxBytes": "lots"}, "maxBytes='lots': a number of bytes up to 1024g, such as 500000, 64m or 1g"),
        ({**NAMED, "maxBytes": "0"}, "maxBytes='0': a number of bytes"),
        ({**NAMED, "maxBytes": "2000g"}, "maxBytes='2000g': a number of bytes"),
        ({**NAMED, "maxBytes": ""}, "maxBytes='': a number of bytes"),
        ({**NAMED, "startingTime": "yesterday"}, "startingTime='yesterday': a time such as 2026-11-17T08:00:00Z"),
        ({**NAMED, "startingTime": "9" * 19}, "startingTime='9+': a time such as"),
        ({**NAMED, "startingTime": "-5"}, "or milliseconds since 1970"),
        ({**NAMED, "startingTime": "2026-01-01", "startAt": "5"}, "a time to begin at: give one of them"),
        ({**NAMED, "endingTime": "2026-01-01", "endAt": "5"}, "a time to end at: give one of them"),
        ({**NAMED, "startingTime": "2026-01-02", "endingTime": "2026-01-01"}, "endingTime lies before startingTime"),
        ({**NAMED, "startingTime": "2999-01-01"}, "startingTime lies in the future: say startAt=latest"),
        ({**NAMED, "mode": "peeklock", "startingTime": "2026-01-01"}, "startingTime is for mode=browse"),
        ({**NAMED, "pushdown": "yes"}, "pushdown='yes': it is true or false"),
        ({**NAMED, "mode": "peeklock", "pushdown": "true"}, "pushdown is for batch reads with mode=browse"),
        ({**NAMED, "bodyFormat": "xml"}, "bodyFormat='xml': it is binary, string or json"),
        ({**NAMED, "bodyFormat": "json", "includeBody": "false"}, "give one of them"),
        ({**NAMED, "path": "bills"}, "the entity is given twice"),
        ({"secretName": "env:BUS", "entity": "a,b,a"}, "a is there twice"),
        ({"secretName": "env:BUS", "entity": '["a", 1]'}, "a JSON list of strings"),
        ({"secretName": "env:BUS", "entity": "[a"}, "begins like a JSON list"),
        ({"secretName": "env:BUS", "entity": "a,,b"}, "a path is empty"),
        ({**NAMED, "sessions": "a,a"}, "sessions: one is there twice"),
        ({**NAMED, "messageId": "content"}, "messageId is an option of a write, not of a read"),
        ({**NAMED, "connectionStrin": STRING}, "there is no option 'connectionStrin'"),
        ({**NAMED, "maxMessages": STRING}, r"maxMessages=\(\d+ characters\)"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        read_options(options)
    assert KEY not in str(raised.value)


def test_what_a_stream_or_a_batch_cannot_do_is_told_when_it_is_known_which_it_is() -> None:
    with pytest.raises(OptionError, match="a stream goes on"):
        read_options({**NAMED, "endAt": "5"}, is_streaming=True)
    with pytest.raises(OptionError, match="onReset is for streams"):
        read_options({**NAMED, "onReset": "fail"}, is_streaming=False)
    with pytest.raises(OptionError, match="startAt=latest is for streams"):
        read_options({**NAMED, "startAt": "latest"}, is_streaming=False)


def test_a_stream_that_locks_says_who_settles_because_its_source_cannot_know() -> None:
    locked = {**NAMED, "mode": "peeklock"}
    with pytest.raises(OptionError, match=r"Say settle=manual, and settle in foreachBatch: foreachBatch\(settling\("):
        read_options(locked, is_streaming=True)
    assert read_options(locked, is_streaming=False).holder == ""
    locked["settle"] = "manual"
    assert read_options(locked, is_streaming=True).holder == "query"
    assert read_options({**locked, "holder": "none"}, is_streaming=True).holder == ""
    assert read_options({**locked, "holder": "mine"}, is_streaming=True).holder == "mine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"secretName": "BUS"}, "entity is missing"),
        ({**NAMED, "mode": "browse"}, "mode is an option of a read, not of a write"),
        ({**NAMED, "entityColumn": "queue"}, "give one of them"),
        ({"secretName": "BUS", "entity": "a,b"}, "a write goes to one queue or topic"),
        ({**NAMED, "messageId": "random"}, "messageId='random': it is column or content"),
    ],
)
def test_a_wrong_option_of_a_write_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        write_options(options)


def test_names_of_options_have_no_case_and_spark_may_add_its_own() -> None:
    check_names({"SECRETNAME": "", "checkpointLocation": "", "path": ""})
    assert read_options({"secretname": "BUS", "Entity": "q", "MODE": "PeekLock"}).mode == "peeklock"
    assert write_options({"secretname": "BUS", "path": "q", "checkpointlocation": "x"}).entity == "q"


def test_entities_are_a_list_with_commas_or_json() -> None:
    assert entities_of("orders") == ("orders",)
    assert entities_of("a, ns/x-servicebus-transfer/0 ,t/subscriptions/s") == (
        "a",
        "ns/x-servicebus-transfer/0",
        "t/subscriptions/s",
    )
    assert entities_of('["a,b", "/c/"]') == ("a,b", "c")


def test_a_secret_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUS", STRING)
    (tmp_path / "bus").write_text(f"{STRING}\n")
    for name in ("BUS", "env:BUS", f"file:{tmp_path / 'bus'}"):
        assert read_secret(name) == STRING
        assert Access(secret_name=name).resolve() == STRING


def test_a_secret_that_is_not_there_is_said_without_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUS", raising=False)
    with pytest.raises(OptionError, match="no environment variable BUS in this process"):
        read_secret("env:BUS")
    with pytest.raises(OptionError, match="cannot be read here: No such file"):
        read_secret(f"file:{tmp_path / 'bus'}")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("empty", "binary"):
        with pytest.raises(OptionError, match="does not hold a connection string"):
            read_secret(f"file:{tmp_path / name}")
    monkeypatch.setenv("BUS", f"SharedAccessKey={KEY}")
    with pytest.raises(OptionError, match="secretName=BUS: the connection string has no Endpoint") as raised:
        Access(secret_name="BUS").resolve()
    assert KEY not in str(raised.value)


def test_what_travels_does_not_show_a_key() -> None:
    options = read_options({"connectionString": STRING, "entity": "q"})
    assert KEY not in repr(options)


def test_every_option_is_in_the_guides_table_and_every_row_is_an_option() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    table = guide.split("## Options")[1].split("## Secrets")[0]
    rows = re.findall(r"^\| `([A-Za-z]+)` \| ([a-z, ]+) \| ([^|]*) \|", table, flags=re.MULTILINE)
    assert {(name, side.strip(), default.strip().strip("`")) for name, side, default in rows} == {
        (option.name, option.side, option.default) for option in OPTIONS
    }
