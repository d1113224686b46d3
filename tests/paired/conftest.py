"""Two real broker processes: a primary with a few entities, and a secondary that is empty."""

from collections.abc import Iterator

import pytest

from tests.paired.namespaces import Namespaces


@pytest.fixture(scope="package")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    both = Namespaces(tmp_path_factory.mktemp("namespaces"))
    yield both
    both.close()
