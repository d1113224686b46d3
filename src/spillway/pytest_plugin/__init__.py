"""A namespace of Service Bus for tests of your own code: real sockets, no set-up, gone at the end of the test.

With pytest it is the fixture `spillway_namespace`. Without, it is a context manager:

with LocalNamespace() as namespace:
    namespace.queue("orders")
    run_my_program(namespace.connection_string)
    assert namespace.counts("orders").active == 0
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spillway.pytest_plugin.namespace import Counts, Fault, LocalNamespace, NamespaceFailed

__all__ = ["Counts", "Fault", "LocalNamespace", "NamespaceFailed"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: pytest imports this package in every run, whether a test needs a broker or not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spillway.pytest_plugin import namespace

    return getattr(namespace, name)
