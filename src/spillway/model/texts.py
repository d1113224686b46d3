"""Text that can be said at all."""


def text_problem(text: str) -> str | None:
    """Why a text cannot be written in UTF-8, or None. JSON can name half of a surrogate pair; AMQP and XML cannot."""
    for index in range(len(text)):
        if "\ud800" <= text[index] <= "\udfff":
            return f"its character {index + 1} is U+{ord(text[index]):04X}, half of a surrogate pair"
    return None
