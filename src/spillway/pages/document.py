"""A page as a file: head, style and body, and the blocks that every report has."""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Final

from spillway.pages.markup import Content, Markup, joined, tag

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"  # it loads nothing, and runs nothing


def document(title: str, style: str, *body: Content) -> Markup:
    """`style` is a report's own, behind that of all pages."""
    common = resources.files("spillway.pages").joinpath("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", title),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", **{"http-equiv": "Content-Security-Policy", "content": POLICY}),
        tag("style", Markup(f"{common}{style}")),
    )
    return joined(Markup("<!doctype html>"), tag("html", head, tag("body", *body), lang="en"), "\n")


def style_of(package: str, name: str) -> str:
    """A report's own style, which lies beside its code."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def write_page(path: Path, page: Markup) -> None:
    """The file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(path.name + ".part")
    whole.write_text(str(page), encoding="utf-8")
    whole.replace(path)


def section(title: str, *content: Content, id: str | None = None) -> Markup:
    return tag("section", tag("h2", title), *content, id=id)


def soft(*content: Content) -> Markup:
    """A paragraph that explains."""
    return tag("p", *content, class_="soft")


def bad(text: str) -> Markup:
    """A paragraph that warns."""
    return tag("p", text, class_="bad-text")


def verdict(title: str, *paragraphs: Content, is_bad: bool = False) -> Markup:
    """What is to be read first."""
    said = [tag("p", paragraph) for paragraph in paragraphs]
    return tag("div", tag("strong", title), said, class_="verdict bad" if is_bad else "verdict")


def figures(numbers: Iterable[tuple[Content, str]]) -> Markup:
    """Large numbers, each with its words."""
    return tag("div", [tag("div", tag("b", value), tag("span", words)) for value, words in numbers], class_="figures")


def legend(kinds: Iterable[tuple[str, str]]) -> Markup:
    """What the colours of a chart are: the class of each, and its words."""
    return tag("ul", [tag("li", tag("i", class_=kind), words) for kind, words in kinds], class_="key")
