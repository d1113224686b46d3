"""Namespaces in a process: the administration beside each of them, and a note of where they are served."""
