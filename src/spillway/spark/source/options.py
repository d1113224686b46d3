"""The options of `format("servicebus")`: read once, checked where the query is analysed, typed from then on.

An error names the option and what is allowed, and never repeats a value that could be a key.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spillway.spark.platform.access import PATIENCE_S, Access, OptionError, checked, shown
from spillway.spark.platform.paths import local_path
from spillway.spark.source.byte_limits import MAX_BYTES, bytes_of
from spillway.spark.source.declaration import (
    BATCHES,
    BOTH,
    BROWSE,
    BROWSED,
    GOES_ON,
    MODES,
    PEEK_LOCK,
    READ,
    RECEIVE_AND_DELETE,
    STREAMS,
    WRITE,
    Asked,
    Flag,
    Number,
    OneWord,
    Only,
    PositionOption,
    SourceOption,
    Text,
    WholeNumber,
    WholeNumberOr,
    WordChoice,
    seconds,
)
from spillway.spark.source.entity_path import check_entity_path, entity_or_path
from spillway.spark.source.time_options import ENDING, STARTING, times_of

BINARY: Final = "binary"
STRING: Final = "string"
JSON: Final = "json"

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
FAIL: Final = "fail"
ALL_SESSIONS: Final = "*"
AUTO: Final = "auto"

MANUAL: Final = "manual"
QUERY: Final = "query"  # the holder is the streaming query
NOBODY: Final = "none"

COLUMN: Final = "column"
CONTENT: Final = "content"

SET_ASIDE: Final = "quarantine"
QUARANTINE_QUEUE: Final = "queue:"

ENTITIES_MAX: Final = 1_000
MESSAGES_MAX: Final = 10_000_000
SEQUENCE_NUMBER_MAX: Final = 2**63 - 1
DAY_S: Final = 86_400.0
HOLDER_MAX: Final = 100
PATTERN_MAX: Final = 600
RATE_MIN: Final = 0.1
RATE_MAX: Final = 1_000_000.0

_GATHERING: Final = (Only((PEEK_LOCK, RECEIVE_AND_DELETE), STREAMS),)


@dataclass(frozen=True)
class Pattern:
    """Names of entities with `*` and `?` in them."""

    def read(self, name: str, text: str) -> str:
        found = text.strip().strip("/")
        if not found or not found.isprintable() or len(found) > PATTERN_MAX:
            raise OptionError(f"{name}: names with * and ? in them, at most {PATTERN_MAX} characters")
        return found

    def allowed(self, default: str) -> str:
        return f"At most {PATTERN_MAX} characters."


@dataclass(frozen=True)
class SessionIds:
    """Ids of message sessions, and whether all are meant."""

    def read(self, name: str, text: str) -> tuple[tuple[str, ...], bool]:
        text = text.strip()
        if not text or text == ALL_SESSIONS:
            return (), bool(text)
        names = _listed(text, name) if text.startswith("[") else tuple(part.strip() for part in text.split(","))
        if len(set(names)) != len(names):
            raise OptionError(f"{name}: one is there twice")
        return names, False

    def allowed(self, default: str) -> str:
        return f"It is `{ALL_SESSIONS}`, or their ids, with commas between them or as a JSON list."


@dataclass(frozen=True)
class HolderName:
    """Who settles what a batch has received: a name, the query, or nobody."""

    def read(self, name: str, text: str) -> str:
        holder = text.strip()
        if len(holder) > HOLDER_MAX or not holder.isprintable():
            raise OptionError(f"{name}: a name of at most {HOLDER_MAX} characters that can be printed")
        return "" if holder.lower() == NOBODY else holder

    def allowed(self, default: str) -> str:
        return f"It is `{default}`, `{NOBODY}`, or a name of your own, at most {HOLDER_MAX} characters."


SECRET_NAME: Final = SourceOption(
    "secretName",
    BOTH,
    Text(),
    "Where the connection string is: `env:NAME`, an environment variable, or `file:PATH`. Every worker looks it up "
    "itself.",
)
CONNECTION_STRING: Final = SourceOption(
    "connectionString", BOTH, Text(), "The connection string itself; give one of the two."
)
CA_FILE: Final = SourceOption("caFile", BOTH, Text(), "Trust this certificate authority alone.")
ENTITY: Final = SourceOption(
    "entity",
    BOTH,
    Text(),
    "What to read, or the queue or topic to write to; also the path of `load`, `save` and `start`. If it is not given, "
    "the `EntityPath` of the connection string; one that contradicts it is an error. Jobs name their entities.",
)
ENTITY_PATTERN: Final = SourceOption(
    "entityPattern",
    READ,
    Pattern(),
    "Instead of `entity`: all whose names are [like this](#entities-by-a-pattern), with `*` and `?`.",
)
TIMEOUT: Final = SourceOption("timeoutSeconds", BOTH, seconds(1.0, 600.0), "For an answer of the service.", "60")
PATIENCE: Final = SourceOption(
    "patienceSeconds",
    BOTH,
    seconds(0.0, DAY_S),
    "How long an [outage](#outages) is waited for; `0`: the first error ends the query.",
    f"{PATIENCE_S:g}",
)
MAX_OPERATIONS: Final = SourceOption(
    "maxOperationsPerSecond",
    BOTH,
    Number(RATE_MIN, RATE_MAX),
    "A [budget](#operations): of a read for all tasks of a batch together, of a write for each task.",
)
MODE: Final = SourceOption("mode", READ, WordChoice(MODES), "What [reading](#reading) does to messages.", BROWSE)
ALLOW_LOSS: Final = SourceOption("allowLoss", READ, Flag(), "Has to be `true` for `mode=receiveanddelete`.", "false")
SESSIONS: Final = SourceOption("sessions", READ, SessionIds(), "Of an entity with message sessions.")
PARTITIONS: Final = SourceOption(
    "partitions",
    READ,
    WholeNumberOr(WholeNumber(1, 1_000), AUTO),
    "Of each entity; `auto` is by [what is in it](#tasks-and-batches).",
    AUTO,
)
MAX_MESSAGES: Final = SourceOption(
    "maxMessages",
    READ,
    WholeNumber(1, MESSAGES_MAX),
    "In a batch of a stream. A batch read has a limit of 1,000 with `mode=peeklock`, and none when it browses, unless "
    "it is given.",
    "10000",
)
FIRST_BATCH_MESSAGES: Final = SourceOption(
    "firstBatchMessages",
    READ,
    WholeNumber(1, MESSAGES_MAX),
    "In the first batch of a receiving stream, which is slow while its locks run.",
    "1000",
)
MIN_MESSAGES: Final = SourceOption(
    "minMessages",
    READ,
    WholeNumber(1, MESSAGES_MAX),
    "A batch begins when so many messages of an entity wait, by their sequence numbers, or after `maxDelaySeconds`; "
    "until then they stay in the entity, unlocked. Not with `availableNow`.",
    "1",
    _GATHERING,
)
MAX_DELAY: Final = SourceOption(
    "maxDelaySeconds", READ, seconds(0.0, DAY_S), "How long fewer than `minMessages` may wait.", "300", _GATHERING
)
MAX_WAIT: Final = SourceOption("maxWaitSeconds", READ, seconds(0.0, 300.0), "For a first message.", "1")
RENEW: Final = SourceOption(
    "renewSeconds",
    READ,
    seconds(0.0, DAY_S),
    "How long locks are renewed after rows were handed out; `0`: not at all.",
    "300",
)
SETTLE: Final = SourceOption(
    "settle",
    READ,
    OneWord(MANUAL),
    "Has to be said for a stream with `mode=peeklock`, which settles nothing by itself ([more](#locked-rows)).",
    only=(Only((PEEK_LOCK,), why="nothing else has locks", unless=("",)),),
)
HOLDER: Final = SourceOption(
    "holder",
    READ,
    HolderName(),
    "What a batch has left locked is given back when the next batch of the same holder begins, and when the query ends "
    "([more](#locked-rows)).",
    QUERY,
    (Only((PEEK_LOCK,), STREAMS, "nothing else has locks from one batch to the next", unless=("",)),),
)
START_AT: Final = SourceOption(
    "startAt",
    READ,
    PositionOption({EARLIEST: 0, LATEST: None}, SEQUENCE_NUMBER_MAX),
    "Or `latest` (streams), or a sequence number.",
    EARLIEST,
    (BROWSED,),
)
END_AT: Final = SourceOption(
    "endAt",
    READ,
    PositionOption({LATEST: None}, SEQUENCE_NUMBER_MAX),
    "Or the last sequence number to read.",
    LATEST,
    (BROWSED, Only(reads=BATCHES, why=GOES_ON, unless=(LATEST,))),
)
ON_RESET: Final = SourceOption(
    "onReset",
    READ,
    WordChoice((FAIL, EARLIEST)),
    "What becomes of an entity that [was made anew](#entities-that-were-made-anew): an error, or it is read from its "
    "first message.",
    FAIL,
    (BROWSED, Only(reads=STREAMS, why="a batch read has no checkpoint")),
)
PUSHDOWN: Final = SourceOption(
    "pushdown",
    READ,
    Flag(),
    "Conditions of the query are [taken into account](#filters).",
    "false",
    (Only((BROWSE,), BATCHES, "Spark hands filters to nothing else"),),
)
BODY_FORMAT: Final = SourceOption(
    "bodyFormat", READ, WordChoice((BINARY, STRING, JSON)), "What the column `body` [is](#columns).", BINARY
)
INCLUDE_BODY: Final = SourceOption("includeBody", READ, Flag(), "Whether bodies are read.", "true")
INCLUDE_RAW: Final = SourceOption(
    "includeRaw", READ, Flag(), "Whether there is a column `raw`, the whole message as AMQP encodes it.", "false"
)
ENTITY_COLUMN: Final = SourceOption("entityColumn", WRITE, Text(), "The column that names the entity of each row.")
MESSAGE_ID: Final = SourceOption(
    "messageId", WRITE, WordChoice((COLUMN, CONTENT)), "Where the [id](#writing) of a message comes from.", COLUMN
)
ON_REFUSED: Final = SourceOption(
    "onRefused",
    WRITE,
    WordChoice((FAIL, SET_ASIDE)),
    "What becomes of rows that can never be sent ([more](#rows-that-are-refused)).",
    FAIL,
)
QUARANTINE: Final = SourceOption(
    "quarantine", WRITE, Text(), "With `onRefused=quarantine`: the absolute path of a directory, or `queue:NAME`."
)

OPTIONS: Final[tuple[SourceOption[Any], ...]] = (
    SECRET_NAME,
    CONNECTION_STRING,
    CA_FILE,
    ENTITY,
    ENTITY_PATTERN,
    TIMEOUT,
    PATIENCE,
    MAX_OPERATIONS,
    MODE,
    ALLOW_LOSS,
    SESSIONS,
    PARTITIONS,
    MAX_MESSAGES,
    MAX_BYTES,
    FIRST_BATCH_MESSAGES,
    MIN_MESSAGES,
    MAX_DELAY,
    MAX_WAIT,
    RENEW,
    SETTLE,
    HOLDER,
    START_AT,
    END_AT,
    STARTING,
    ENDING,
    ON_RESET,
    PUSHDOWN,
    BODY_FORMAT,
    INCLUDE_BODY,
    INCLUDE_RAW,
    ENTITY_COLUMN,
    MESSAGE_ID,
    ON_REFUSED,
    QUARANTINE,
)
STREAM_MESSAGES: Final = MAX_MESSAGES.default_value  # in a batch of a stream, where maxMessages does not say
_BY_KEY: Final = {option.key: option for option in OPTIONS}
# `load("orders")` and `start("orders")` arrive as a path. Spark hands checkpoint and name of a query to its sink too.
_PATH: Final = "path"
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
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
    first_batch_messages: int = FIRST_BATCH_MESSAGES.default_value
    min_messages: int = (
        MIN_MESSAGES.default_value
    )  # that wait before a batch of a receiving stream begins, or for so long
    max_delay_s: float = MAX_DELAY.default_value
    max_wait_s: float = MAX_WAIT.default_value
    renew_s: float = RENEW.default_value
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
        if lower in _BY_KEY or lower in _SPARKS_OWN or lower == _PATH:
            continue
        if lower.startswith(_OF_A_TABLE):
            raise OptionError(f"CREATE TABLE … USING servicebus: {TABLES_HAVE_NONE}")
        near = difflib.get_close_matches(lower, _BY_KEY, 3, 0.6)
        hint = " or ".join(_BY_KEY[each].name for each in near)
        known = ", ".join(option.name for option in OPTIONS)
        raise OptionError(
            f"there is no option '{name}'. " + (f"Did you mean {hint}?" if hint else f"There are {known}")
        )


def read_options(options: Mapping[str, str], is_streaming: bool | None = None) -> ReadOptions:
    """For a reader. `is_streaming` is None where it is not known yet."""
    values = _values(options, READ)
    mode = MODE.of(Asked(values))
    asked = Asked(values, mode, is_streaming)
    _check_together(asked)
    start_at, end_at = START_AT.of(asked), END_AT.of(asked)
    if start_at is None and is_streaming is False:
        raise OptionError(f"startAt=latest is for streams; a batch read takes {EARLIEST} or a sequence number")
    if start_at is not None and end_at is not None and end_at < start_at:
        raise OptionError(f"endAt={end_at} lies before startAt={start_at}")
    start_time_ms, end_time_ms = times_of(values, is_streaming, mode)
    sessions, has_all_sessions = SESSIONS.of(asked)
    access = _access(asked)
    pattern = ENTITY_PATTERN.given(asked) or ""
    if pattern and _entity(asked):
        raise OptionError("entity names entities, entityPattern lists those that are called so: give one of them")
    entities = () if pattern else entities_of(entity_or_path(_entity(asked), access))
    check_entity_path(entities or (pattern,), "", access)
    partitions = PARTITIONS.of(asked)
    return ReadOptions(
        access=access,
        entities=entities,
        entity_pattern=pattern,
        mode=mode,
        sessions=sessions,
        has_all_sessions=has_all_sessions,
        partitions=partitions or 1,
        chooses_partitions=partitions is None,
        max_messages=MAX_MESSAGES.given(asked),
        max_bytes=bytes_of(values, is_streaming),
        first_batch_messages=FIRST_BATCH_MESSAGES.of(asked),
        min_messages=MIN_MESSAGES.of(asked),
        max_delay_s=MAX_DELAY.of(asked),
        max_wait_s=MAX_WAIT.of(asked),
        renew_s=RENEW.of(asked),
        holder=_holder(asked),
        start_at=start_at,
        end_at=end_at,
        start_time_ms=start_time_ms,
        end_time_ms=end_time_ms,
        has_pushdown=PUSHDOWN.of(asked),
        on_reset=ON_RESET.of(asked),
        body_format=BODY_FORMAT.of(asked),
        includes_body=INCLUDE_BODY.of(asked),
        includes_raw=INCLUDE_RAW.of(asked),
        operations_per_s=MAX_OPERATIONS.given(asked),
    )


def _check_together(asked: Asked) -> None:
    """What a mode needs, and options that exclude each other."""
    may_lose = ALLOW_LOSS.of(asked)
    if asked.mode == RECEIVE_AND_DELETE and not may_lose:
        raise OptionError(
            "mode=receiveanddelete deletes messages when they are handed out, before a row is stored anywhere: what a "
            "task that fails has received is lost. Say allowLoss=true if that may be, or take mode=peeklock"
        )
    if not INCLUDE_BODY.of(asked) and BODY_FORMAT.is_given(asked):
        raise OptionError(
            "bodyFormat says how bodies are read, and includeBody=false leaves them out: give one of them"
        )
    # A source cannot know what its rows go to. A sink that settles nothing would end with all in the dead letters.
    if not SETTLE.of(asked) and asked.is_streaming and asked.mode == PEEK_LOCK:
        raise OptionError(
            "a stream with mode=peeklock settles nothing by itself: put straight into a sink, its messages come again "
            "and again, and end as dead letters. Say settle=manual, and settle in foreachBatch: "
            "foreachBatch(settling(function, options)), with settling from spillway.spark.settle"
        )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """For a writer."""
    asked = Asked(_values(options, WRITE))
    column = ENTITY_COLUMN.of(asked)
    access = _access(asked)
    entity = _entity(asked) if column else entity_or_path(_entity(asked), access)
    if entity and column:
        raise OptionError("entity sends every row to one entity, entityColumn each row to its own: give one of them")
    if entity and len(entities_of(entity)) != 1:
        raise OptionError("entity: a write goes to one queue or topic; entityColumn sends each row to its own")
    check_entity_path(entities_of(entity) if entity else (), column, access)
    return WriteOptions(
        access=access,
        entity=entities_of(entity)[0] if entity else "",
        entity_column=column,
        message_id=MESSAGE_ID.of(asked),
        operations_per_s=MAX_OPERATIONS.given(asked),
        quarantine=_quarantine(asked, entity),
    )


def access_of(options: Mapping[str, str]) -> Access:
    """Only how to reach the namespace; other options are checked by their names."""
    check_names(options)
    return _access(Asked({name.lower(): value for name, value in options.items()}))


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
        option = _BY_KEY.get(lower)
        if option is not None and side not in option.side:
            raise OptionError(f"{option.name} is an option of a {option.side}, not of a {side}")
    return values


def _access(asked: Asked) -> Access:
    text, secret = CONNECTION_STRING.of(asked), SECRET_NAME.of(asked)
    if bool(text) == bool(secret):
        raise OptionError(
            "give either secretName (env:NAME or file:PATH, looked up by each worker) or connectionString, "
            + ("not both" if text else "none is there")
            + ("" if asked.values.keys() - {_PATH} else f". If this is a table: {TABLES_HAVE_NONE}")
        )
    if text:
        checked(text, CONNECTION_STRING.name)
    elif ";" in secret or "://" in secret:
        # Perhaps the key itself, pasted into the wrong place: not repeated.
        raise OptionError("secretName is the name of a secret (env:NAME or file:PATH), not the connection string")
    return Access(secret, text, CA_FILE.of(asked), TIMEOUT.of(asked), PATIENCE.of(asked))


def _entity(asked: Asked) -> str:
    entity, path = ENTITY.of(asked), asked.values.get(_PATH, "").strip()
    if entity and path:
        raise OptionError("the entity is given twice: as option entity and as the path of load() or start()")
    return entity or path


def _holder(asked: Asked) -> str:
    holder = HOLDER.of(asked)
    is_possible = asked.mode == PEEK_LOCK and asked.is_streaming is not False
    return holder if is_possible else ""


def _quarantine(asked: Asked, entity: str) -> str:
    place = QUARANTINE.of(asked)
    if bool(place) != (ON_REFUSED.of(asked) == SET_ASIDE):
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
    if place and (local_path(place) is None or not place.removeprefix("file:").startswith("/")):
        raise OptionError(
            f"quarantine={shown(place)}: the absolute path of a directory that driver and workers share, or queue:NAME"
        )
    return place
