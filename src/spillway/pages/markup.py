"""HTML by type: only a `Markup` is HTML. Everything else that is put into an element is text, and escaped.

    tag("p", "told by ", tag("b", name), class_="soft")

So nothing that a client or a user wrote can become an element, and nobody has to think of it.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Union

# Elements without an end, and those of pictures that may close themselves.
VOID: Final = frozenset({"meta", "br"})
SHAPES: Final = frozenset({"rect", "line", "polygon", "polyline"})


@dataclass(frozen=True)
class Markup:
    """HTML, made by `tag`. The style of a page, a file of ours, is the only one that is made otherwise."""

    text: str

    def __str__(self) -> str:
        return self.text


# Whole numbers are shown as people write them, 40,000; others come as text, with the digits that they deserve.
Content = Union[Markup, str, int, None, Sequence["Content"]]  # noqa: UP007 - an alias that names itself
Attribute = str | float | None


def tag(name: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """An element. `class_` is `class`, `aria_label` is `aria-label`; an attribute that is None is left out."""
    given = "".join(f' {_name(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None)
    inside = joined(*content).text
    if name in VOID:
        assert not inside, f"{name} has no content"
        return Markup(f"<{name}{given}>")
    if name in SHAPES and not inside:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{inside}</{name}>")


def joined(*content: Content) -> Markup:
    """Pieces, one after the other."""
    return Markup("".join(_text(each) for each in content))


def _text(content: Content) -> str:
    if isinstance(content, Markup):
        return content.text
    if isinstance(content, str):
        return html.escape(content)
    if content is None:
        return ""
    if isinstance(content, int):
        return f"{content:,}"
    return "".join(_text(each) for each in content)


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    """Coordinates to a hundredth of a pixel, without zeros that say nothing."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return html.escape(str(value))
