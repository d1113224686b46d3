"""HTML by type: text is escaped wherever it is put, and only what `tag` made is not."""

import re
from pathlib import Path

from spillway.pages.markup import Markup, joined, tag

HOSTILE = "<script>alert('x')</script>\"&'"
SAFE = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;&#x27;"
SOURCE = Path(__file__).resolve().parents[2] / "src" / "spillway"


def test_text_is_escaped_and_markup_is_not() -> None:
    assert str(tag("p", HOSTILE)) == f"<p>{SAFE}</p>"
    assert str(tag("p", tag("b", HOSTILE), " and ", Markup("<br>"))) == f"<p><b>{SAFE}</b> and <br></p>"
    assert str(joined(HOSTILE, [tag("i", HOSTILE), (HOSTILE,)])) == f"{SAFE}<i>{SAFE}</i>{SAFE}"


def test_markup_that_became_text_is_escaped_like_any_other() -> None:
    """Nobody makes HTML by an f-string without seeing it on the page."""
    assert str(tag("p", f"{tag('b', 'x')}")) == "<p>&lt;b&gt;x&lt;/b&gt;</p>"


def test_attributes_are_escaped_left_out_and_called_as_html_calls_them() -> None:
    made = tag("a", "x", href=HOSTILE, class_="soft", aria_label="a b", id=None)
    assert str(made) == f'<a href="{SAFE}" class="soft" aria-label="a b">x</a>'
    assert str(tag("rect", x=1.0, y=2.505, width=3.14159, height=0.0, rx=2)) == (
        '<rect x="1" y="2.5" width="3.14" height="0" rx="2"/>'
    )


def test_elements_are_closed_as_they_are_in_html() -> None:
    assert str(tag("i", class_="away")) == '<i class="away"></i>'
    assert str(tag("rect", tag("title", "x"))) == "<rect><title>x</title></rect>"
    assert str(tag("meta", name="a")) == '<meta name="a">'


def test_whole_numbers_are_shown_as_people_write_them_and_nothing_is_nothing() -> None:
    assert str(tag("td", 1_234_567)) == "<td>1,234,567</td>"
    assert str(tag("td", None)) == "<td></td>"


def test_no_other_room_writes_html_by_hand() -> None:
    by_hand = re.compile(r"html\.escape|<(?:html|svg|table|t[rdh]|div|span|section|rect|p)\b[^>]*>")
    found = [
        f"{path.relative_to(SOURCE)}: {text.group()}"
        for path in SOURCE.rglob("*.py")
        if "pages" not in path.relative_to(SOURCE).parts[:1]
        for text in [by_hand.search(path.read_text(encoding="utf-8"))]
        if text is not None
    ]
    assert found == []
