"""Connection strings: what they say, and that none of their mistakes shows the key (bad input B24)."""

import socket
import string
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.client import ConnectionLost, SignatureCredential, connect, parse_connection_string

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
DEV = f"Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true;"


def test_an_emulator_string_is_read_with_its_port_and_flag() -> None:
    parsed = parse_connection_string(DEV)
    assert (parsed.host, parsed.port, parsed.is_emulator) == ("localhost", 5672, True)
    assert (parsed.key_name, parsed.key) == ("Root", KEY)
    assert parsed.authority == "localhost:5672"


def test_an_azure_string_without_a_port_means_5671_and_the_emulator_5672() -> None:
    parsed = parse_connection_string(
        f"Endpoint=sb://n.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey={KEY}"
    )
    assert not parsed.is_emulator
    assert parsed.port_for(tls=True) == 5671
    assert parsed.port_for(tls=False) == 5672


def test_a_transport_of_websockets_has_ports_of_its_own() -> None:
    plain = f"Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey={KEY}"
    parsed = parse_connection_string(f"{plain};TransportType=AmqpWebSockets")
    assert parsed.is_websocket
    assert (parsed.port_for(tls=True), parsed.port_for(tls=False)) == (443, 80)
    assert not parse_connection_string(f"{plain};transporttype=amqp").is_websocket
    assert parse_connection_string(f"{DEV}TransportType=AmqpWebSockets").port_for(tls=False) == 5672


def test_names_are_compared_without_regard_to_case_and_the_order_does_not_matter() -> None:
    parsed = parse_connection_string(f"sharedaccesskey={KEY};ENDPOINT=sb://h;SharedAccessKeyName=a;EntityPath=q/1")
    assert (parsed.host, parsed.key, parsed.entity_path) == ("h", KEY, "q/1")


def test_an_ipv6_endpoint_is_dialled_without_its_brackets() -> None:
    parsed = parse_connection_string(f"Endpoint=sb://[::1]:5672;SharedAccessKeyName=a;SharedAccessKey={KEY}")
    assert (parsed.address, parsed.port, parsed.authority) == ("::1", 5672, "[::1]:5672")


def test_a_key_may_contain_equals_signs() -> None:
    assert parse_connection_string("Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=a=b==").key == "a=b=="


def test_the_repr_shows_neither_key_nor_signature() -> None:
    assert KEY not in repr(parse_connection_string(DEV))
    assert KEY not in repr(parse_connection_string(f"Endpoint=sb://h;SharedAccessSignature={KEY}"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        KEY,
        f"SharedAccessKey={KEY}",
        f"Endpoint={KEY}",
        f"Endpoint=sb://{KEY}",
        f"Endpoint=http://h;SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://;SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://h:0;SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://h:65536;SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://h:{KEY};SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://h:٣;SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://[::1;SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://u:{KEY}@h;SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://h/{KEY};SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://h?{KEY};SharedAccessKeyName=a;SharedAccessKey={KEY}",
        f"Endpoint=sb://h;SharedAccessKey={KEY}",
        "Endpoint=sb://h;SharedAccessKeyName=a",
        "Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=",
        f"Endpoint=sb://h;SharedAccessKeyName=;SharedAccessKey={KEY}",
        f"Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey={KEY};SharedAccessKey={KEY}",
        f"Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey={KEY};SharedAccessSignature={KEY}",
        f"Endpoint=sb://h;SharedAccessKeyName=a;SharedAccesKey={KEY}",
        f"Endpoint=sb://h;SharedAccessKeyName=a;{KEY[:-1]}",
        f"Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey={KEY};UseDevelopmentEmulator=True",
        f"Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey={KEY};TransportType={KEY}",
        f"Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey={KEY}\x00",
        f"Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey={KEY}" + ";" * 9000,
    ],
)
def test_every_malformed_variant_is_a_value_error_without_the_key(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_connection_string(text)
    shown = "".join(traceback.format_exception_only(caught.value))
    assert KEY not in shown
    assert KEY[:-1] not in shown
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "the cause might quote the key"


_PART = st.one_of(
    st.sampled_from(["Endpoint=sb://h", "Endpoint=sb://h:1", "SharedAccessKeyName=a", "UseDevelopmentEmulator=true"]),
    st.text(alphabet=string.printable + "é\u2028\x00", max_size=30),
    st.builds(
        "{}={}".format, st.sampled_from(["Endpoint", "EntityPath", "SharedAccessKeyName", "x"]), st.text(max_size=20)
    ),
)


@given(
    st.lists(_PART, max_size=6),
    st.lists(_PART, max_size=3),
    st.sampled_from(["SharedAccessKey=", "", "Endpoint=sb://h:"]),
)
def test_any_text_around_a_key_is_read_or_refused_and_never_echoed(
    before: list[str], after: list[str], name: str
) -> None:
    text = ";".join([*before, name + KEY, *after])
    try:
        parsed = parse_connection_string(text)
    except ValueError as error:
        assert KEY not in str(error)
        assert error.__suppress_context__ or error.__context__ is None
    else:
        assert KEY not in repr(parsed)


_FULL = f"Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey={KEY};EntityPath=q;UseDevelopmentEmulator=true"
_EDIT = st.tuples(
    st.sampled_from(["delete", "double", "insert", "cut"]),
    st.integers(min_value=0, max_value=len(_FULL) - 1),
    st.sampled_from(
        [";", "=", "==", ":", "/", "[", "]", "@", "#", "?", "%", " ", "\n", "\x00", "é", "\ud800", ";;", "sb://"]
    ),
)


@given(st.lists(_EDIT, min_size=1, max_size=4))
def test_a_good_string_with_slips_of_the_pen_is_read_or_refused_and_never_echoed(
    edits: list[tuple[str, int, str]],
) -> None:
    """Whatever part of the key is left of it, ten characters of it in a row are not shown."""
    text = _FULL
    for kind, at, put in edits:
        at %= len(text) + 1
        if kind == "delete":
            text = text[:at] + text[at + 1 :]
        elif kind == "double":
            text = text[:at] + text[at:].partition(";")[0] + ";" + text[at:]
        elif kind == "insert":
            text = text[:at] + put + text[at:]
        else:
            text = text[at:] or "x"
    pieces = {KEY[at : at + 10] for at in range(len(KEY) - 9)}
    try:
        parsed = parse_connection_string(text)
    except ValueError as error:
        shown = "".join(traceback.format_exception(error))
        said = shown.rpartition("ValueError: ")[2]
        assert not [piece for piece in pieces if piece in said]
        assert error.__suppress_context__ or error.__context__ is None, "the cause might quote the key"
    else:
        hidden = repr(parsed).replace(f"entity_path={parsed.entity_path!r}", "").replace(f"host={parsed.host!r}", "")
        hidden = hidden.replace(f"key_name={parsed.key_name!r}", "")
        assert not [piece for piece in pieces if piece in hidden]


@pytest.mark.parametrize(
    "signature", [KEY, f"SharedAccessSignature {KEY}", f"SharedAccessSignature sr=x&sig={KEY}&se={KEY}"]
)
def test_a_signature_that_is_none_is_refused_without_being_shown(signature: str) -> None:
    with pytest.raises(ValueError) as caught:
        SignatureCredential(signature)
    assert KEY not in str(caught.value)


async def test_a_broker_that_is_not_there_is_told_of_without_the_key() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(ConnectionLost) as caught:
            await connect(DEV.replace("5672", str(port)))
    assert KEY not in "".join(traceback.format_exception(caught.value))
