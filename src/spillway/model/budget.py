"""What clients make the process hold: counted while it is held, by connection, by namespace and over the process.

Whatever stays with us longer than the turn it came in is charged to the account of the connection that sent it, and
given back when it goes. A connection has a bound of its own. When all of them together hold more than there is for
them, those that hold most are ended until there is room: the holder pays, never the neighbour that comes next.

A charge is counted always and refused never: who is over is marked, says what it was about to say, and is ended by its
owner. So no code that holds something has a way out of its own, and what is charged and given back stays the same sum.
"""

from collections.abc import Callable

from spillway.model import limits
from spillway.model.quotas import Quotas


class Budget:
    """The memory budget of the process, or of a namespace in it."""

    def __init__(self, bytes_max: int, parent: "Budget | None" = None) -> None:
        self.bytes_max = bytes_max
        self.parent = parent
        self.bytes_used = 0
        self.ended_count = 0  # accounts that were ended to make room
        self.accounts: dict[Account, None] = {}

    def add(self, account: "Account") -> None:
        self.accounts[account] = None
        if self.parent is not None:
            self.parent.add(account)

    def remove(self, account: "Account") -> None:
        self.accounts.pop(account, None)
        self.count(-account.held_bytes)
        if self.parent is not None:
            self.parent.accounts.pop(account, None)

    def count(self, count: int) -> None:
        self.bytes_used += count
        if self.parent is not None:
            self.parent.count(count)

    def is_over(self) -> bool:
        return self.bytes_used > self.bytes_max or (self.parent is not None and self.parent.is_over())

    def make_room(self, bytes_max: int, asking: "Account | None", least_bytes: int = 1) -> None:
        """End those that hold most, and no less than `least_bytes`, until the others have this much together."""
        leaving = 0
        for account in self.accounts:
            if account.is_over:
                leaving += account.held_bytes
        while self.bytes_used - leaving > bytes_max:
            largest = self.largest()
            if largest is None or largest.held_bytes < least_bytes:
                return
            self.ended_count += 1
            largest.is_over = True
            largest.is_pressed = True
            if largest is not asking and largest.on_over is not None:
                largest.on_over()
            leaving += largest.held_bytes  # nothing, if it is closed already

    def largest(self) -> "Account | None":
        found: Account | None = None
        for account in self.accounts:
            if not account.is_over:
                if found is None or account.held_bytes > found.held_bytes:
                    found = account
        return found


class Account:
    """The account of one connection. `is_over`: it holds too much and is to be ended; `why` says so to its client."""

    def __init__(self, budget: Budget, bytes_max: int) -> None:
        self.budget = budget
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.is_over = False
        self.is_pressed = False  # it was within its own bound, and held more than all others
        self.is_closed = False
        self.on_over: Callable[[], None] | None = None  # to end it at once, while somebody else is charged
        budget.add(self)

    def charge(self, count: int) -> None:
        """So much more is held from now on; less, if it is negative."""
        if self.is_closed or count == 0:
            return
        self.held_bytes += count
        assert self.held_bytes >= 0, "more was given back than was charged"
        budget = self.budget
        budget.count(count)
        if count > 0 and not self.is_over:
            if self.held_bytes > self.bytes_max:
                self.is_over = True
            elif budget.is_over():
                budget.make_room(budget.bytes_max, self)
                if budget.parent is not None:
                    budget.parent.make_room(budget.parent.bytes_max, self)

    def close(self) -> None:
        """Nothing of it is held any more."""
        if not self.is_closed:
            self.is_closed = True
            self.budget.remove(self)
            self.held_bytes = 0
            self.on_over = None  # who owns it is not kept by it

    def why(self) -> str:
        if self.is_pressed:
            return (
                "The broker holds as much for its clients as its memory allows (limit memory-mb), and most of it for "
                "this connection: unfinished deliveries, links, requests, tokens, or what it does not read."
            )
        return (
            f"The broker would hold more than {self.bytes_max // limits.KIB} KB for this connection: unfinished "
            "deliveries, links, requests, tokens, or what it does not read."
        )


def process_budget(quotas: Quotas) -> Budget:
    return Budget(quotas.held_bytes_max())


def namespace_budget(process: Budget, namespaces_count: int) -> Budget:
    """Alone it has all of it; where there are several, none has more than half."""
    return Budget(process.bytes_max if namespaces_count <= 1 else process.bytes_max // 2, process)


def connection_bytes_max(budget: Budget) -> int:
    """A connection's own bound once it has shown a token."""
    return min(limits.CONNECTION_HELD_BYTES_MAX, budget.bytes_max // 2)


def lone_account() -> Account:
    """An account of a connection that shares with nobody: tests, and tools that serve one client."""
    budget = process_budget(Quotas())
    return Account(budget, connection_bytes_max(budget))
