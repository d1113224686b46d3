"""The lines that the processes of a random play add to the lab's histories (`spillway.lab.histories`)."""

from typing import Final

CALL: Final = "call"  # t0, ids, h (digests), path, kind, how, group, res, error, text: one call of a caller
BARE: Final = "bare"  # kind, path, error ("" if it was taken): what the bare SDK says of such a message
ILL: Final = "ill"  # n, side, what, paths: from now on
MENDING: Final = "mending"  # n
HEALED: Final = "healed"  # n
STORED: Final = "stored"  # id, h, seq, path: found at its entity
VITALS: Final = "vitals"  # when, sockets, tasks, rss_kb
PULSE: Final = "pulse"  # slowdown: how many times longer than its own CPU time a little work took
CLOSED: Final = "closed"  # what, took_s: a factory was told to close

# Of `VITALS`.
BEGIN: Final = "begin"
END: Final = "end"
AFTER_CLOSE: Final = "after close"

PLAN_FILE: Final = "plan.json"
VERDICT_FILE: Final = "verdict.json"
