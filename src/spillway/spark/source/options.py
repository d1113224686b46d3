"""The options of `format("servicebus")`: read once, checked where the query is analysed, typed from then on.

An error names the option and what is allowed, and never repeats a value that could be a key.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spillway.spark.platform.access import PATIENCE_S, Access, OptionError, checked
from spillway.spark.platform.access import shown as _shown
from spillway.spark.platform.paths import local_path
from spillway.spark.source.byte_limits import bytes_of
from spillway.spark.source.entity_path import check_entity_path, entity_or_path
from spillway.spark.source.time_options import ENDING, STARTING, times_of

BROWSE: Final = "browse"
PEEK_LOCK: Final = "peeklock"
RECEIVE_AND_DELETE: Final = "receiveanddelete"
MODES: Final = (BROWSE, PEEK_LOCK, RECEIVE_AND_DELETE)

BINARY: Final = "binary"
STRING: Final = "string"
JSON: Final = "json"
BODY_FORMATS: Final = (BINARY, STRING, JSON)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
FAIL: Final = "fail"
ON_RESET: Final = (FAIL, EARLIEST)
ALL_SESSIONS: Final = "*"
AUTO: Final = "auto"

MANUAL: Final = "manual"
QUERY: Final = "query"  # the holder is the streaming query
NOBODY: Final = "none"

COLUMN: Final = "column"
CONTENT: Final = "content"
MESSAGE_IDS: Final = (COLUMN, CONTENT)

QUARANTINE: Final = "quarantine"
ON_REFUSED: Final = (FAIL, QUARANTINE)
QUARANTINE_QUEUE: Final = "queue:"

ENTITIES_MAX: Final = 1_000
PARTITIONS_MAX: Final = 1_000
MESSAGES_MAX: Final = 10_000_000
SEQUENCE_NUMBER_MAX: Final = 2**63 - 1
HOLDER_MAX: Final = 100
PATTERN_MAX: Final = 600
RATE_MIN: Final = 0.1
RATE_MAX: Final = 1_000_000.0

READ: Final = "read"
WRITE: Final = "write"
BOTH: Final = "read, write"


@dataclass(frozen=True)
class Option:
    """One line of the table in the guide."""

    name: str
    side: str
    default: str


OPTIONS: Final = (
    Option("secretName", BOTH, ""),
    Option("connectionString", BOTH, ""),
    Option("caFile", BOTH, ""),
    Option("entity", BOTH, ""),
    Option("entityPattern", READ, ""),
    Option("timeoutSeconds", BOTH, "60"),
    Option("patienceSeconds", BOTH, "600"),
    Option("maxOperationsPerSecond", BOTH, ""),
    Option("mode", READ, BROWSE),
    Option("allowLoss", READ, "false"),
    Option("sessions", READ, ""),
    Option("partitions", READ, AUTO),
    Option("maxMessages", READ, "10000"),
    Option("maxBytes", READ, ""),
    Option("firstBatchMessages", READ, "1000"),
    Option("minMessages", READ, "1"),
    Option("maxDelaySeconds", READ, "300"),
    Option("maxWaitSeconds", READ, "1"),
    Option("renewSeconds", READ, "300"),
    Option("settle", READ, ""),
    Option("holder", READ, QUERY),
    Option("startAt", READ, EARLIEST),
    Option("endAt", READ, LATEST),
    Option(STARTING, READ, ""),
    Option(ENDING, READ, ""),
    Option("onReset", READ, FAIL),
    Option("pushdown", READ, "false"),
    Option("bodyFormat", READ, BINARY),
    Option("includeBody", READ, "true"),
    Option("includeRaw", READ, "false"),
    Option("entityColumn", WRITE, ""),
    Option("messageId", WRITE, COLUMN),
    Option("onRefused", WRITE, FAIL),
    Option("quarantine", WRITE, ""),
)
_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}
# `load("orders")` and `start("orders")` arrive as a path. Spark hands the checkpoint of a query to its sink as well.
_PATH: Final = "path"
_SPARKS_OWN: Final = frozenset({"checkpointlocation"})
# So Spark begins the names of a table's options where it looks for its columns; later it hands none of them on.
_OF_A_TABLE: Final = "option."
TABLES_HAVE_NONE: Final = (
    "Spark does not hand the options of a table in a catalog to a source in Python. Say CREATE TEMPORARY VIEW"
)


@dataclass(frozen=True)
class ReadOptions:
    """What a read asks for."""

    access: Access
    entities: tuple[str, ...]  # of a pattern those that are there, once they are listed
    entity_pattern: str = ""
    mode: str = BROWSE
    sessions: tuple[str, ...] = ()
    has_all_sessions: bool = False
    partitions: int = 1
    chooses_partitions: bool = False  # as many as there is work for, where `partitions` is not given
    max_messages: int | None = None  # as given; each reader has its own default
    max_bytes: int | None = None  # of a batch of a stream, about
    first_batch_messages: int = 1_000
    min_messages: int = 1  # that wait before a batch of a receiving stream begins, or for so long
    max_delay_s: float = 300.0
    max_wait_s: float = 1.0
    renew_s: float = 300.0
    holder: str = ""  # who settles what a batch received before the next one begins; QUERY: each query by itself
    start_at: int | None = 0  # a sequence number; None: only what is new
    end_at: int | None = None  # a sequence number, the last to be read; None: what there is
    start_time_ms: int | None = None  # enqueued then or later
    end_time_ms: int | None = None  # enqueued before that; a batch that browses
    has_pushdown: bool = False  # filters of the query are taken into account; a batch that browses
    on_reset: str = FAIL  # what becomes of a position in an entity that was made anew
    body_format: str = BINARY
    includes_body: bool = True
    includes_raw: bool = False
    operations_per_s: float | None = None  # of all that a batch of it does together

    @property
    def has_sessions(self) -> bool:
        return self.has_all_sessions or bool(self.sessions)


@dataclass(frozen=True)
class WriteOptions:
    """What a write asks for."""

    access: Access
    entity: str = ""
    entity_column: str = ""
    message_id: str = COLUMN
    operations_per_s: float | None = None  # of each task
    quarantine: str = ""  # where refused rows go: a directory, or queue:NAME; empty: the write fails


def check_names(options: Mapping[str, str]) -> None:
    """Refuse what nobody knows, naming what comes near."""
    for name in options:
        lower = name.lower()
        if lower in _BY_NAME or lower in _SPARKS_OWN or lower == _PATH:
            continue
        if lower.startswith(_OF_A_TABLE):
            raise OptionError(f"CREATE TABLE … USING servicebus: {TABLES_HAVE_NONE}")
        near = difflib.get_close_matches(lower, _BY_NAME, 3, 0.6)
        hint = " or ".join(_BY_NAME[each].name for each in near)
        known = ", ".join(option.name for option in OPTIONS)
        raise OptionError(
            f"there is no option '{name}'. " + (f"Did you mean {hint}?" if hint else f"There are {known}")
        )


def read_options(options: Mapping[str, str], is_streaming: bool | None = None) -> ReadOptions:
    """For a reader. `is_streaming` is None where it is not known yet."""
    values = _values(options, READ)
    mode = _choice(values, "mode", MODES, BROWSE)
    may_lose = _flag(values, "allowLoss", False)
    if mode == RECEIVE_AND_DELETE and not may_lose:
        raise OptionError(
            "mode=receiveanddelete deletes messages when they are handed out, before a row is stored anywhere: what a "
            "task that fails has received is lost. Say allowLoss=true if that may be, or take mode=peeklock"
        )
    body_format = _choice(values, "bodyFormat", BODY_FORMATS, BINARY)
    includes_body = _flag(values, "includeBody", True)
    if not includes_body and "bodyformat" in values:
        raise OptionError(
            "bodyFormat says how bodies are read, and includeBody=false leaves them out: give one of them"
        )
    _check_settle(values, mode, is_streaming)
    sessions, has_all = _sessions(values)
    for name in ("startAt", "endAt", STARTING, ENDING, "onReset"):
        if mode != BROWSE and name.lower() in values:
            raise OptionError(f"{name} is for mode=browse: a receiver is handed what comes next")
    for name in ("minMessages", "maxDelaySeconds"):
        if (mode == BROWSE or is_streaming is False) and name.lower() in values:
            raise OptionError(f"{name} is for streams with mode=peeklock or mode=receiveanddelete")
    if (mode != BROWSE or is_streaming) and "pushdown" in values:
        raise OptionError("pushdown is for batch reads with mode=browse: Spark hands filters to nothing else")
    end_at = _position(values, "endAt", LATEST)
    if is_streaming is False and "onreset" in values:
        raise OptionError("onReset is for streams: a batch read has no checkpoint")
    if is_streaming and end_at is not None:
        raise OptionError("endAt is for batch reads: a stream goes on")
    start_at = _position(values, "startAt", LATEST)
    if start_at is None and is_streaming is False:
        raise OptionError(f"startAt=latest is for streams; a batch read takes {EARLIEST} or a sequence number")
    start_time_ms, end_time_ms = times_of(values, is_streaming)
    if start_at is not None and end_at is not None and end_at < start_at:
        raise OptionError(f"endAt={end_at} lies before startAt={start_at}")
    access = _access(values)
    pattern = _pattern(values)
    entities = () if pattern else entities_of(entity_or_path(_entity(values), access))
    check_entity_path(entities or (pattern,), "", access)
    chooses_partitions = values.get("partitions", AUTO).strip().lower() == AUTO
    return ReadOptions(
        access=access,
        entities=entities,
        entity_pattern=pattern,
        mode=mode,
        sessions=sessions,
        has_all_sessions=has_all,
        partitions=1 if chooses_partitions else _integer(values, "partitions", 1, 1, PARTITIONS_MAX),
        chooses_partitions=chooses_partitions,
        max_messages=_integer(values, "maxMessages", 0, 1, MESSAGES_MAX) or None,
        max_bytes=bytes_of(values, is_streaming),
        first_batch_messages=_integer(values, "firstBatchMessages", 1_000, 1, MESSAGES_MAX),
        min_messages=_integer(values, "minMessages", 1, 1, MESSAGES_MAX),
        max_delay_s=_seconds(values, "maxDelaySeconds", 300.0, 0.0, 86_400.0),
        max_wait_s=_seconds(values, "maxWaitSeconds", 1.0, 0.0, 300.0),
        renew_s=_seconds(values, "renewSeconds", 300.0, 0.0, 86_400.0),
        holder=_holder(values, mode, is_streaming),
        start_at=start_at,
        end_at=end_at,
        start_time_ms=start_time_ms,
        end_time_ms=end_time_ms,
        has_pushdown=_flag(values, "pushdown", False),
        on_reset=_choice(values, "onReset", ON_RESET, FAIL),
        body_format=body_format,
        includes_body=includes_body,
        includes_raw=_flag(values, "includeRaw", False),
        operations_per_s=_rate(values, "maxOperationsPerSecond"),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """For a writer."""
    values = _values(options, WRITE)
    column = values.get("entitycolumn", "").strip()
    access = _access(values)
    entity = _entity(values) if column else entity_or_path(_entity(values), access)
    if entity and column:
        raise OptionError("entity sends every row to one entity, entityColumn each row to its own: give one of them")
    if entity and len(entities_of(entity)) != 1:
        raise OptionError("entity: a write goes to one queue or topic; entityColumn sends each row to its own")
    check_entity_path(entities_of(entity) if entity else (), column, access)
    return WriteOptions(
        access=access,
        entity=entities_of(entity)[0] if entity else "",
        entity_column=column,
        message_id=_choice(values, "messageId", MESSAGE_IDS, COLUMN),
        operations_per_s=_rate(values, "maxOperationsPerSecond"),
        quarantine=_quarantine(values, entity),
    )


def access_of(options: Mapping[str, str]) -> Access:
    """Only how to reach the namespace; other options are checked by their names."""
    check_names(options)
    return _access({name.lower(): value for name, value in options.items()})


def entities_of(text: str) -> tuple[str, ...]:
    """`orders`, `orders, bills`, or a JSON list where a name has a comma."""
    names = _listed(text, "entity")
    for name in names:
        if not name or not name.isprintable():
            raise OptionError("entity: a path is empty or has characters that cannot be printed")
    if len(names) > ENTITIES_MAX:
        raise OptionError(f"entity: {len(names)} entities; at most {ENTITIES_MAX}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"entity: {twice[0]} is there twice")
    return names


def _listed(text: str, name: str) -> tuple[str, ...]:
    text = text.strip()
    if not text.startswith("["):
        return tuple(part.strip().strip("/") for part in text.split(","))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name}: begins like a JSON list and is none: {error}") from None
    if not found or not all(isinstance(each, str) for each in found):
        raise OptionError(f"{name}: a JSON list of strings, at least one")
    return tuple(each.strip().strip("/") for each in found)


def _values(options: Mapping[str, str], side: str) -> dict[str, str]:
    check_names(options)
    values = {name.lower(): value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
    for lower in values:
        option = _BY_NAME.get(lower)
        if option is not None and side not in option.side:
            raise OptionError(f"{option.name} is an option of a {option.side}, not of a {side}")
    return values


def _access(values: Mapping[str, str]) -> Access:
    text, secret = values.get("connectionstring", "").strip(), values.get("secretname", "").strip()
    if bool(text) == bool(secret):
        raise OptionError(
            "give either secretName (env:NAME or file:PATH, looked up by each worker) or connectionString, "
            + ("not both" if text else "none is there")
            + ("" if values.keys() - {_PATH} else f". If this is a table: {TABLES_HAVE_NONE}")
        )
    if text:
        checked(text, "connectionString")
    elif ";" in secret or "://" in secret:
        # Perhaps the key itself, pasted into the wrong place: not repeated.
        raise OptionError("secretName is the name of a secret (env:NAME or file:PATH), not the connection string")
    ca_file = values.get("cafile", "").strip()
    timeout_s = _seconds(values, "timeoutSeconds", 60.0, 1.0, 600.0)
    return Access(secret, text, ca_file, timeout_s, _seconds(values, "patienceSeconds", PATIENCE_S, 0.0, 86_400.0))


def _entity(values: Mapping[str, str]) -> str:
    entity, path = values.get("entity", "").strip(), values.get(_PATH, "").strip()
    if entity and path:
        raise OptionError("the entity is given twice: as option entity and as the path of load() or start()")
    return entity or path


def _pattern(values: Mapping[str, str]) -> str:
    text = values.get("entitypattern", "").strip().strip("/")
    if "entitypattern" in values and (not text or not text.isprintable() or len(text) > PATTERN_MAX):
        raise OptionError(f"entityPattern: names with * and ? in them, at most {PATTERN_MAX} characters")
    if text and _entity(values):
        raise OptionError("entity names entities, entityPattern lists those that are called so: give one of them")
    return text


def _check_settle(values: Mapping[str, str], mode: str, is_streaming: bool | None) -> None:
    """A source cannot know what its rows go to. A sink that settles nothing would end with all in the dead letters."""
    said = values.get("settle", "").strip().lower()
    if said not in ("", MANUAL):
        raise OptionError(f"settle={_shown(said)}: it is {MANUAL}, or not given")
    if said and mode != PEEK_LOCK:
        raise OptionError("settle is for mode=peeklock: nothing else has locks")
    if is_streaming and mode == PEEK_LOCK and not said:
        raise OptionError(
            "a stream with mode=peeklock settles nothing by itself: put straight into a sink, its messages come again "
            "and again, and end as dead letters. Say settle=manual, and settle in foreachBatch: "
            "foreachBatch(settling(function, options)), with settling from spillway.spark.settle"
        )


def _holder(values: Mapping[str, str], mode: str, is_streaming: bool | None) -> str:
    is_possible = mode == PEEK_LOCK and is_streaming is not False
    holder = values.get("holder", QUERY if is_possible else "").strip()
    if holder and not is_possible:
        raise OptionError("holder is for streams with mode=peeklock: nothing else has locks from one batch to the next")
    if len(holder) > HOLDER_MAX or not holder.isprintable():
        raise OptionError(f"holder: a name of at most {HOLDER_MAX} characters that can be printed")
    return "" if holder.lower() == NOBODY else holder


def _quarantine(values: Mapping[str, str], entity: str) -> str:
    on_refused = _choice(values, "onRefused", ON_REFUSED, FAIL)
    place = values.get("quarantine", "").strip()
    if bool(place) != (on_refused == QUARANTINE):
        raise OptionError(
            "onRefused=quarantine and quarantine=PLACE belong together: a refused row goes to that place, the absolute "
            "path of a directory or queue:NAME. Without them the write fails"
        )
    if place.startswith(QUARANTINE_QUEUE):
        queue = place.removeprefix(QUARANTINE_QUEUE).strip("/ ")
        if not queue or not queue.isprintable():
            raise OptionError("quarantine=queue:NAME: the name of the queue is missing, or cannot be printed")
        if entity and queue.lower() == entities_of(entity)[0].lower():
            raise OptionError("quarantine: a queue cannot take what it refuses; name another one, or a directory")
        return QUARANTINE_QUEUE + queue
    if place:
        if local_path(place) is None or not place.removeprefix("file:").startswith("/"):
            raise OptionError(
                f"quarantine={_shown(place)}: the absolute path of a directory that driver and workers share, or "
                "queue:NAME"
            )
    return place


def _sessions(values: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    text = values.get("sessions", "").strip()
    if not text:
        return (), False
    if text == ALL_SESSIONS:
        return (), True
    names = _listed(text, "sessions") if text.startswith("[") else tuple(part.strip() for part in text.split(","))
    if len(set(names)) != len(names):
        raise OptionError("sessions: one is there twice")
    return names, False


def _choice(values: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = values.get(name.lower(), default).strip().lower()
    if value not in allowed:
        raise OptionError(f"{name}={_shown(value)}: it is {', '.join(allowed[:-1])} or {allowed[-1]}")
    return value


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    return _choice(values, name, ("true", "false"), "true" if default else "false") == "true"


def _integer(values: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = values.get(name.lower())
    if text is None:
        return default
    digits = text.strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19 or not least <= int(digits) <= most:
        raise OptionError(f"{name}={_shown(text)}: a whole number from {least:,} to {most:,}")
    return int(digits)


def _seconds(values: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = values.get(name.lower())
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise OptionError(f"{name}={_shown(text)}: seconds from {least:g} to {most:g}")
    return value


def _rate(values: Mapping[str, str], name: str) -> float | None:
    """How many a second; None if it is not said."""
    text = values.get(name.lower())
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not RATE_MIN <= value <= RATE_MAX:
        raise OptionError(f"{name}={_shown(text)}: a number from {RATE_MIN:g} to {RATE_MAX:g}")
    return value


def _position(values: Mapping[str, str], name: str, open_end: str) -> int | None:
    """A sequence number; 0 for the earliest, None for the latest."""
    text = values.get(name.lower(), EARLIEST if name == "startAt" else LATEST).strip().lower()
    if text == open_end:
        return None
    if text == EARLIEST and name == "startAt":
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > SEQUENCE_NUMBER_MAX:
        words = f"{EARLIEST}, {LATEST}" if name == "startAt" else LATEST
        raise OptionError(f"{name}={_shown(text)}: it is {words} or a sequence number")
    return int(text)
