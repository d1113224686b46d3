"""Our bytes read by qpid-proton, and its bytes read by us, for every type."""

from typing import Any

import proton
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.amqp.codec import DecodeBudget, decode_value, encode, skip_value
from spillway.amqp.types import Array, Described, Symbol
from tests.amqp.values import ASCII, BY_CODE, SCALARS, TEXT, from_proton, same, to_proton


def _array(code: int) -> Any:
    return st.lists(BY_CODE[code], min_size=1, max_size=4).map(lambda items: Array(code, items))


# proton has no form of its own for arrays of null.
PROTON_ARRAYS = st.one_of(*[_array(code) for code in BY_CODE if code != 0x40])


def _is_not_described(value: Any) -> bool:
    """proton loses the elements of a list that follow a described description."""
    return not isinstance(value, Described)


PROTON_VALUES: Any = st.recursive(
    st.one_of(SCALARS, PROTON_ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(ASCII.map(Symbol), inner, max_size=4),
        st.dictionaries(TEXT, inner, max_size=3),
        st.builds(Described, st.one_of(ASCII.map(Symbol), BY_CODE[0x80]), inner.filter(_is_not_described)),
    ),
    max_leaves=8,
)


@settings(max_examples=120, deadline=None)
@given(PROTON_VALUES)
def test_proton_reads_what_we_write(value: Any) -> None:
    raw = encode(value)
    data = proton.Data()
    assert data.decode(raw) == len(raw)
    data.rewind()
    data.next()
    assert same(from_proton(data.get_object()), value)


@settings(max_examples=120, deadline=None)
@given(PROTON_VALUES)
def test_we_read_what_proton_writes(value: Any) -> None:
    data = proton.Data()
    data.put_object(to_proton(value))
    raw = bytes(data.encode())
    decoded, end = decode_value(raw, 0, len(raw), DecodeBudget())
    assert end == len(raw) == skip_value(raw, 0, len(raw), DecodeBudget())
    assert same(decoded, value)
