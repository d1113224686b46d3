"""Charts: one axis across for all of them, scales that read well, nothing outside of the picture."""

import re
from xml.etree import ElementTree

import pytest

from spillway.pages.chart import RIGHT, WIDTH, Axis, Mark, Panel, number, round_up, strip_name, strip_text, svg
from spillway.pages.marks import SECOND_US, clock_marks, elapsed_marks, step_of

HOSTILE = "<script>alert('x')</script>\"&'"
EPOCH_S = 1_800_000_000  # 15 January 2027, 08:00 UTC


def test_an_axis_goes_from_edge_to_edge_and_nothing_lies_outside() -> None:
    axis = Axis(10, 20, 60)
    assert (axis.x(10), axis.x(20), axis.x(15)) == (60, WIDTH - RIGHT, (60 + WIDTH - RIGHT) / 2)
    assert (axis.x(-5), axis.x(99)) == (60, WIDTH - RIGHT)


def test_a_moment_is_seen_also_at_the_right_edge() -> None:
    box = str(Axis(0, 1_000_000, 60).box("away", 1_000_000, 1_000_000, 5, 14))
    assert f'x="{WIDTH - RIGHT - 2}" y="5" width="2" height="14"' in box


@pytest.mark.parametrize(
    ("value", "top"), [(1, 1), (1.1, 1.2), (0.03, 0.03), (7, 8), (99, 100), (101, 120), (1_300_000, 1_600_000)]
)
def test_a_scale_ends_at_a_number_that_reads_well(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top)


def test_half_of_a_small_scale_is_not_rounded_away() -> None:
    """It was `2` at half of a scale that ends at 3."""
    assert [number(3.0 * part, 3.0) for part in (0.0, 0.5, 1.0)] == ["0", "1.5", "3"]
    assert [number(value, 1e7) for value in (0, 5e5, 2.5e6)] == ["0", "500,000", "2.5 M"]


def test_bars_stand_on_each_other_and_areas_on_the_floor() -> None:
    panel = Panel.up_to(8, Axis(0, 4, 60), 10, 100)
    assert (panel.floor, panel.up(0), panel.up(8), panel.up(4)) == (110, 110, 10, 60)
    assert 'y="60" ' in str(panel.bar("a", 0, 1, 4)) and 'height="50"' in str(panel.bar("a", 0, 1, 4))
    assert 'y="10" ' in str(panel.bar("b", 0, 1, 4, below=4))
    assert str(panel.area("a", [(0, 8), (4, 0)])) == (
        f'<polygon class="a" points="60,110.0 60.0,10.0 {WIDTH - RIGHT:.1f},110.0 {WIDTH - RIGHT},110.0"/>'
    )


def test_a_picture_is_whole_and_nothing_in_it_is_markup() -> None:
    axis = Axis(0, 10, 60)
    panel = Panel.up_to(7, axis, 20, 100)
    strip = [strip_name(HOSTILE, axis, 1), strip_text(HOSTILE, axis, 0, 10, 1, 10.0)]
    marks = axis.marks(120, [Mark(1, (HOSTILE, HOSTILE))])
    drawn = svg(150, HOSTILE, strip, panel.grid(HOSTILE), panel.line("a", [(0, 1), (10, 7)]), marks)
    picture = ElementTree.fromstring(str(drawn))
    assert picture.get("viewBox") == f"0 0 {WIDTH} 150" and picture.get("aria-label") == HOSTILE
    assert not [element for element in picture.iter() if element.tag.endswith("script")]
    assert sum((element.text or "") == HOSTILE for element in picture.iter()) == 5


def test_a_long_name_is_cut_and_whole_under_the_pointer() -> None:
    axis = Axis(0, 10, 60)
    assert str(strip_name("short", axis, 0)).endswith(">short</text>")
    cut = str(strip_name("a" * 30 + "end", axis, 0))
    assert re.search(r">…a+end<title>a{30}end</title></text>$", cut)
    assert strip_text("much too long", axis, 0, 0.1, 0, 10.0) is None


@pytest.mark.parametrize(
    ("length_s", "fit", "step_s"), [(5, 9, 1), (100, 9, 15), (4_000, 9, 600), (86_400 * 30, 9, 86_400 * 4)]
)
def test_times_are_marked_at_steps_that_people_count_in(length_s: float, fit: int, step_s: int) -> None:
    assert step_of(length_s, fit) == step_s


def test_times_of_day_have_their_day_at_the_left_and_at_midnight() -> None:
    begins = (EPOCH_S + 15 * 3_600) * SECOND_US  # an hour before midnight
    marks = clock_marks(Axis(begins + 1, begins + 7_200 * SECOND_US, 60))
    assert [mark.texts for mark in marks] == [
        ("23:15", "15 Jan 2027"), ("23:30",), ("23:45",), ("16 Jan",),
        ("00:15",), ("00:30",), ("00:45",), ("01:00",),
    ]  # fmt: skip


def test_seconds_since_a_beginning_are_marked_too() -> None:
    assert [mark.texts for mark in elapsed_marks(Axis(0, 31.5, 60))][:3] == [("0 s",), ("5 s",), ("10 s",)]


def test_what_would_be_cut_off_at_the_right_has_a_tick_and_no_text() -> None:
    drawn = Axis(0, 10, 60).marks(0, [Mark(10, ("last",))])
    assert [str(each)[:5] for each in drawn] == ["<line"]
