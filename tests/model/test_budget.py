"""Process, namespace, connection: who holds most pays."""

from spillway.model.budget import Account, Budget, connection_bytes_max, namespace_budget, process_budget
from spillway.model.quotas import Quotas


def test_what_is_charged_is_counted_at_every_level_and_given_back_once() -> None:
    process = Budget(1_000)
    namespace = Budget(1_000, process)
    account = Account(namespace, 500)
    account.charge(300)
    account.charge(-100)
    assert (account.held_bytes, namespace.bytes_used, process.bytes_used) == (200, 200, 200)
    account.close()
    account.close()
    account.charge(50)
    assert (namespace.bytes_used, process.bytes_used) == (0, 0)
    assert not process.accounts


def test_who_passes_its_own_bound_is_marked_and_nobody_else() -> None:
    namespace = Budget(1_000, Budget(1_000))
    one, other = Account(namespace, 100), Account(namespace, 100)
    other.charge(90)
    one.charge(101)
    assert one.is_over
    assert not one.is_pressed
    assert not other.is_over


def test_under_pressure_the_largest_goes_at_once_whoever_asks() -> None:
    namespace = Budget(1_000, Budget(1_000))
    small, large, middle = (Account(namespace, 900) for _ in range(3))
    for account, held in ((small, 200), (large, 450), (middle, 300)):
        account.on_over = account.close
        account.charge(held)
    small.charge(100)
    assert [account.is_closed for account in (small, large, middle)] == [False, True, False]
    assert not small.is_over
    assert namespace.bytes_used == 600


def test_the_largest_that_asks_for_more_is_marked_and_ends_when_it_has_spoken() -> None:
    namespace = Budget(1_000, Budget(1_000))
    ended: list[str] = []
    one, other = Account(namespace, 900), Account(namespace, 900)
    one.on_over = lambda: ended.append("one")
    other.on_over = lambda: ended.append("other")
    other.charge(400)
    one.charge(700)
    assert one.is_over
    assert one.is_pressed
    assert ended == []
    assert "memory-mb" in one.why()


def test_a_namespace_cannot_take_what_another_needs() -> None:
    process = Budget(1_000)
    first, second = namespace_budget(process, 2), namespace_budget(process, 2)
    greedy = [Account(first, 400) for _ in range(4)]
    neighbour = Account(second, 400)
    neighbour.charge(300)
    for account in greedy:
        account.on_over = account.close
        account.charge(200)
    assert not neighbour.is_over
    assert first.bytes_used <= 500


def test_the_process_s_bound_holds_over_namespaces_and_its_largest_pays() -> None:
    process = Budget(1_000)
    namespaces = [Budget(600, process), Budget(600, process)]
    small, large = Account(namespaces[0], 600), Account(namespaces[1], 600)
    large.on_over = large.close
    large.charge(590)
    small.charge(500)
    assert large.is_closed
    assert not small.is_over


def test_shares_of_memory_mb() -> None:
    quotas = Quotas()
    quotas.set("memory-mb", 400)
    process = process_budget(quotas)
    assert process.bytes_max == 100 << 20
    assert connection_bytes_max(namespace_budget(process, 1)) == 50 << 20
