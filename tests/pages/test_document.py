"""A page is one file that loads nothing, with the style of all pages and its own."""

import re
from importlib import resources
from pathlib import Path

from spillway.pages.document import document, figures, legend, section, verdict, write_page
from spillway.pages.markup import tag
from spillway.pages.table import NAME, Column, table

HOSTILE = "<script>alert('x')</script>\"&'"


def test_a_page_has_both_styles_and_may_load_nothing() -> None:
    page = str(document(HOSTILE, "p { color: red; }", tag("p", "x")))
    assert page.startswith('<!doctype html><html lang="en"><head><meta charset="utf-8">')
    assert page.endswith("<body><p>x</p></body></html>\n")
    assert "default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;" in page
    assert page.index("max-width: 1040px") < page.index("p { color: red; }") < page.index("</style>")
    assert "<script" not in page


def test_the_style_comes_with_the_package_and_loads_nothing() -> None:
    style = resources.files("spillway.pages").joinpath("page.css").read_text(encoding="utf-8")
    assert not re.search(r"@import|url\(|<", style)


def test_a_page_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_page(path, document("x", "", "text"))
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]
    assert "<body>text</body>" in path.read_text(encoding="utf-8")


def test_blocks_take_text_of_anybody() -> None:
    made = [
        section(HOSTILE, HOSTILE, id=HOSTILE),
        verdict(HOSTILE, HOSTILE, is_bad=True),
        figures([(HOSTILE, HOSTILE)]),
        legend([("away", HOSTILE)]),
        table((Column(HOSTILE, NAME), HOSTILE), [(HOSTILE, HOSTILE)], (HOSTILE, 1)),
    ]
    for block in made:
        assert "script>" not in str(block).replace("script&gt;", "")
        assert str(block).count("alert") >= 1


def test_a_table_has_numbers_right_text_left_and_a_dash_for_the_unknown() -> None:
    made = str(table((Column("entity", NAME), "messages"), [("orders", 40_000), ("bills", None)], ("all", 40_000)))
    assert made == (
        '<div class="scroll"><table><tr><th class="text name">entity</th><th>messages</th></tr>'
        '<tr><td class="text name">orders</td><td>40,000</td></tr>'
        '<tr><td class="text name">bills</td><td>–</td></tr>'
        '<tr class="sum"><td class="text name">all</td><td>40,000</td></tr></table></div>'
    )
    assert "<th" not in str(table(("", ""), [(1, 2)]))
