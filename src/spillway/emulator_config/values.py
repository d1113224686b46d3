"""Values of a JSON file that somebody wrote by hand, each checked with a line for what is wrong about it."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spillway.model.entity import FOR_EVER_MS, parse_setting_ms

FILE_BYTES_MAX: Final = 16 * 1024 * 1024  # 100,000 queues, each with all its properties, fit in
OBJECTS_MAX: Final = 500_000  # 100,000 queues and their properties; a file of empty ones would cost a gigabyte
VALUE_CHARS_MAX: Final = 60
SECRET_WORDS: Final = ("key", "secret", "password", "token", "signature", "connectionstring")


class ConfigError(Exception):
    """A file that cannot be used; one line for each mistake in it."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def read_text(path: Path) -> str:
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


def parse_json(path: Path, text: str) -> object:
    made = itertools.count(1)

    def make_object(pairs: list[tuple[str, object]]) -> JsonObject:
        if next(made) > OBJECTS_MAX:
            raise ConfigError(f"{path}: more than {OBJECTS_MAX} objects, the most that are read")
        return JsonObject(pairs)

    try:
        return json.loads(text, object_pairs_hook=make_object, parse_constant=_refuse_constant)
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
    """What stands there, unless the line may have a secret in it: it was no JSON, so nobody knows what is a value."""
    line = text[text.rfind("\n", 0, at) + 1 : at + 200].split("\n")[0]
    if is_secret(line, line):
        return "(a line that is not shown)"
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


class JsonObject:
    """A JSON object that remembers which of its keys came twice; `json` itself keeps the last in silence."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.values: dict[str, object] = {}
        self.repeated: list[str] = []
        for key, value in pairs:
            if key in self.values:
                self.repeated.append(key)
            self.values[key] = value


@dataclass
class Values:
    """Takes values out of a parsed file and collects mistakes with their JSON paths."""

    path: Path
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def problem(self, at: str, value: object, allowed: str) -> None:
        key = at.rpartition(".")[2]
        self.problems.append(f"{self.path}: {at}: {shown(key, value)}: allowed: {allowed}")

    def members(
        self, value: object, at: str, keys: tuple[str, ...], required: tuple[str, ...] = ()
    ) -> dict[str, object]:
        if not isinstance(value, JsonObject):
            self.problem(at, value, f"an object with {', '.join(keys)}")
            return {}
        for key in value.repeated:
            self.problem(f"{at}.{key_shown(key)}", value.values[key], "each key once")
        for key, given in value.values.items():
            if key not in keys:
                self.problem(f"{at}.{key_shown(key)}", given, f"no such key; the keys here are {', '.join(keys)}")
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
        self,
        parent: dict[str, object],
        at: str,
        names: dict[str, str],
        name_problem: Callable[[str], str | None],
        prefix: str = "",
    ) -> str:
        """The member `Name`. `names` are those that were given before, with `prefix`, and where."""
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
        first = names.setdefault((prefix + value).lower(), at)
        if first != at:
            self.problem(f"{at}.Name", value, f"a name of its own, whatever its case: {first} has this one")
        return value

    def text(self, parent: dict[str, object], at: str, key: str) -> str | None:
        """A text of the file; None if it is not there or no text, and the latter is a problem."""
        value = parent.get(key)
        if value is not None and not isinstance(value, str):
            self.problem(f"{at}.{key}", value, "a string")
            return None
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
        if key not in properties:
            return default_ms
        value = properties[key]
        allowed = f"a duration from {span}, written like P1D, PT1H30M or PT5S"
        try:
            given_ms = parse_setting_ms(value if isinstance(value, str) else "")
        except ValueError:
            self.problem(f"{at}.{key}", value, allowed)
            return default_ms
        if given_ms == FOR_EVER_MS and high_ms is None:
            return FOR_EVER_MS
        if given_ms < low_ms or (high_ms is not None and given_ms > high_ms):
            self.problem(f"{at}.{key}", value, allowed)
            return default_ms
        return given_ms


def key_shown(key: str) -> str:
    """A key as a step of a JSON path, whatever somebody wrote there."""
    text = key if len(key) <= VALUE_CHARS_MAX else key[:VALUE_CHARS_MAX] + "…"
    return text if text.replace("_", "").isalnum() else json.dumps(text)


def shown(key: str, value: object) -> str:
    """A value in a message: short, on one line, and never a secret that strayed into the file."""
    if isinstance(value, JsonObject):
        return "an object"
    if isinstance(value, list):
        return "an array" if value else "[]"
    if is_secret(key, value):
        return "(a value that is not shown)"
    text = json.dumps(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


def is_secret(key: str, value: object) -> bool:
    """Whether a value is a secret: it looks like one, or its key says so."""
    return any(word in key.lower() for word in SECRET_WORDS) or "sharedaccess" in str(value).lower()


def one_line(text: str) -> str:
    return " ".join(text.split())
