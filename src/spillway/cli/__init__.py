"""The command line. One file a command; it parses, calls and prints, and decides nothing of its own.

A file here that defines `command` is the command of its name (`app.py` finds it). Rooms are imported inside the
functions that use them, so that `spillway --help` loads none of them.
"""
