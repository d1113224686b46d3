"""The report: one HTML page that needs nothing else, with the timeline of each scenario as a picture.

Everything in it comes from the histories, like the verdict. What was written by a client is shown as text, never as
markup.
"""

import datetime
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spillway import __version__
from spillway.lab import picture
from spillway.lab.histories import read_lines
from spillway.lab.pages import Pages, pages_section
from spillway.lab.report_words import CHARGED, what_happened
from spillway.lab.scenarios import Scenario
from spillway.lab.timeline import Timeline, read_timeline
from spillway.pages.document import bad, document, figures, legend, section, soft, style_of, verdict, write_page
from spillway.pages.markup import Content, Markup, joined, tag
from spillway.pages.table import TEXT, UNKNOWN, WORDS, Column, table

FIGURES: Final = (
    ("lost", "lost"),
    ("acknowledged", "acknowledged"),
    ("diverted", "diverted"),
    ("duplicated", "delivered twice"),
    ("failover_s", "to fail over"),
    ("return_s", "to return"),
)
NUMBERS: Final = (
    ("sent", "distinct messages that the producers tried to send"),
    ("acknowledged", "confirmed to the producers"),
    ("diverted", "taken by a backlog queue on the secondary instead of the primary"),
    ("syphoned", "brought home from the backlog"),
    ("delivered", "distinct messages that the consumers received"),
    ("duplicated", "stored on the primary more than once"),
    ("lost", "acknowledged, and nowhere: neither delivered nor still stored anywhere"),
    ("out_of_order", "stored on the primary behind a later message of the same producer"),
    ("failed_attempts", "sends whose caller got an error, and sent again"),
    (
        "false_acknowledgements",
        "callers that got a wrong answer: that it is safe, or that it was not sent",
    ),
    ("pings", "sent to the primary while it was unavailable"),
)
JUDGED: Final = (
    "How this was judged: every client wrote down the answers it got, each in a file of its own. When all was over, a "
    "process that was given nothing but these files looked for every acknowledged message: whether it was delivered, "
    "unchanged, once, and not again after it was completed. What the senders counted had no say in it."
)


@dataclass(frozen=True)
class ScenarioPart:
    """One scenario: what the verdict found, and when it happened."""

    found: dict[str, Any]
    about: str
    senders: str  # how they were set up, in words
    timeline: Timeline
    pages: Pages | None = None  # what the jobs on Spark made of it

    @classmethod
    def of(
        cls, found: dict[str, Any], scenario: Scenario, directory: Path, made: Pages | None = None
    ) -> "ScenarioPart":
        return cls(found, scenario.about, senders_of(scenario), read_timeline(read_lines(directory)), made)


def senders_of(scenario: Scenario) -> str:
    tolerated = f"after {scenario.interval_s:g} s of failures" if scenario.interval_s else "at the first failure"
    limit_s = scenario.operation_timeout_s + scenario.interval_s
    if scenario.pending == "hold":
        held = f"a call is held until one side takes its message, for {limit_s:g} s at most"
    else:
        held = f"a call that neither side takes fails, after {limit_s:g} s at the latest"
    return f"The senders fail over {tolerated}, and then ping the primary every second; {held}."


def write_report(path: Path, parts: list[ScenarioPart], sending: str, now: datetime.datetime | None = None) -> None:
    """`sending`: what was sent, in words. The file appears whole or not at all."""
    now = now or datetime.datetime.now(datetime.UTC)
    page = document(
        "Outage rehearsal",
        style_of("spillway.lab", "report.css"),
        head(sending, now),
        banner(parts),
        overview(parts) if len(parts) > 1 else None,
        [story(part) for part in parts],
        tag("section", soft(JUDGED)),
    )
    write_page(path, page)


def head(sending: str, now: datetime.datetime) -> Markup:
    machine = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    return joined(
        tag("h1", "Outage rehearsal"),
        soft(
            f"{now:%d %B %Y, %H:%M} UTC. Spillway {__version__}: two namespaces, two producers, two consumers and a "
            f"syphon as processes of one machine ({machine}). {sending}"
        ),
    )


def banner(parts: list[ScenarioPart]) -> Markup:
    """The verdict first."""
    lost = sum(part.found["lost"] for part in parts)
    acknowledged = sum(part.found["acknowledged"] for part in parts)
    diverted = sum(part.found["diverted"] for part in parts)
    twice = sum(part.found["duplicated"] for part in parts)
    broken = [part for part in parts if part.found["problems"]]
    outages = "1 outage was" if len(parts) == 1 else f"{len(parts)} outages were"
    words = (
        f"{outages} rehearsed. {acknowledged:,} messages were acknowledged, {diverted:,} of them by the "
        f"backlog while the primary was unavailable; {lost:,} were lost, {twice:,} were delivered twice."
    )
    if not broken:
        return verdict("Nothing was lost.", words)
    title = f"{lost:,} acknowledged messages were lost." if lost else "A promise was broken."
    problems = [f"{part.found['scenario']}: {problem}" for part in broken for problem in part.found["problems"]]
    return verdict(title, words, *problems, is_bad=True)


def overview(parts: list[ScenarioPart]) -> Markup:
    titles = ("acknowledged", "diverted", "delivered", "twice", "lost", "to fail over", "to return", "")
    return table((Column("outage", TEXT), *titles), [overview_row(part) for part in parts])


def overview_row(part: ScenarioPart) -> list[Content]:
    found = part.found
    keys = ("acknowledged", "diverted", "delivered", "duplicated", "lost", "failover_s", "return_s")
    is_broken = bool(found["problems"])
    end = tag("span", "broken" if is_broken else "held", class_="bad-text" if is_broken else "good-text")
    name = found["scenario"]
    return [tag("a", name, href=f"#{name}"), *(shown(key, found[key]) for key in keys), end]


def story(part: ScenarioPart) -> Markup:
    found = part.found
    moments = what_happened(found, part.about, part.timeline)
    story = [tag("li", tag("time", f"{at_s:.1f} s"), tag("span", text)) for at_s, text in moments]
    return section(
        found["scenario"],
        tag("p", f"{capital(part.about)}. ", tag("span", part.senders, class_="soft")),
        [bad(problem) for problem in found["problems"]],
        figures((figure(key, found), words) for key, words in FIGURES),
        picture.draw(part.timeline),
        legend(picture.LEGEND),
        tag("h3", "What happened"),
        tag("ol", story, class_="story"),
        tag("h3", "All numbers"),
        table(
            (Column("", TEXT), "", Column("", WORDS)),
            [(key.replace("_", " "), found[key], words) for key, words in NUMBERS],
        ),
        cost(part),
        None if part.pages is None else pages_section(part.pages),
        id=found["scenario"],
    )


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def figure(key: str, found: dict[str, Any]) -> str:
    text = shown(key, found[key])
    if key == "diverted" and found["acknowledged"]:
        return f"{found['diverted'] * 100 // found['acknowledged']} %"
    return UNKNOWN if text is None else text


def shown(key: str, value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:.1f} s" if key.endswith("_s") else f"{value:,}"


def cost(part: ScenarioPart) -> Markup | None:
    """The cost in operations: what a cloud would charge for."""
    ledgers = part.timeline.ledgers
    if not ledgers:
        return None
    found = {kind for counts in ledgers.values() for kind, count in counts.items() if count}
    kinds = [kind for kind in CHARGED if kind in found] + sorted(found - CHARGED.keys())
    rows: list[tuple[Content, ...]] = [
        (kind.replace("_", " "), *(counts.get(kind, 0) for counts in ledgers.values()), CHARGED.get(kind, ""))
        for kind in kinds
    ]
    sums = [sum(counts.values()) for counts in ledgers.values()]
    each = sum(sums) / max(part.found["acknowledged"], 1)
    return joined(
        tag("h3", "What it cost, in operations"),
        tag(
            "p",
            "Both brokers keep a ledger of what they were asked to do. A message that goes to the primary is sent, "
            "received and settled there. One that takes the way around is sent to the backlog, received from it and "
            f"settled there as well. This run took {sum(sums):,} operations, {each:.1f} for each message.",
        ),
        table((Column("kind", TEXT), *ledgers, Column("", WORDS)), rows, ("together", *sums, "")),
    )
