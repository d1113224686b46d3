"""The fixtures, and the broker's log beside a test that failed. Imports no broker until a test asks for one."""

import contextlib
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import pytest

if TYPE_CHECKING:
    from spillway.pytest_plugin.namespace import LocalNamespace

    class NamespaceFactory(Protocol):
        def __call__(self, name: str, limits: Mapping[str, int] | None = None) -> LocalNamespace: ...


class Openings:
    """The namespaces that the current test may have to do with, and how long their logs were when it began."""

    def __init__(self) -> None:
        self.namespaces: dict[LocalNamespace, int] = {}

    def open(self, name: str, limits: Mapping[str, int] | None = None) -> "LocalNamespace":
        from spillway.pytest_plugin.namespace import LocalNamespace

        namespace = LocalNamespace(name, limits=limits)
        self.namespaces[namespace] = 0
        return namespace.start()

    def begin(self) -> None:
        self.namespaces = {each: each.log.count for each in self.namespaces if each.is_open}

    def sections(self) -> list[tuple[str, str]]:
        """Title and text, of those that said anything."""
        found = [(each.name, each.log.since(count)) for each, count in self.namespaces.items()]
        return [(f"log of spillway namespace {name}", "\n".join(lines)) for name, lines in found if lines]


OPENINGS: Final = pytest.StashKey[Openings]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OPENINGS] = Openings()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[OPENINGS].begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        for title, text in item.config.stash[OPENINGS].sections():
            item.add_report_section(call.when, title, text)
    return (yield)


@pytest.fixture
def spillway_namespace_factory(pytestconfig: pytest.Config) -> Iterator["NamespaceFactory"]:
    """Makes namespaces by name, as many as the test needs; all are closed at its end."""
    with contextlib.ExitStack() as closing:

        def make(name: str, limits: Mapping[str, int] | None = None) -> "LocalNamespace":
            namespace = pytestconfig.stash[OPENINGS].open(name, limits)
            closing.callback(namespace.close)
            return namespace

        yield make


@pytest.fixture
def spillway_namespace(spillway_namespace_factory: "NamespaceFactory") -> "LocalNamespace":
    """A namespace of Service Bus for this test alone: real sockets, a clock that can be moved, nothing kept."""
    return spillway_namespace_factory("local")


@pytest.fixture(scope="module")
def spillway_module_namespace(pytestconfig: pytest.Config) -> Iterator["LocalNamespace"]:
    """A namespace that the tests of a module share."""
    namespace = pytestconfig.stash[OPENINGS].open("module")
    yield namespace
    namespace.close()


@pytest.fixture(scope="session")
def spillway_session_namespace(pytestconfig: pytest.Config) -> Iterator["LocalNamespace"]:
    """A namespace that all tests of the run share."""
    namespace = pytestconfig.stash[OPENINGS].open("session")
    yield namespace
    namespace.close()
