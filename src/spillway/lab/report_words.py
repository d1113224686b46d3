"""What happened in a run, in words: for the report."""

from typing import Any, Final

from spillway.lab.timeline import ACKNOWLEDGED, ANSWERED, AWAY, DIVERTED, HEALTHY, SUSPECT, SYPHONED, Timeline

CHARGED: Final = {
    "send": "messages accepted",
    "receive": "messages handed to a receiver",
    "empty_receive": "receives that ended without a message",
    "settle": "messages completed or given back",
    "renew": "locks renewed",
    "ping": "pings, charged like messages",
    "management": "requests of administrators: the backlog queues were looked for and made",
}


def what_happened(found: dict[str, Any], about: str, timeline: Timeline) -> list[tuple[float, str]]:
    """Moments in order: seconds since the first message, and a sentence. `found` is what the verdict found."""
    story = [(0.0, "Two producers begin to send, all is well.")]
    story += _of_faults(about, timeline)
    story += [(at_s, f"{text[:1].upper()}{text[1:]}.") for at_s, text in timeline.notes]
    story += _of_producers(timeline)
    if DIVERTED in timeline.first_s:
        share = found["diverted"] * 100 // max(found["acknowledged"], 1)
        story.append((timeline.first_s[DIVERTED], "The backlog on the secondary takes its first message."))
        story.append(
            (timeline.last_s[DIVERTED], f"And its last: {found['diverted']:,} in all, {share} % of all messages.")
        )
    if SYPHONED in timeline.last_s:
        story.append((timeline.last_s[SYPHONED], f"The syphon has brought the last of {found['syphoned']:,} home."))
    if ACKNOWLEDGED in timeline.last_s:
        heard = found["failed_attempts"]
        errors = "No caller heard an error." if not heard else f"Callers heard {heard:,} errors, and sent again."
        story.append(
            (timeline.last_s[ACKNOWLEDGED], f"The last of {found['acknowledged']:,} sends is acknowledged. {errors}")
        )
    if ANSWERED in timeline.last_s:
        story.append((timeline.last_s[ANSWERED], f"The last of {found['delivered']:,} messages is delivered."))
    return sorted(story, key=lambda moment: moment[0])


def _of_faults(about: str, timeline: Timeline) -> list[tuple[float, str]]:
    story = []
    for number, span in enumerate(timeline.outages):
        story.append((span.from_s, "The fault is back." if number else f"The fault begins: {about}."))
        story.append((span.to_s, "It is mended: the primary could take messages again."))
    if timeline.removed_s:
        times = "once" if len(timeline.removed_s) == 1 else f"{len(timeline.removed_s)} times in all"
        words = f"A backlog queue refused a message: the sender takes another, and leaves this one alone ({times})."
        story.append((timeline.removed_s[0], words))
    return story


def _of_producers(timeline: Timeline) -> list[tuple[float, str]]:
    """The first time of each; how often, if more."""
    story: list[tuple[float, str]] = []
    for name, spans in timeline.states.items():
        suspected = [span for span in spans if span.state == SUSPECT]
        away = [span for span in spans if span.state == AWAY]
        if suspected:
            story.append((suspected[0].from_s, f"{name} suspects that the queue is unavailable; its timer runs."))
        if away:
            cause = timeline.causes.get(name)
            why = f" ({cause})" if cause else ""
            more = f" It does so {len(away)} times in all." if len(away) > 1 else ""
            story.append(
                (away[0].from_s, f"{name} fails over{why}: its messages go to the backlog, pings begin.{more}")
            )
            if spans[-1].state == HEALTHY:
                story.append((spans[-1].from_s, f"A ping of {name} got through: it sends to the primary again."))
    return story
