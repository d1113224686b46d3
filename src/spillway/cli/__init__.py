"""The command line. One file a command; it parses, calls and prints, and decides nothing of its own.

A file here that defines `command` is the command of its name, one that defines `group` several (`app.py` finds them).
The others are the frame: `app`, `errors`, and what several commands ask for (`control`, `served`). A command that is
too long for one file has the rest of it in `parts`. Rooms are imported inside the functions that use them, so that
`spillway --help` loads none of them.
"""
