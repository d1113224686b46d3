"""How the Python SDK tells that an entity is missing."""

from azure.servicebus.exceptions import ServiceBusAuthenticationError


def assert_missing(error: BaseException, path: str) -> None:
    """Azure answers its token with 404, which the SDK calls a failed authentication; the reason is inside."""
    assert isinstance(error, ServiceBusAuthenticationError)
    inner = error.inner_exception
    assert getattr(inner, "status_code", None) == 404
    text = getattr(inner, "status_description", b"").decode()
    assert text.startswith(f"The messaging entity 'sb://localhost/{path}' could not be found."), text
