"""Text that can be said at all, and how it is said."""


def text_problem(text: str) -> str | None:
    """Why a text cannot be written in UTF-8, or None. JSON can name half of a surrogate pair; AMQP and XML cannot."""
    for index in range(len(text)):
        code = ord(text[index])
        if 0xD800 <= code <= 0xDFFF:
            return f"its character {index + 1} is U+{code:04X}, half of a surrogate pair"
    return None


def count_text(count: int, noun: str, plural: str = "") -> str:
    """`1 outage`, `2 outages`, `1,000 entities`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
