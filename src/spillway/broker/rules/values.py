"""What the operators of the rule language do with values.

Azure documents that operators follow C#: integers are 64-bit and promoted to double beside one, integer division
truncates, `+` joins texts, nothing else is converted. Where C# would not compile the comparison (a text with a number)
the answer is unknown, so the rule does not match, nor does its negation; where it would not compile an arithmetic
operator, or the result does not fit, the rule cannot be evaluated for the message: `FilterError`.
"""

import math
import uuid
from typing import Final

from spillway.model import limits
from spillway.model.properties import Duration, Moment
from spillway.model.rules import FilterError

# Three-valued logic.
FALSE: Final = 0
TRUE: Final = 1
UNKNOWN: Final = 2

EQUAL: Final = 0
NOT_EQUAL: Final = 1
LESS: Final = 2
LESS_OR_EQUAL: Final = 3
GREATER: Final = 4
GREATER_OR_EQUAL: Final = 5

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 63) - 1
# A text that grew longer could not be a property anyway; without a bound, a few statements could double it for ever.
TEXT_CHARS_MAX: Final = limits.PROPERTY_BYTES_MAX


def compare(operator: int, left: object, right: object) -> int:
    """TRUE, FALSE, or UNKNOWN if either is absent or the two cannot be compared."""
    if left is None or right is None:
        return UNKNOWN
    if isinstance(left, str):
        return _compare_texts(operator, left, right) if isinstance(right, str) else UNKNOWN
    if isinstance(left, bool) or isinstance(right, bool):
        both = isinstance(left, bool) and isinstance(right, bool)
        return _compare_identity(operator, left == right) if both else UNKNOWN
    if isinstance(left, int):
        if isinstance(right, int):
            return _compare_integers(operator, left, right)
        return _compare_floats(operator, float(left), right) if isinstance(right, float) else UNKNOWN
    if isinstance(left, float):
        if isinstance(right, float):
            return _compare_floats(operator, left, right)
        return _compare_floats(operator, left, float(right)) if isinstance(right, int) else UNKNOWN
    return _compare_others(operator, left, right)


def _compare_others(operator: int, left: object, right: object) -> int:
    if isinstance(left, Moment):
        return _compare_integers(operator, left.ms, right.ms) if isinstance(right, Moment) else UNKNOWN
    if isinstance(left, Duration):
        return _compare_integers(operator, left.ms, right.ms) if isinstance(right, Duration) else UNKNOWN
    if isinstance(left, uuid.UUID):
        return _compare_identity(operator, left == right) if isinstance(right, uuid.UUID) else UNKNOWN
    if isinstance(left, bytes):
        return _compare_identity(operator, left == right) if isinstance(right, bytes) else UNKNOWN
    return UNKNOWN


def _compare_texts(operator: int, left: str, right: str) -> int:
    """Texts are compared by code points: case matters."""
    if operator == EQUAL:
        is_so = left == right
    elif operator == NOT_EQUAL:
        is_so = left != right
    elif operator == LESS:
        is_so = left < right
    elif operator == LESS_OR_EQUAL:
        is_so = left <= right
    elif operator == GREATER:
        is_so = left > right
    else:
        is_so = left >= right
    return TRUE if is_so else FALSE


def _compare_integers(operator: int, left: int, right: int) -> int:
    if operator == EQUAL:
        is_so = left == right
    elif operator == NOT_EQUAL:
        is_so = left != right
    elif operator == LESS:
        is_so = left < right
    elif operator == LESS_OR_EQUAL:
        is_so = left <= right
    elif operator == GREATER:
        is_so = left > right
    else:
        is_so = left >= right
    return TRUE if is_so else FALSE


def _compare_floats(operator: int, left: float, right: float) -> int:
    if operator == EQUAL:
        is_so = left == right
    elif operator == NOT_EQUAL:
        is_so = left != right
    elif operator == LESS:
        is_so = left < right
    elif operator == LESS_OR_EQUAL:
        is_so = left <= right
    elif operator == GREATER:
        is_so = left > right
    else:
        is_so = left >= right
    return TRUE if is_so else FALSE


def _compare_identity(operator: int, are_equal: bool) -> int:
    """Booleans, ids and bytes are equal or not; none of them is the greater."""
    if operator == EQUAL:
        return TRUE if are_equal else FALSE
    if operator == NOT_EQUAL:
        return FALSE if are_equal else TRUE
    return UNKNOWN


def calculate(sign: str, left: object, right: object) -> object:
    """One of `+ - * / %`. Unknown (None) if either operand is."""
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        if sign == "+" and (isinstance(left, str) or isinstance(right, str)):
            return _joined(left, right)
        raise _no_such_operator(sign, left, right)
    if isinstance(left, int) and isinstance(right, int):
        return _calculate_integers(sign, left, right)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return _calculate_floats(sign, float(left), float(right))
    if sign == "+" and (isinstance(left, str) or isinstance(right, str)):
        return _joined(left, right)
    return _calculate_times(sign, left, right)


def _calculate_integers(sign: str, left: int, right: int) -> int:
    if sign == "+":
        result = left + right
    elif sign == "-":
        result = left - right
    elif sign == "*":
        result = left * right
    else:
        if right == 0:
            raise FilterError(f"{left} {sign} 0: an integer cannot be divided by zero.")
        # C# truncates towards zero, and the remainder has the dividend's sign; Python floors.
        quotient = abs(left) // abs(right)
        if (left < 0) != (right < 0):
            quotient = -quotient
        result = quotient if sign == "/" else left - quotient * right
    if result < INTEGER_MIN or result > INTEGER_MAX:
        raise FilterError(f"{left} {sign} {right} does not fit into 64 bits.")
    return result


def _calculate_floats(sign: str, left: float, right: float) -> float:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if sign == "/":
        if right != 0.0:
            return left / right
        if left == 0.0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    if right == 0.0 or math.isinf(left):
        return math.nan
    return math.fmod(left, right)


def _calculate_times(sign: str, left: object, right: object) -> object:
    """Azure's example: the difference of two times is a duration."""
    if isinstance(left, Moment):
        if sign == "-" and isinstance(right, Moment):
            return Duration(left.ms - right.ms)
        if sign == "-" and isinstance(right, Duration):
            return Moment(left.ms - right.ms)
        if sign == "+" and isinstance(right, Duration):
            return Moment(left.ms + right.ms)
    elif isinstance(left, Duration) and isinstance(right, Duration):
        if sign == "-":
            return Duration(left.ms - right.ms)
        if sign == "+":
            return Duration(left.ms + right.ms)
    raise _no_such_operator(sign, left, right)


def negate(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, bool):
        raise FilterError("A boolean has no sign.")
    if isinstance(value, int):
        if value == INTEGER_MIN:
            raise FilterError(f"-({value}) does not fit into 64 bits.")
        return -value
    if isinstance(value, float):
        return -value
    if isinstance(value, Duration):
        return Duration(-value.ms)
    raise FilterError(f"{kind_of(value)} has no sign.")


def _joined(left: object, right: object) -> str:
    first = text_of(left)
    second = text_of(right)
    if first is None or second is None:
        raise _no_such_operator("+", left, right)
    if len(first) + len(second) > TEXT_CHARS_MAX:
        raise FilterError(f"A text longer than {TEXT_CHARS_MAX} characters came of '+'.")
    return first + second


def text_of(value: object) -> str | None:
    """As C# writes a value into a text; None if it has no one way of doing so."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        text = repr(float(value))
        return text[:-2] if text.endswith(".0") else text.replace("e", "E")
    if isinstance(value, uuid.UUID):
        return str(value)
    return None


def kind_of(value: object) -> str:
    """The type of a value in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, Moment):
        return "a time"
    if isinstance(value, Duration):
        return "a duration"
    if isinstance(value, uuid.UUID):
        return "a uuid"
    if isinstance(value, bytes):
        return "bytes"
    return type(value).__name__


def _no_such_operator(sign: str, left: object, right: object) -> FilterError:
    return FilterError(f"'{sign}' cannot be applied to {kind_of(left)} and {kind_of(right)}.")
