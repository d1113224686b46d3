"""Names of namespaces: a host label and a directory."""

import pytest

from spillway.model.namespaces import NAMESPACE_CHARS_MAX, namespace_name_problem


@pytest.mark.parametrize("name", ["a", "9", "contoso", "CONTOSO-2", "a--b", "x" * NAMESPACE_CHARS_MAX, "locks"])
def test_a_name_of_letters_digits_and_dashes_is_good(name: str) -> None:
    assert namespace_name_problem(name) is None


@pytest.mark.parametrize("name", ["", "-", "-a", "a-", "a.b", "a/b", "..", "a b", "é", "x" * (NAMESPACE_CHARS_MAX + 1)])
def test_any_other_name_is_refused_with_what_is_allowed(name: str) -> None:
    assert namespace_name_problem(name) == (
        "letters, digits and '-', a letter or digit first and last, at most 50 characters"
    )


@pytest.mark.parametrize("name", ["lock", "TLS"])
def test_what_stands_beside_the_namespaces_in_the_data_directory_is_no_name(name: str) -> None:
    assert namespace_name_problem(name) == "any but lock and tls, which the data directory has of its own"
