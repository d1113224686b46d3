"""The auth state of a connection: what it has shown a right to, and until when. Without a right it is not trusted.

Tokens end by the wall clock, which people set; everything else of a connection goes by a time that never leaps. What is
handed in here as `now_ms` is the latter.
"""

from typing import Final

from spillway.amqp.codec import FRAME_ELEMENTS_MAX, LOGIN_ELEMENTS_MAX
from spillway.amqp.connection import Connection
from spillway.dialect.rights import FOR_EVER, Grant, Grants, Rights, authorise, find_grant
from spillway.model import limits
from spillway.model.budget import Account
from spillway.model.errors import Unauthorized
from spillway.model.quotas import Quotas

# Before its first token a client needs one session and two links to `$cbs`; with no more than this a thousand of them
# can be borne.
UNAUTHENTICATED_SESSIONS_MAX: Final = 16
UNAUTHENTICATED_LINKS_MAX: Final = 32
UNAUTHENTICATED_PARTIAL_BYTES_MAX: Final = 128 * limits.KIB
# With what the connection itself takes, over TLS too.
UNAUTHENTICATED_HELD_BYTES_MAX: Final = (
    limits.UNAUTHENTICATED_HELD_BYTES_MAX + limits.CONNECTION_BYTES + limits.TLS_BYTES
)


class AuthState:
    """What a connection has shown. A stranger's bounds are set on it here, and lifted with its first grant."""

    def __init__(self, rights: Rights, connection: Connection, quotas: Quotas, account: Account) -> None:
        self.rights = rights
        self.connection = connection
        self.quotas = quotas
        self.grants = Grants()
        self.was_authorised = False  # when its connection was closed
        self.account = account
        self.known_bytes_max = account.bytes_max
        self.paid_bytes = 0  # for the grants
        self.revision = rights.book.revision  # of the rules by which the grants were last looked at
        self.next_expiry_ms = 0  # of a token, by the wall clock; 0: none ends
        self.unauthorised_until_ms = 0  # all tokens have run out: when to close
        connection.set_bounds(
            sessions_max=min(UNAUTHENTICATED_SESSIONS_MAX, quotas.sessions_per_connection),
            links_max=min(UNAUTHENTICATED_LINKS_MAX, quotas.links_per_connection),
            elements_max=LOGIN_ELEMENTS_MAX,
            partial_bytes_max=UNAUTHENTICATED_PARTIAL_BYTES_MAX,
            weighs_frames=False,  # each counts as many before the first token, and few are read at a time
        )
        account.bytes_max = min(UNAUTHENTICATED_HELD_BYTES_MAX, self.known_bytes_max)

    @property
    def is_authorised(self) -> bool:
        return self.was_authorised or len(self.grants.by_scope) > 0

    def release(self) -> None:
        """The connection is closed: its tokens are not kept, only that it had some."""
        self.was_authorised = self.is_authorised
        self.grants = Grants()

    def wall_ms(self, now_ms: int) -> int:
        return now_ms + self.rights.wall_ahead_ms

    def has_expired(self, now_ms: int) -> bool:
        """Whether a token has run out."""
        return 0 < self.next_expiry_ms <= now_ms + self.rights.wall_ahead_ms

    def next_due_ms(self) -> int:
        """When it has to be looked at again; 0: never."""
        due_ms = self.unauthorised_until_ms
        if self.next_expiry_ms > 0:
            expiry_ms = max(1, self.next_expiry_ms - self.rights.wall_ahead_ms)
            if due_ms == 0 or expiry_ms < due_ms:
                due_ms = expiry_ms
        return due_ms

    def denial(self, scope: str, rights: int, now_ms: int) -> Unauthorized | None:
        """Why it may not, or None. By the rules of this moment: links that are open may be told a little later."""
        if self.revision != self.rights.book.revision:
            self.review(now_ms)
        return authorise(self.grants, scope, rights, self.wall_ms(now_ms))

    def rule_for(self, scope: str, rights: int, now_ms: int) -> str:
        """The name of the rule that allows it."""
        grant = find_grant(self.grants, scope, rights, self.wall_ms(now_ms))
        return "" if grant is None else grant.rule_name

    def rule_names(self) -> str:
        """Of all that it has shown, for who keeps watch."""
        return ",".join(dict.fromkeys([grant.rule_name for grant in self.grants.by_scope.values()]))

    def allow(self, grant: Grant) -> None:
        """It has shown a right to be here: from now on it may have what costs memory."""
        self.grants.add(grant)
        self.account.bytes_max = self.known_bytes_max
        self._pay()
        self.connection.set_bounds(
            sessions_max=self.quotas.sessions_per_connection,
            links_max=self.quotas.links_per_connection,
            elements_max=FRAME_ELEMENTS_MAX,
            partial_bytes_max=limits.PARTIAL_BYTES_MAX,
            weighs_frames=True,
        )

    def put_token(self, token: str, audience: str, now_ms: int) -> None:
        """`BrokerError` if it is not good."""
        grant = self.rights.check_token(token, audience, self.wall_ms(now_ms))
        self.allow(grant)
        self.unauthorised_until_ms = 0
        if grant.expires_ms < FOR_EVER and (self.next_expiry_ms == 0 or grant.expires_ms < self.next_expiry_ms):
            self.next_expiry_ms = grant.expires_ms

    def expire(self, now_ms: int) -> None:
        """Forget the tokens that have run out."""
        self.grants.evict_expired(self.wall_ms(now_ms))
        self._refresh(now_ms)

    def review(self, now_ms: int) -> None:
        """Forget what was granted by rules and keys that are no more."""
        self.revision = self.rights.book.revision
        if self.is_authorised:
            self.grants.review(self.rights.book)
            self._refresh(now_ms)

    def _pay(self) -> None:
        held_bytes = self.grants.held_bytes
        self.account.charge(held_bytes - self.paid_bytes)
        self.paid_bytes = held_bytes

    def _refresh(self, now_ms: int) -> None:
        """With the last token gone begins the time to put another."""
        self._pay()
        self.next_expiry_ms = self.grants.next_expiry_ms()
        if not self.is_authorised:
            self.unauthorised_until_ms = now_ms + limits.TOKEN_TIMEOUT_MS
