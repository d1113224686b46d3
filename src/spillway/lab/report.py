"""The report: one HTML page that needs nothing else, with the timeline of each scenario as a picture.

Everything in it comes from the histories, like the verdict. What was written by a client is shown as text, never as
markup.
"""

import datetime
import html
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
    ("acknowledged", "the producers were told that they are safe"),
    ("diverted", "taken by a backlog queue on the secondary instead of the primary"),
    ("syphoned", "brought home from the backlog"),
    ("delivered", "distinct messages that the consumers received"),
    ("duplicated", "stored on the primary more than once"),
    ("lost", "acknowledged, and nowhere: neither delivered nor still stored anywhere"),
    ("out_of_order", "stored on the primary behind a later message of the same producer"),
    ("failed_attempts", "sends whose caller heard an error, and sent again"),
    (
        "false_acknowledgements",
        "callers that were told what is not so: that it is safe, or that it was not sent",
    ),
    ("pings", "sent to the primary while it was away"),
)
JUDGED: Final = (
    "How this was judged: every client wrote down what it was told, each in a file of its own. When all was over, a "
    "process that was given nothing but these files looked for every acknowledged message: whether it was delivered, "
    "unchanged, once, and not again after it was completed. What the senders counted had no say in it."
)
STYLE: Final = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Part:
    """One scenario: what the verdict found, and when it happened."""

    found: dict[str, Any]
    about: str
    senders: str  # how they were set up, in words
    timeline: Timeline
    pages: Pages | None = None  # what the jobs on Spark made of it

    @classmethod
    def of(cls, found: dict[str, Any], scenario: Scenario, directory: Path, made: Pages | None = None) -> "Part":
        return cls(found, scenario.about, senders_of(scenario), read_timeline(read_lines(directory)), made)


def senders_of(scenario: Scenario) -> str:
    tolerated = f"after {scenario.interval_s:g} s of failures" if scenario.interval_s else "at the first failure"
    limit_s = scenario.operation_timeout_s + scenario.interval_s
    if scenario.pending == "hold":
        held = f"a call is held until one side takes its message, for {limit_s:g} s at most"
    else:
        held = f"a call that neither side takes fails, after {limit_s:g} s at the latest"
    return f"The senders fail over {tolerated}, and then ping the primary every second; {held}."


def write_report(path: Path, parts: list[Part], sending: str, now: datetime.datetime | None = None) -> None:
    """`sending`: what was sent, in words. The file appears whole or not at all."""
    now = now or datetime.datetime.now(datetime.UTC)
    body = [head(sending, now), banner(parts)]
    if len(parts) > 1:
        body.append(overview(parts))
    body += [section(part) for part in parts]
    body.append(f'<section><p class="soft">{JUDGED}</p></section>')
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Outage rehearsal</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )
    whole = path.with_name(path.name + ".part")
    whole.write_text(page, encoding="utf-8")
    whole.replace(path)


def head(sending: str, now: datetime.datetime) -> str:
    machine = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    return (
        f'<h1>Outage rehearsal</h1><p class="soft">{now:%d %B %Y, %H:%M} UTC. Spillway {html.escape(__version__)}: two '
        f"namespaces, two producers, two consumers and a syphon as processes of one machine ({html.escape(machine)}). "
        f"{html.escape(sending)}</p>"
    )


def banner(parts: list[Part]) -> str:
    """The verdict first."""
    lost = sum(part.found["lost"] for part in parts)
    acknowledged = sum(part.found["acknowledged"] for part in parts)
    diverted = sum(part.found["diverted"] for part in parts)
    twice = sum(part.found["duplicated"] for part in parts)
    broken = [part for part in parts if part.found["problems"]]
    outages = "1 outage was" if len(parts) == 1 else f"{len(parts)} outages were"
    words = (
        f"{outages} rehearsed. {acknowledged:,} messages were acknowledged, {diverted:,} of them found the primary "
        f"away and took the way around; {lost:,} were lost, {twice:,} were delivered twice."
    )
    if not broken:
        return f'<div class="verdict"><strong>Nothing was lost.</strong><p>{words}</p></div>'
    title = f"{lost:,} acknowledged messages were lost." if lost else "A promise was broken."
    problems = "".join(
        f"<p>{html.escape(part.found['scenario'])}: {html.escape(problem)}</p>"
        for part in broken
        for problem in part.found["problems"]
    )
    return f'<div class="verdict bad"><strong>{title}</strong><p>{words}</p>{problems}</div>'


def overview(parts: list[Part]) -> str:
    titles = ("acknowledged", "diverted", "delivered", "twice", "lost", "to fail over", "to return", "")
    rows = "".join(overview_row(part) for part in parts)
    header = "".join(f"<th>{title}</th>" for title in titles)
    return f'<div class="scroll"><table><tr><th>outage</th>{header}</tr>{rows}</table></div>'


def overview_row(part: Part) -> str:
    found = part.found
    name = html.escape(found["scenario"])
    keys = ("acknowledged", "diverted", "delivered", "duplicated", "lost", "failover_s", "return_s")
    cells = "".join(f"<td>{shown(key, found[key])}</td>" for key in keys)
    end = '<td class="bad-text">broken</td>' if found["problems"] else '<td class="good-text">held</td>'
    return f'<tr><td><a href="#{name}">{name}</a></td>{cells}{end}</tr>'


def section(part: Part) -> str:
    found = part.found
    name = html.escape(found["scenario"])
    figures = "".join(
        f"<div><b>{figure(key, found)}</b><span>{html.escape(words)}</span></div>" for key, words in FIGURES
    )
    key = "".join(f'<li><i class="{name_}"></i>{html.escape(words)}</li>' for name_, words in picture.LEGEND)
    story = "".join(
        f"<li><time>{at_s:.1f} s</time><span>{html.escape(text)}</span></li>" for at_s, text in what_happened(part)
    )
    problems = "".join(f'<p class="bad-text">{html.escape(problem)}</p>' for problem in found["problems"])
    return (
        f'<section id="{name}"><h2>{name}</h2><p>{html.escape(capital(part.about))}. '
        f'<span class="soft">{html.escape(part.senders)}</span></p>{problems}'
        f'<div class="figures">{figures}</div>{picture.draw(part.timeline)}<ul class="key">{key}</ul>'
        f'<h3>What happened</h3><ol class="story">{story}</ol>'
        f"<h3>All numbers</h3><table>{numbers(found)}</table>{cost(part)}"
        f"{'' if part.pages is None else pages_section(part.pages)}</section>"
    )


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def figure(key: str, found: dict[str, Any]) -> str:
    text = shown(key, found[key])
    if key == "diverted" and found["acknowledged"]:
        return f"{found['diverted'] * 100 // found['acknowledged']} %"
    return text


def shown(key: str, value: float | None) -> str:
    if value is None:
        return "&ndash;"
    return f"{value:.1f} s" if key.endswith("_s") else f"{value:,}"


def numbers(found: dict[str, Any]) -> str:
    return "".join(
        f'<tr><td>{key.replace("_", " ")}</td><td>{found[key]:,}</td><td class="words">{html.escape(words)}</td></tr>'
        for key, words in NUMBERS
    )


def cost(part: Part) -> str:
    """In operations: what a cloud would charge for."""
    ledgers = part.timeline.ledgers
    if not ledgers:
        return ""
    found = {kind for counts in ledgers.values() for kind, count in counts.items() if count}
    kinds = [kind for kind in CHARGED if kind in found] + sorted(found - CHARGED.keys())
    header = "".join(f"<th>{html.escape(name)}</th>" for name in ledgers)
    rows = ""
    for kind in kinds:
        cells = "".join(f"<td>{counts.get(kind, 0):,}</td>" for counts in ledgers.values())
        words = html.escape(CHARGED.get(kind, ""))
        rows += f'<tr><td>{html.escape(kind.replace("_", " "))}</td>{cells}<td class="words">{words}</td></tr>'
    sums = "".join(f"<td>{sum(counts.values()):,}</td>" for counts in ledgers.values())
    total = sum(sum(counts.values()) for counts in ledgers.values())
    each = total / max(part.found["acknowledged"], 1)
    return (
        "<h3>What it cost, in operations</h3><p>Both brokers keep a ledger of what they were asked to do. A message "
        "that goes to the primary is sent, received and settled there. One that takes the way around is sent to the "
        "backlog, received from it and settled there as well. "
        f"This run took {total:,} operations, {each:.1f} for each message.</p>"
        f"<table><tr><th>kind</th>{header}<th></th></tr>{rows}"
        f'<tr class="sum"><td>together</td>{sums}<td></td></tr></table>'
    )
