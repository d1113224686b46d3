"""The broker's tests drive a core with one queue."""

import pytest

from tests.broker.line import Line


@pytest.fixture
def line() -> Line:
    return Line()
