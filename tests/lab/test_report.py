"""The report: one page that needs nothing else, and in which nothing that a client wrote is markup."""

import html.parser
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from spillway.lab.histories import BEGINS, MENDED
from spillway.lab.picture import draw
from spillway.lab.report import ScenarioPart, senders_of, write_report
from spillway.lab.scenarios import scenario_of
from spillway.lab.timeline import read_timeline
from tests.lab.lines import Line, event, fault, judged, outage, whole

HOSTILE = "<script>alert('x')</script>\"&'"
LINES = [line for number in range(8) for line in whole(f"producer0-{number}", number + 1, 1.0 + number)] + outage()
VOID = {"meta", "br"}


def part(lines: list[Line], about: str = "the primary is killed", **found: Any) -> ScenarioPart:
    verdict = asdict(judged(lines)) | found
    return ScenarioPart(verdict, about, senders_of(scenario_of("kill")), read_timeline(lines))


def written(tmp_path: Path, *parts: ScenarioPart) -> str:
    write_report(tmp_path / "report.html", list(parts), "8 messages.")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    return (tmp_path / "report.html").read_text(encoding="utf-8")


class Balanced(html.parser.HTMLParser):
    """Fails on an element that is not closed, or closed by another."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    page = written(tmp_path, part(LINES), part(LINES, scenario="freeze"))
    reader = Balanced()
    reader.feed(page)
    assert reader.open == []
    assert "script" not in reader.tags
    assert not re.search(r"\bsrc(set)?=|@import|url\(", page)
    assert re.findall(r'href="([^#"][^"]*)"', page) == []
    assert re.findall(r"https?://[^\"']*", page) == ["http://www.w3.org/2000/svg"] * 2


def test_the_verdict_comes_first(tmp_path: Path) -> None:
    page = written(tmp_path, part(LINES))
    places = [page.index(words) for words in ("Nothing was lost.", "<svg", "What happened", "What it cost")]
    assert places == sorted(places)


def test_a_loss_is_the_first_thing_to_be_read(tmp_path: Path) -> None:
    page = written(tmp_path, part(LINES), part(LINES, scenario="freeze", lost=3, problems=["3 are nowhere"]))
    assert "Nothing was lost" not in page
    assert page.index("3 acknowledged messages were lost.") < page.index("freeze: 3 are nowhere") < page.index("<table")


def test_another_broken_promise_is_not_called_a_loss(tmp_path: Path) -> None:
    assert "A promise was broken." in written(tmp_path, part(LINES, problems=["too few were diverted"]))


def test_nothing_that_a_client_or_a_user_wrote_is_markup(tmp_path: Path) -> None:
    lines = [
        *LINES,
        event("failed-over", 8.6, HOSTILE, error=HOSTILE),
        event("recovered", 8.7, HOSTILE),
        {"t": 10**10, "p": "lab", "op": "note", "text": HOSTILE},
        {"t": 10**10, "p": "lab", "op": "ledger", "namespace": HOSTILE, "operations": {HOSTILE: 1}},
    ]
    page = written(tmp_path, part(lines, HOSTILE, scenario=HOSTILE, problems=[HOSTILE]))
    assert "<script" not in page
    reader = Balanced()
    reader.feed(page)
    assert reader.open == []
    assert "script" not in reader.tags
    assert sum(HOSTILE in text for text in reader.texts) >= 7


def test_the_picture_is_a_whole_svg_with_the_outage_the_states_and_both_panels() -> None:
    svg = ElementTree.fromstring(str(draw(read_timeline(LINES))))
    classes = [element.get("class", "") for element in svg.iter()]
    for name in (
        "outage",
        "state healthy",
        "state suspect",
        "state failed-over",
        "to-primary",
        "delivered",
        "diverted",
    ):
        assert name in classes, name
    texts = "".join(element.text or "" for element in svg.iter())
    for words in ("primary", "producer0", "messages/s", "waiting in the backlog"):
        assert words in texts


@pytest.mark.parametrize("lines", [[], [LINES[0]], outage()], ids=["nothing", "one send", "no messages"])
def test_a_run_that_ended_early_is_drawn_too(lines: list[Line]) -> None:
    assert ElementTree.fromstring(str(draw(read_timeline(lines)))).tag.endswith("svg")


def test_every_coordinate_lies_inside_the_picture() -> None:
    svg = ElementTree.fromstring(str(draw(read_timeline(LINES))))
    _, _, width, height = (float(number) for number in svg.get("viewBox", "").split())
    points = [pair for element in svg.iter() for pair in (element.get("points") or "").split()]
    assert points
    for pair in points:
        x, y = (float(number) for number in pair.split(","))
        assert 0 <= x <= width and 0 <= y <= height


def test_a_long_run_has_no_more_points_than_a_short_one() -> None:
    long = [line for number in range(3_000) for line in whole(f"producer0-{number}", number, 1.0 + number)]
    assert len(read_timeline(long).backlog) <= 240


def test_the_story_is_told_in_order_with_what_each_producer_did(tmp_path: Path) -> None:
    page = written(tmp_path, part([*LINES, {"t": 4 * 10**9, "p": "lab", "op": "note", "text": "the lights went out"}]))
    story = re.findall(r"<li><time>([\d.]+) s</time><span>(.*?)</span>", page)
    assert [float(at) for at, _ in story] == sorted(float(at) for at, _ in story)
    told = " ".join(text for _, text in story)
    for words in (
        "producer0 suspects",
        "producer0 fails over",
        "The lights went out.",
        "A ping of producer0 got through",
    ):
        assert words in told


def test_a_fault_that_comes_back_and_a_backlog_queue_that_refuses_are_told(tmp_path: Path) -> None:
    lines = [*LINES, fault(BEGINS, 9.5), event("backlog-queue-removed", 9.7), event("backlog-queue-removed", 9.8)]
    page = written(tmp_path, part([*lines, fault(MENDED, 9.9)]))
    assert page.count("The fault begins: the primary is killed.") == page.count("The fault is back.") == 1
    assert page.index("The fault is back.") < page.index("A backlog queue refused a message")
    assert "(2 times in all)" in page


def test_where_nothing_was_diverted_there_is_no_backlog_to_draw() -> None:
    lines = [*whole("producer0-0", 1), fault(BEGINS, 2.0), fault(MENDED, 3.0)]
    assert "waiting in the backlog" not in str(draw(read_timeline(lines)))
    assert "waiting in the backlog" in str(draw(read_timeline(LINES)))


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("kill", "fail over after 1 s of failures, and then ping the primary every second; a call is held"),
        ("flapping", "fail over at the first failure"),
        ("both-down", "a call that neither side takes fails, after 10 s at the latest"),
    ],
)
def test_how_the_senders_are_set_up_is_said_in_words(scenario: str, words: str) -> None:
    assert words in senders_of(scenario_of(scenario))
