"""The event loop that the suite asks every broker process for (`pytest --loop NAME`)."""

import os

LOOP_VARIABLE = "SPILLWAY_TEST_LOOP"


def loop_options() -> list[str]:
    """Nothing unless the suite was asked for one: older versions of the broker do not know the option."""
    name = os.environ.get(LOOP_VARIABLE)
    return ["--loop", name] if name else []
