import pytest

from spillway.dialect.addresses import CBS, ENTITY, MANAGEMENT, parse_address, shown, strip_authority


@pytest.mark.parametrize(
    ("text", "node", "path"),
    [
        ("q", ENTITY, "q"),
        ("amqps://localhost:5672/q", ENTITY, "q"),
        ("amqps://localhost:5672/A/b/C", ENTITY, "A/b/C"),
        ("sb://[::1]:5672/q/", ENTITY, "q"),
        ("/q", ENTITY, "q"),
        ("q/$DeadLetterQueue", ENTITY, "q/$DeadLetterQueue"),
        ("q/$deadletterqueue", ENTITY, "q/$DeadLetterQueue"),
        ("q/$management", MANAGEMENT, "q"),
        ("q/$Management", MANAGEMENT, "q"),
        ("q/$deadLetterQueue/$management", MANAGEMENT, "q/$DeadLetterQueue"),
        ("t/Subscriptions/s", ENTITY, "t/Subscriptions/s"),
        ("amqps://localhost:5672/T/x/subscriptions/S", ENTITY, "T/x/Subscriptions/S"),
        ("t/SUBSCRIPTIONS/s/$deadletterqueue", ENTITY, "t/Subscriptions/s/$DeadLetterQueue"),
        ("t/Subscriptions/s/$management", MANAGEMENT, "t/Subscriptions/s"),
        ("t/subscriptions/s/$DeadLetterQueue/$management", MANAGEMENT, "t/Subscriptions/s/$DeadLetterQueue"),
        ("subscriptions/s", ENTITY, "subscriptions/s"),
        ("t/subscriptionsX/s", ENTITY, "t/subscriptionsX/s"),
        ("$management", MANAGEMENT, ""),
        ("$cbs", CBS, ""),
        ("amqps://localhost/$CBS", CBS, ""),
        ("q/$cbs", ENTITY, "q/$cbs"),
        ("x$management", ENTITY, "x$management"),
        ("amqps://localhost", ENTITY, ""),
    ],
)
def test_an_address_names_an_entity_its_management_node_or_cbs(text: str, node: int, path: str) -> None:
    address = parse_address(text)
    assert (address.node, address.path) == (node, path)


def test_keys_do_not_depend_on_case() -> None:
    assert parse_address("amqps://h/Some/QUEUE").key == parse_address("some/queue").key


def test_a_path_that_holds_a_scheme_further_on_is_not_cut() -> None:
    assert strip_authority("q/http://x/y") == "q/http://x/y"


def test_a_made_up_name_is_short_in_error_texts() -> None:
    assert len(shown("x" * 100_000)) < 400
