"""Options are checked by name and value, and what is wrong is said without repeating a secret."""

import re
from pathlib import Path
from typing import Any

import pytest

from spillway.spark.platform.access import Access, OptionError, read_secret
from spillway.spark.source.declaration import (
    BATCHES,
    BOTH,
    BROWSE,
    MODES,
    PEEK_LOCK,
    READ,
    RECEIVE_AND_DELETE,
    STREAMS,
    WRITE,
    Asked,
    Number,
    Only,
    SourceOption,
    WholeNumber,
    WholeNumberOr,
    seconds,
)
from spillway.spark.source.options import OPTIONS, check_names, entities_of, read_options, write_options
from tools.job_tables import SOURCE_PAGE, source_row, with_tables

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
    check_names({"SECRETNAME": "", "checkpointLocation": "", "queryName": "", "path": ""})
    assert read_options({"secretname": "BUS", "Entity": "q", "MODE": "PeekLock"}).mode == "peeklock"
    assert write_options({"secretname": "BUS", "path": "q", "checkpointlocation": "x", "queryName": "n"}).entity == "q"


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


# -- an option is declared once: what is refused, and the guide, come from it ----------------------------------------

READS = [option for option in OPTIONS if option.side != WRITE and option.name not in NAMED]
# One value that is allowed, where the default is none or means nothing.
ALLOWED = {
    "allowLoss": "true",
    "entityPattern": "orders-*",
    "connectionString": STRING,
    "maxOperationsPerSecond": "5",
    "sessions": "*",
    "maxBytes": "1m",
    "settle": "manual",
    "holder": "mine",
    "startAt": "3",
    "endAt": "5",
    "startingTime": "2026-01-01",
    "endingTime": "2026-01-02",
    "quarantine": "queue:refused",
}
USES = [(mode, is_streaming) for mode in MODES for is_streaming in (False, True)]


def numbers(option: SourceOption[Any]) -> WholeNumber | Number | None:
    kind = option.kind.number if isinstance(option.kind, WholeNumberOr) else option.kind
    return kind if isinstance(kind, WholeNumber | Number) else None


def good(mode: str, is_streaming: bool) -> dict[str, str]:
    """A read that is allowed as it is."""
    needs = {RECEIVE_AND_DELETE: {"allowLoss": "true"}, PEEK_LOCK: {"settle": "manual"}, BROWSE: {}}[mode]
    return {**NAMED, "mode": mode, **needs}


@pytest.mark.parametrize("option", [each for each in OPTIONS if numbers(each)], ids=lambda each: each.name)
def test_a_number_is_refused_outside_of_the_bounds_that_are_declared(option: SourceOption[Any]) -> None:
    kind = numbers(option)
    assert kind is not None
    use = next(use for use in USES if all(only.is_for(Asked({}, *use)) for only in option.only))
    for allowed in (kind.least, kind.most):
        read_options({**good(*use), option.name: f"{allowed:.10g}"}, use[1])
    for wrong in (f"{kind.least - 1:.10g}", f"{kind.most + 1:.10g}", "nan", "many", ""):
        with pytest.raises(OptionError, match=rf"^{option.name}='{wrong}': .* from .* to "):
            read_options({**good(*use), option.name: wrong}, use[1])


@pytest.mark.parametrize("option", READS, ids=lambda each: each.name)
@pytest.mark.parametrize(("mode", "is_streaming"), USES)
def test_an_option_is_refused_by_exactly_the_reads_that_it_is_not_declared_for(
    option: SourceOption[Any], mode: str, is_streaming: bool
) -> None:
    given = {**good(mode, is_streaming), option.name: ALLOWED.get(option.name, option.default or "file")}
    if option.name == "entityPattern":
        del given["entity"]
    if option.name == "connectionString":
        del given["secretName"]
    if option.name == "mode":
        given["mode"] = mode
    if all(only.is_for(Asked({}, mode, is_streaming)) for only in option.only):
        read_options(given, is_streaming)
    else:
        with pytest.raises(OptionError, match=rf"^{option.name} is for "):
            read_options(given, is_streaming)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda each: each.name)
def test_an_option_of_the_other_side_is_refused_and_one_with_a_slip_is_named(option: SourceOption[Any]) -> None:
    given = {**NAMED, option.name: ALLOWED.get(option.name, option.default)}
    if option.side == WRITE:
        with pytest.raises(OptionError, match=f"^{option.name} is an option of a write, not of a read$"):
            read_options(given)
    elif option.side == READ:
        with pytest.raises(OptionError, match=f"^{option.name} is an option of a read, not of a write$"):
            write_options(given)
    else:
        assert option.side == BOTH
    with pytest.raises(OptionError, match=f"Did you mean .*{option.name}"):
        check_names({f"{option.name[:-2]}{option.name[-1]}": ""})


@pytest.mark.parametrize("option", [each for each in READS if each.default], ids=lambda each: each.name)
def test_to_say_the_default_is_to_say_nothing(option: SourceOption[Any]) -> None:
    for mode, is_streaming in USES:
        given = good(mode, is_streaming)
        if option.name in given or not all(only.is_for(Asked({}, mode, is_streaming)) for only in option.only):
            continue
        if option.name == "maxMessages":  # its default is for streams; a batch read has another
            assert read_options({**given, "maxMessages": "10000"}, is_streaming).max_messages == option.default_value
        else:
            told = read_options({**given, option.name: option.default}, is_streaming)
            assert told == read_options(given, is_streaming)


def test_the_guide_says_what_is_allowed_and_for_which_reads() -> None:
    browsed = Only((BROWSE,), why="a receiver is handed what comes next")
    wait = SourceOption("wait", READ, seconds(0, 90_000), "So long.", "1", (browsed, Only(reads=BATCHES)))
    assert wait.paragraph() == "So long. From 0 to 90,000. Only for batch reads with `mode=browse`."
    most = SourceOption("most", BOTH, WholeNumber(1, 5), "At most.", only=(Only((BROWSE, PEEK_LOCK), STREAMS),))
    assert most.paragraph() == "At most. From 1 to 5. Only for streams with `mode=browse` or `mode=peeklock`."
    assert source_row(wait) == f"| `wait` | read | `1` | {wait.paragraph()} |\n"
    assert source_row(most) == f"| `most` | read, write |  | {most.paragraph()} |\n"


def test_a_page_without_the_table_that_is_due_is_an_error() -> None:
    with pytest.raises(AssertionError, match="the section Options has no table"):
        with_tables(f"{SOURCE_PAGE}\n## Options\n\nNone.\n")
    assert with_tables("# Another page\n\n## Options\n\nNone.\n") == "# Another page\n\n## Options\n\nNone.\n"
