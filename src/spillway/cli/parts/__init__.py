"""Parts of commands that are too long for one file: plans, processes, screens.

Each is named after its command, and belongs to that alone.
"""
