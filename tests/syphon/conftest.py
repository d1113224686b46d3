"""Two real broker processes for the tests that only read and write; those that kill have brokers of their own."""

from collections.abc import Iterator

import pytest

from tests.paired.namespaces import Namespaces


@pytest.fixture(scope="package")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    both = Namespaces(tmp_path_factory.mktemp("namespaces"))
    yield both
    both.close()


@pytest.fixture(scope="package")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    """For tests that stop and kill them, and for those to whom it matters that nobody has set their clocks."""
    both = Namespaces(tmp_path_factory.mktemp("own"))
    yield both
    both.close()
