"""An option of a job, declared where its value is: in the annotation of a field of the job's config.

    file_mb: Annotated[int, Option("N", "Size of a file, about.", 1, 10_000)] = 256

Name, type and default are the field's own. The command line, the parser for spark-submit, what is refused and the
table in the guide are made of it. A field without one is for programs alone. Nothing here knows Spark.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import UnionType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from spillway.spark.platform.access import SECRET, OptionError, shown

# What was typed: of a flag whether it was, of an option that is repeated all of them; None: nothing.
Typed = str | bool | list[str] | None
UNIT: Final = "_s"  # of a field that is seconds


@dataclass(frozen=True)
class Option:
    """What a user has to know of one field. `metavar` is empty for a flag; `help` is a sentence or two."""

    metavar: str
    help: str
    least: float | None = None
    most: float | None = None
    name: str = ""  # if it is not the field's, with dashes and without its unit
    parse: Callable[[str], Any] | None = None  # one text into one value; ValueError with what is wrong
    is_repeated: bool = False  # several times, one value each
    gather: Callable[[list[Any]], Any] = tuple  # the values of one that is repeated
    is_secret: bool = False  # no repr shows its field: field(repr=False)
    default: str = ""  # in words, where the field's does not say it
    alone: str = ""  # what it means without a value, by spark-submit
    more: str = ""  # the rest of what the guide says, in its own marks


@dataclass(frozen=True)
class DeclaredOption:
    """An option with the field that it is declared on."""

    field: str
    name: str
    kind: Any  # of the field, or of each value where parse makes none
    option: Option
    is_required: bool
    default: Any  # of the field; None if it is required, or made anew each time
    choices: tuple[str, ...] = ()  # of a field that is Literal

    @property
    def is_flag(self) -> bool:
        return not self.option.metavar

    def read(self, typed: Typed) -> Any:
        """The field's value. `OptionError` with the option's name."""
        if isinstance(typed, bool):
            return typed
        if isinstance(typed, list):
            return self.option.gather([self._value(text) for text in typed])
        assert typed is not None, "what was not typed is left to the default"
        return self._value(typed)

    def _value(self, text: str) -> Any:
        make = self.option.parse or self.kind
        try:
            return make(text)
        except OptionError:
            raise
        except ValueError as error:
            why = f"{self.allowed()}, not {shown(text)}" if self.option.parse is None else str(error)
            raise OptionError(f"{self.name}: {why}") from None

    def check(self, value: Any) -> None:
        """Of a config, whoever has made it: that what is needed is there, and numbers and words are allowed ones."""
        if self.is_required and (value == () or (isinstance(value, str) and not value.strip())):
            raise OptionError(
                f"{self.name} is missing: {self.option.help[:1].lower()}{self.option.help[1:].rstrip('.')}"
            )
        if self.choices and value not in self.choices:
            raise OptionError(f"{self.name}: {self.allowed()}, not {shown(str(value))}")
        if self.option.least is not None and self.option.most is not None:
            if not self.option.least <= value <= self.option.most:
                raise OptionError(f"{self.name}: {self.allowed()}, not {value:.10g}")

    def allowed(self) -> str:
        """`a whole number from 1 to 10,000`, `restart or remaining`."""
        if self.choices:
            return " or ".join(choice for choice in self.choices if choice)
        what = "a whole number" if self.kind is int else "seconds" if self.field.endswith(UNIT) else "a number"
        return f"{what} {self.limits()}".strip()

    def limits(self) -> str:
        if self.option.least is None or self.option.most is None:
            return ""
        return limits_text(self.option.least, self.option.most)

    def default_text(self) -> str:
        if self.option.default or self.default in (None, "", ()) or self.default is False:
            return self.option.default
        return f"{self.default:,.10g}" if isinstance(self.default, int | float) else str(self.default)

    def sentence(self) -> str:
        """The help of a command line: with the limits and the default."""
        default = self.default_text()
        rest = "; ".join(part for part in (self.limits(), f"by default {default}" if default else "") if part)
        return " ".join(part for part in (self.option.help, as_sentence(rest), self.repeat()) if part)

    def paragraph(self) -> str:
        """The same for the guide, which has a column for the default."""
        parts = (self.option.help, self.option.more, as_sentence(self.limits()), self.repeat())
        return " ".join(part for part in parts if part)

    def repeat(self) -> str:
        return "Repeat it." if self.option.is_repeated else ""


def limits_text(least: float, most: float) -> str:
    return f"from {least:,.10g} to {most:,.10g}"


def as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def declared_in(config: type[Any]) -> tuple[DeclaredOption, ...]:
    """The options of a config, in the order of its fields."""
    found = []
    for field in fields(config):
        if get_origin(field.type) is Annotated:
            kind, *notes = get_args(field.type)
            found += [_declared(field, kind, note) for note in notes if isinstance(note, Option)]
    return tuple(found)


def _declared(field: Field[Any], kind: Any, option: Option) -> DeclaredOption:
    if isinstance(kind, UnionType):
        (kind,) = [each for each in get_args(kind) if each is not type(None)]
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if choices:
        kind = str
    if option.is_repeated and get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    assert not option.is_secret or not field.repr, f"{field.name} is a secret: field(repr=False)"
    assert (option.least is None) == (option.most is None), f"{field.name}: limits are two or none"
    assert option.metavar or not option.is_repeated, f"{field.name}: a flag is said once"
    name = option.name or field.name.removesuffix(UNIT).removeprefix("is_").replace("_", "-")
    is_required = field.default is MISSING and field.default_factory is MISSING
    default = None if field.default is MISSING else field.default
    return DeclaredOption(field.name, name, kind, option, is_required, default, choices)


def read_all(config: type[Any], typed: Mapping[str, Typed]) -> dict[str, Any]:
    """The fields that were typed, by their names; what was not typed keeps its default."""
    options = {each.field: each for each in declared_in(config)}
    return {field: options[field].read(text) for field, text in typed.items() if text is not None and text != []}


def check_options(config: Any) -> None:
    """That a config has what its options allow: `OptionError` with the name of the first that has not."""
    for each in declared_in(type(config)):
        each.check(getattr(config, each.field))


# Options that several jobs have, as types of their fields. Those that hold a secret have `field(repr=False)`.
Secret = Annotated[
    str,
    Option(
        "WHERE",
        "`env:NAME` or `file:PATH`, where the connection string is found by every process that connects.",
        default=f"`{SECRET}`",
    ),
]
ConnectionString = Annotated[
    str,
    Option(
        "TEXT",
        "The connection string itself. Everyone on a machine can read the options of its processes.",
        is_secret=True,
    ),
]
CaFile = Annotated[str, Option("FILE", "Trust this certificate authority alone.")]
