"""What every performative does in every state: one outcome for each cell.

The engine is written after these tables and a test drives a real connection into each state and walks all cells;
`docs/amqp-states.md` is `render()`.

Outcomes: `accepted`; `ignored`; `kept`, unread until the owner has decided about SASL; or the end of the link, session
or connection with a condition. `drop` ends the connection too, but without a close, which may not come before an open.
"""

from typing import Final

OUTCOMES: Final[dict[str, str]] = {
    "+": "accepted",
    ".": "ignored",
    "k": "kept",
    "dH": "drop amqp:connection:framing-error",
    "dS": "drop amqp:illegal-state",
    "cF": "connection amqp:connection:framing-error",
    "cS": "connection amqp:illegal-state",
    "sH": "session amqp:session:handle-in-use",
    "sU": "session amqp:session:unattached-handle",
    "sE": "session amqp:session:errant-link",
    "lS": "link amqp:illegal-state",
    "lT": "link amqp:link:transfer-limit-exceeded",
}

FRAMES: Final[list[str]] = [
    "open",
    "begin",
    "attach",
    "flow",
    "transfer",
    "disposition",
    "detach",
    "end",
    "close",
    "sasl-mechanisms",
    "sasl-init",
    "sasl-challenge",
    "sasl-response",
    "sasl-outcome",
]


class Table:
    """Outcomes by state (a row) and frame (a column, in the order of FRAMES)."""

    def __init__(self, title: str, text: str, rows: list[tuple[str, str, str]]) -> None:
        self.title = title
        self.text = text
        self.meanings: dict[str, str] = {}
        self.cells: dict[tuple[str, str], str] = {}
        for state, meaning, marks in rows:
            outcomes = marks.split()
            assert len(outcomes) == len(FRAMES), f"{state}: one outcome for every frame"
            self.meanings[state] = meaning
            for frame, mark in zip(FRAMES, outcomes, strict=True):
                self.cells[(state, frame)] = OUTCOMES[mark]


CONNECTION_TABLE: Final[Table] = Table(
    "Connection",
    "Frames of a session come on a channel without one.",
    [
        #                                                            op bg at fl tr di de en cl  me in ch re ou
        ("HEADER", "the first protocol header is expected", "        dH dH dH dH dH dH dH dH dH  dH dH dH dH dH"),
        ("SASL_MECHANISMS", "client: the server's offer", "          dS dS dS dS dS dS dS dS dS  +  dS dS dS dS"),
        ("SASL_INIT", "server: the client's choice", "               dS dS dS dS dS dS dS dS dS  dS +  dS dS dS"),
        ("SASL_DECIDING", "server: the owner decides", "             k  k  k  k  k  k  k  k  k   k  k  k  k  k"),
        ("SASL_OUTCOME", "client: the server's decision", "          dS dS dS dS dS dS dS dS dS  dS dS dS dS +"),
        ("AMQP_HEADER", "the header behind SASL is expected", "      dH dH dH dH dH dH dH dH dH  dH dH dH dH dH"),
        ("OPENING", "headers are exchanged, no open has come", "     +  cS cS cS cS cS cS cS cS  cF cF cF cF cF"),
        ("OPENED", "open", "                                         cS +  cS cS cS cS cS cS +   cF cF cF cF cF"),
        ("CLOSE_SENT", "we have closed, the peer has not", "         .  .  .  .  .  .  .  .  +   .  .  .  .  ."),
        ("CLOSED", "over", "                                         .  .  .  .  .  .  .  .  .   .  .  .  .  ."),
    ],
)

SESSION_TABLE: Final[Table] = Table(
    "Session",
    "The connection is OPENED. Frames of a link name one that is attached, if the session has any.",
    [
        #                                                            op bg at fl tr di de en cl  me in ch re ou
        ("UNMAPPED", "there was none on this channel", "             cS +  cS cS cS cS cS cS +   cF cF cF cF cF"),
        ("BEGIN_SENT", "we have begun, the peer has not", "          cS +  cS cS cS cS cS cS +   cF cF cF cF cF"),
        ("MAPPED", "begun on both sides", "                          cS cS +  +  +  +  +  +  +   cF cF cF cF cF"),
        ("END_SENT", "we have ended, the peer has not", "            cS cS .  .  .  .  .  +  +   cF cF cF cF cF"),
        ("ENDED", "ended on both sides, the channel is free", "      cS +  .  .  .  .  .  .  +   cF cF cF cF cF"),
    ],
)

LINK_TABLE: Final[Table] = Table(
    "Link",
    "The session is MAPPED. A disposition names deliveries, not a link: it is about another link of the session here.",
    [
        #                                                            op bg at fl tr di de en cl  me in ch re ou
        ("UNATTACHED", "there is none on this handle", "             cS cS +  sU sU +  sU +  +   cF cF cF cF cF"),
        ("ATTACH_SENT", "we have attached, the peer has not", "      cS cS +  sU sU +  sU +  +   cF cF cF cF cF"),
        ("ATTACH_RCVD", "the owner has to decide; we receive", "     cS cS sH +  lT +  +  +  +   cF cF cF cF cF"),
        ("RECEIVING", "attached, we receive", "                      cS cS sH +  +  +  +  +  +   cF cF cF cF cF"),
        ("SENDING", "attached, we send", "                           cS cS sH +  lS +  +  +  +   cF cF cF cF cF"),
        ("DETACH_SENT", "we have detached, the peer has not", "      cS cS sH .  .  +  +  +  +   cF cF cF cF cF"),
        ("DETACHED", "detached on both sides", "                     cS cS +  sU sU +  sU +  +   cF cF cF cF cF"),
        ("ERRORED", "detached on both sides, by our error", "        cS cS +  sE sE +  sE +  +   cF cF cF cF cF"),
    ],
)

TABLES: Final[list[Table]] = [CONNECTION_TABLE, SESSION_TABLE, LINK_TABLE]


def render() -> str:
    """The tables as a page of documentation."""
    lines = [
        "# Every performative in every state",
        "",
        "Generated from `src/spillway/amqp/rules.py`; `tests/amqp/test_matrix.py` walks every cell against a real",
        "connection. A cell names what is ended and with which condition; `accepted` and `ignored` speak for",
        "themselves. `kept`: unread until the owner has decided about SASL. `drop`: the connection is ended without a",
        "close, which may not come before an open; a wrong protocol header is answered by ours first.",
        "",
    ]
    for table in TABLES:
        lines += [f"## {table.title}", "", table.text, "", "| state | meaning |", "|---|---|"]
        lines += [f"| `{state}` | {meaning} |" for state, meaning in table.meanings.items()]
        states = list(table.meanings)
        lines += ["", f"| | {' | '.join([f'`{state}`' for state in states])} |", "|---" * (len(states) + 1) + "|"]
        for frame in FRAMES:
            cells = " | ".join([table.cells[(state, frame)] for state in states])
            lines.append(f"| **{frame}** | {cells} |")
        lines.append("")
    return "\n".join(lines)
