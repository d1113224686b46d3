"""Which namespace a connection string leads to."""

from azure.servicebus import parse_connection_string


def host_of(conn_str: str) -> str:
    """Host, and port if one is given. `ValueError` if it is no connection string, without showing it."""
    try:
        parsed = parse_connection_string(conn_str)
    except ValueError as error:
        raise ValueError(f"conn_str: {error}") from None
    endpoint: str = parsed.endpoint
    return endpoint.partition("://")[2].partition("/")[0] or parsed.fully_qualified_namespace
