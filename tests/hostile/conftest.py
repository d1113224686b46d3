"""One broker for all attacks: whatever they leave behind adds up."""

from collections.abc import Iterator

import pytest

from tests.hostile.scene import Scene


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("hostile"))
    yield made
    made.close()


@pytest.fixture
def attacked(scene: Scene) -> Iterator[Scene]:
    """The broker to attack; afterwards it is unharmed."""
    yield scene
    scene.is_unharmed()
