"""Connection strings: what is wrong with one is said by its part, and never with its key."""

import pytest

from spillway.paired import MessagingFactory, NamespaceManager, sync
from spillway.paired.endpoints import endpoint_of

SECRET = "c2VjcmV0LXNlY3JldA=="
GOOD = f"Endpoint=sb://localhost:5672;SharedAccessKeyName=root;SharedAccessKey={SECRET};UseDevelopmentEmulator=true;"
MAKERS = (
    MessagingFactory.from_connection_string,
    NamespaceManager.from_connection_string,
    sync.MessagingFactory.from_connection_string,
    sync.NamespaceManager.from_connection_string,
)


@pytest.mark.parametrize(
    ("conn_str", "host", "is_clear_text"),
    [
        (GOOD, "localhost:5672", True),
        (GOOD.rstrip(";"), "localhost:5672", True),
        (f"\n {GOOD} \n", "localhost:5672", True),
        (GOOD.replace("UseDevelopmentEmulator=true;", ""), "localhost:5672", False),
        (GOOD.replace("=true", "=false"), "localhost:5672", False),
        (GOOD.replace("localhost:5672", "contoso.servicebus.windows.net/"), "contoso.servicebus.windows.net", True),
        (GOOD.replace("localhost:5672", "[::1]:5672"), "[::1]:5672", True),
        ("Endpoint=sb://h;SharedAccessSignature=SharedAccessSignature sr=h&sig=x&se=1&skn=root", "h", False),
        (GOOD.lower(), "localhost:5672", True),
    ],
)
def test_a_connection_string_leads_to_a_host(conn_str: str, host: str, is_clear_text: bool) -> None:
    endpoint = endpoint_of(conn_str)
    assert (endpoint.host, endpoint.is_clear_text) == (host, is_clear_text)


WRONG = [
    ("", "conn_str must not be empty"),
    ("  \n", "conn_str must not be empty"),
    ("nonsense", "conn_str: its part 1 is not NAME=VALUE"),
    (SECRET.rstrip("="), "conn_str: its part 1 is not NAME=VALUE"),
    (f'"{GOOD}"', "conn_str has quotes around it"),
    (f"'{GOOD}'", "conn_str has quotes around it"),
    (GOOD.replace(SECRET, f'"{SECRET}"'), "conn_str has quotes around the value of SharedAccessKey"),
    (GOOD.replace("sb://localhost:5672", "'sb://localhost:5672'"), "conn_str has quotes around the value of Endpoint"),
    (GOOD.replace(";Shared", "; Shared"), "conn_str has whitespace around SharedAccessKeyName"),
    (GOOD.replace("=root", "= root"), "conn_str has whitespace around SharedAccessKeyName"),
    (GOOD.replace(";Use", "\n;Use"), "conn_str has whitespace around SharedAccessKey"),
    (GOOD.replace("localhost", "local host"), "conn_str: its Endpoint must be sb://HOST"),
    (GOOD.replace("Endpoint=sb://localhost:5672;", ""), "conn_str has no Endpoint"),
    (GOOD.replace("sb://localhost:5672", ""), "conn_str has no Endpoint"),
    (GOOD.replace("sb://localhost", "localhost"), "conn_str: its Endpoint must be sb://HOST"),
    (GOOD.replace("sb://", "http://"), "conn_str: its Endpoint must be sb://HOST"),
    (GOOD.replace("localhost:5672", ""), "conn_str: its Endpoint must be sb://HOST"),
    (GOOD.replace("SharedAccessKeyName=root;", ""), "conn_str has no SharedAccessKeyName"),
    (GOOD.replace(f"SharedAccessKey={SECRET};", ""), "conn_str has no SharedAccessKey:"),
    (GOOD.replace(SECRET, ""), "conn_str has no SharedAccessKey:"),
    (GOOD + f"SharedAccessKey={SECRET}", "conn_str has SharedAccessKey twice"),
    (GOOD + f"SharedAccessSignature={SECRET}", "conn_str has both a SharedAccessKey and a SharedAccessSignature"),
    (GOOD + "EntityPath=orders", "conn_str has EntityPath=orders: leave it out"),
    (GOOD.replace("=true", "=True"), "conn_str: its UseDevelopmentEmulator must be true or false"),
    (GOOD.replace("=true", "=yes"), "conn_str: its UseDevelopmentEmulator must be true or false"),
]


@pytest.mark.parametrize(("conn_str", "said"), WRONG)
async def test_what_is_wrong_is_named_and_the_key_is_not_shown(conn_str: str, said: str) -> None:
    for make in MAKERS:
        with pytest.raises(ValueError) as refused:
            make(conn_str)
        assert str(refused.value).startswith(said)
        assert SECRET.rstrip("=") not in str(refused.value)
        assert refused.value.__cause__ is None


@pytest.mark.parametrize("conn_str", [None, 5, SECRET.encode(), ["Endpoint=sb://h"]])
async def test_what_is_no_text_is_refused_by_its_kind(conn_str: object) -> None:
    for make in MAKERS:
        with pytest.raises(TypeError, match="^conn_str must be a str, not ") as refused:
            make(conn_str)  # type: ignore[arg-type]
        assert SECRET not in str(refused.value)
