"""Reads the `Config.json` of Microsoft's Service Bus emulator.

Keys and defaults are the emulator's; the ranges are Azure's where those are wider. Every mistake becomes exactly one
line: file, JSON path, value, what is allowed. All of them are found in one go, so that mending a file takes one round.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway.cli.durations import DURATION_FORM, parse_duration_ms
from spillway.cli.errors import UsageError

if TYPE_CHECKING:
    from spillway.model.entity import QueueSettings

FILE_BYTES_MAX: Final = 16 * 1024 * 1024  # 100,000 queues, each with all its properties, fit in
PROBLEMS_SHOWN_MAX: Final = 20
VALUE_CHARS_MAX: Final = 60
NAMESPACE_CHARS_MAX: Final = 50  # Azure's limit; the name is also a directory's
NAMESPACE_NAMES_RESERVED: Final = ("lock", "tls")  # beside the namespaces in the data directory
SECRET_WORDS: Final = ("key", "secret", "password", "token", "signature", "connectionstring")

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
DAY_MS: Final = 24 * 60 * MINUTE_MS

ROOT_KEYS: Final = ("UserConfig",)
USER_CONFIG_KEYS: Final = ("Namespaces", "Logging")
NAMESPACE_KEYS: Final = ("Name", "Queues", "Topics")
QUEUE_KEYS: Final = ("Name", "Properties")
LOGGING_KEYS: Final = ("Type",)
LOGGING_TYPES: Final = ("File", "Console", "File,Console")
QUEUE_PROPERTIES: Final = (
    "DeadLetteringOnMessageExpiration",
    "DefaultMessageTimeToLive",
    "DuplicateDetectionHistoryTimeWindow",
    "ForwardDeadLetteredMessagesTo",
    "ForwardTo",
    "LockDuration",
    "MaxDeliveryCount",
    "RequiresDuplicateDetection",
    "RequiresSession",
)

# What the emulator takes where a file says nothing.
DEFAULT_TIME_TO_LIVE_MS: Final = 60 * MINUTE_MS
DEFAULT_LOCK_DURATION_MS: Final = MINUTE_MS
DEFAULT_MAX_DELIVERY_COUNT: Final = 3


@dataclass(frozen=True)
class QueueConfig:
    name: str
    settings: "QueueSettings"


@dataclass(frozen=True)
class NamespaceConfig:
    name: str
    queues: list[QueueConfig]


@dataclass(frozen=True)
class EmulatorConfig:
    """What a file asks for, and what about it Azure would refuse although it is served here."""

    namespaces: list[NamespaceConfig]
    warnings: list[str]


class ConfigError(UsageError):
    """A file that cannot be used; one line for each mistake in it."""


def read_config(path: Path) -> EmulatorConfig:
    """The namespaces of a file, or a `ConfigError` with every mistake in it."""
    reader = _Reader(path)
    root = _parse(path, _read_text(path))
    namespaces = reader.root(root)
    if reader.problems:
        shown = reader.problems[:PROBLEMS_SHOWN_MAX]
        if len(reader.problems) > len(shown):
            shown.append(f"{path}: and {len(reader.problems) - len(shown)} more mistakes")
        raise ConfigError(*shown)
    return EmulatorConfig(namespaces, reader.warnings)


def namespace_name_problem(name: str) -> str | None:
    """What is wrong with a namespace's name, or None. It becomes a host label and a directory."""
    allowed = f"letters, digits and '-', a letter or digit first and last, at most {NAMESPACE_CHARS_MAX} characters"
    if not name or len(name) > NAMESPACE_CHARS_MAX or not name.isascii():
        return allowed
    if not (name[0].isalnum() and name[-1].isalnum() and name.replace("-", "").isalnum()):
        return allowed
    if name.lower() in NAMESPACE_NAMES_RESERVED:
        return f"any but {' and '.join(NAMESPACE_NAMES_RESERVED)}, which the data directory has of its own"
    return None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)  # bounded by what is read: a size that a device claims means nothing
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX // 1024 // 1024} MB, the most that is read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8, the encoding that is allowed") from error


def _parse(path: Path, text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_Object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{path}: {where}: {_near(text, error.pos)}: {_json_rule(text, error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply to be a configuration") from error
    except ValueError as error:  # Python refuses thousands of digits, `_refuse_constant` NaN and Infinity
        raise ConfigError(f"{path}: a number that is too long, NaN or Infinity: allowed: plain numbers") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(name)


def _near(text: str, at: int) -> str:
    found = text[at : at + 20].split("\n")[0].strip()
    return json.dumps(found, ensure_ascii=False) if found else "the end of the line or file"


def _json_rule(text: str, error: json.JSONDecodeError) -> str:
    """The parser's complaint in the words of whoever wrote the file."""
    rest = text[error.pos :].lstrip()
    if rest.startswith(("//", "/*", "#")):
        return "JSON has no comments"
    if rest.startswith(("}", "]")) and text[: error.pos].rstrip().endswith(",") or "trailing comma" in error.msg:
        return "JSON has no comma before a closing bracket"
    if rest.startswith("'"):
        return "JSON has double quotes only"
    return f"not JSON: {error.msg}"


class _Object:
    """A JSON object that remembers which of its keys came twice; `json` itself keeps the last in silence."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.values: dict[str, object] = {}
        self.repeated: list[str] = []
        for key, value in pairs:
            if key in self.values:
                self.repeated.append(key)
            self.values[key] = value


@dataclass
class _Reader:
    """Walks the parsed file and collects mistakes with their JSON paths."""

    path: Path
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    # -- the shape of the file

    def root(self, value: object) -> list[NamespaceConfig]:
        root = self.members(value, "$", ROOT_KEYS, required=ROOT_KEYS)
        if "UserConfig" not in root:
            return []
        user = self.members(root["UserConfig"], "$.UserConfig", USER_CONFIG_KEYS, required=("Namespaces",))
        if "Logging" in user:
            self.logging(user["Logging"], "$.UserConfig.Logging")
        if "Namespaces" not in user:
            return []
        at = "$.UserConfig.Namespaces"
        items = self.array(user["Namespaces"], at)
        if not items and isinstance(user["Namespaces"], list):
            self.problem(at, [], "at least one namespace")
        names: dict[str, str] = {}
        return [self.namespace(item, f"{at}[{index}]", names) for index, item in enumerate(items)]

    def logging(self, value: object, at: str) -> None:
        """Checked so that a slip is seen; spillway's log goes to stderr whatever it says."""
        logging = self.members(value, at, LOGGING_KEYS)
        if "Type" in logging and logging["Type"] not in LOGGING_TYPES:
            self.problem(f"{at}.Type", logging["Type"], " or ".join(LOGGING_TYPES))

    def namespace(self, value: object, at: str, names: dict[str, str]) -> NamespaceConfig:
        namespace = self.members(value, at, NAMESPACE_KEYS, required=("Name",))
        name = self.name(namespace, at, names, namespace_name_problem)
        entity_names: dict[str, str] = {}
        queues = [
            self.queue(item, f"{at}.Queues[{index}]", entity_names)
            for index, item in enumerate(self.array(namespace.get("Queues", []), f"{at}.Queues"))
        ]
        for index, item in enumerate(self.array(namespace.get("Topics", []), f"{at}.Topics")):
            named = item.values.get("Name") if isinstance(item, _Object) else item
            self.problem(f"{at}.Topics[{index}]", named, "queues only: topics are not served by this version")
        return NamespaceConfig(name, queues)

    def queue(self, value: object, at: str, names: dict[str, str]) -> QueueConfig:
        from spillway.model.entity import name_problem

        queue = self.members(value, at, QUEUE_KEYS, required=("Name",))
        name = self.name(queue, at, names, name_problem)
        properties = self.members(queue.get("Properties", _Object([])), f"{at}.Properties", QUEUE_PROPERTIES)
        return QueueConfig(name, self.settings(properties, f"{at}.Properties"))

    def settings(self, properties: dict[str, object], at: str) -> "QueueSettings":
        from spillway.model import limits
        from spillway.model.entity import QueueSettings

        settings = QueueSettings()
        settings.dead_letter_on_expiry = self.boolean(properties, at, "DeadLetteringOnMessageExpiration")
        settings.default_ttl_ms = self.duration(
            properties, at, "DefaultMessageTimeToLive", DEFAULT_TIME_TO_LIVE_MS, SECOND_MS, None, "PT1S to for ever"
        )
        settings.lock_duration_ms = self.duration(
            properties,
            at,
            "LockDuration",
            DEFAULT_LOCK_DURATION_MS,
            limits.LOCK_DURATION_MS_MIN,
            limits.LOCK_DURATION_MS_MAX,
            "PT5S to PT5M",
        )
        settings.max_delivery_count = self.integer(
            properties, at, "MaxDeliveryCount", DEFAULT_MAX_DELIVERY_COUNT, 1, limits.DELIVERY_COUNT_MAX_MAX
        )
        self.duplicate_window(properties, at)
        self.unserved(properties, at)
        return settings

    def duplicate_window(self, properties: dict[str, object], at: str) -> None:
        """Checked although it has no effect without RequiresDuplicateDetection: the sample files all have it."""
        key = "DuplicateDetectionHistoryTimeWindow"
        window_ms = self.duration(properties, at, key, 20 * SECOND_MS, 5 * SECOND_MS, 7 * DAY_MS, "PT5S to P7D")
        if 0 < window_ms < 20 * SECOND_MS:
            self.warnings.append(f"{self.path}: {at}.{key}: {_shown(key, properties[key])}: Azure allows PT20S to P7D")

    def unserved(self, properties: dict[str, object], at: str) -> None:
        """What the emulator serves and this version does not is refused: a queue without it is not what was asked."""
        for key in ("RequiresSession", "RequiresDuplicateDetection"):
            if self.boolean(properties, at, key):
                self.problem(f"{at}.{key}", True, "false: not served by this version")
        for key in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
            value = properties.get(key)
            if value is not None and not isinstance(value, str):
                self.problem(f"{at}.{key}", value, 'a string, "" in this version')
            elif value:
                self.problem(f"{at}.{key}", value, '"": forwarding is not served by this version')

    # -- single values

    def problem(self, at: str, value: object, allowed: str) -> None:
        key = at.rpartition(".")[2]
        self.problems.append(f"{self.path}: {at}: {_shown(key, value)}: allowed: {allowed}")

    def members(
        self, value: object, at: str, keys: tuple[str, ...], required: tuple[str, ...] = ()
    ) -> dict[str, object]:
        if not isinstance(value, _Object):
            self.problem(at, value, f"an object with {', '.join(keys)}")
            return {}
        for key in value.repeated:
            self.problem(f"{at}.{_key(key)}", value.values[key], "each key once")
        for key, given in value.values.items():
            if key not in keys:
                self.problem(f"{at}.{_key(key)}", given, f"no such key; the keys here are {', '.join(keys)}")
        for key in required:
            if key not in value.values:
                self.problems.append(f"{self.path}: {at}.{key}: missing: it is required")
        return {key: given for key, given in value.values.items() if key in keys}

    def array(self, value: object, at: str) -> list[object]:
        if isinstance(value, list):
            return value
        self.problem(at, value, "an array")
        return []

    def name(
        self, parent: dict[str, object], at: str, names: dict[str, str], name_problem: Callable[[str], str | None]
    ) -> str:
        if "Name" not in parent:
            return ""
        value = parent["Name"]
        if not isinstance(value, str):
            self.problem(f"{at}.Name", value, "a string")
            return ""
        wrong = name_problem(value)
        if wrong is not None:
            self.problem(f"{at}.Name", value, wrong)
            return value
        first = names.setdefault(value.lower(), at)
        if first != at:
            self.problem(f"{at}.Name", value, f"a name of its own, whatever its case: {first} has this one")
        return value

    def boolean(self, properties: dict[str, object], at: str, key: str) -> bool:
        value = properties.get(key, False)
        if not isinstance(value, bool):
            self.problem(f"{at}.{key}", value, "true or false")
            return False
        return value

    def integer(self, properties: dict[str, object], at: str, key: str, default: int, low: int, high: int) -> int:
        value = properties.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.problem(f"{at}.{key}", value, f"a whole number from {low} to {high}")
            return default
        return value

    def duration(
        self,
        properties: dict[str, object],
        at: str,
        key: str,
        default_ms: int,
        low_ms: int,
        high_ms: int | None,
        span: str,
    ) -> int:
        """Milliseconds; `high_ms` None allows for ever, which is 0 (`model.entity.FOR_EVER_MS`)."""
        from spillway.model.entity import FOR_EVER_MS

        if key not in properties:
            return default_ms
        value = properties[key]
        given_ms = parse_duration_ms(value) if isinstance(value, str) else None
        allowed = f"a duration from {span}, written {DURATION_FORM}"
        if given_ms is None:
            self.problem(f"{at}.{key}", value, allowed)
            return default_ms
        if given_ms == FOR_EVER_MS and high_ms is None:
            return FOR_EVER_MS
        if given_ms < low_ms or (high_ms is not None and given_ms > high_ms):
            self.problem(f"{at}.{key}", value, allowed)
            return default_ms
        return given_ms


def _key(key: str) -> str:
    """A key as a step of a JSON path, whatever somebody wrote there."""
    shown = key if len(key) <= VALUE_CHARS_MAX else key[:VALUE_CHARS_MAX] + "…"
    return shown if shown.replace("_", "").isalnum() else json.dumps(shown)


def _shown(key: str, value: object) -> str:
    """A value in a message: short, on one line, and never a secret that strayed into the file."""
    if isinstance(value, _Object):
        return "an object"
    if isinstance(value, list):
        return "an array" if value else "[]"
    text = json.dumps(value)
    if any(word in key.lower() for word in SECRET_WORDS) or "sharedaccess" in text.lower():
        return "(a value that is not shown)"
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"
