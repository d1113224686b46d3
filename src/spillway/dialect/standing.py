"""What a connection has shown a right to, and until when. Who has shown none is borne, not trusted."""

from typing import Final

from spillway.amqp.codec import FRAME_ELEMENTS_MAX, LOGIN_ELEMENTS_MAX
from spillway.amqp.connection import ConnectionOptions
from spillway.dialect.rights import FOR_EVER, Grant, Grants, Rights, authorise, find_grant
from spillway.model import limits
from spillway.model.errors import Unauthorized
from spillway.model.quotas import Quotas

# Before its first token a client needs one session and two links to `$cbs`; with no more than this a thousand of them
# can be borne.
STRANGER_SESSIONS_MAX: Final = 16
STRANGER_LINKS_MAX: Final = 32
STRANGER_PARTIAL_BYTES_MAX: Final = 128 * limits.KIB


class Standing:
    """`options` are the connection's: a stranger's bounds in them are lifted with its first grant."""

    def __init__(self, rights: Rights, options: ConnectionOptions, quotas: Quotas) -> None:
        self.rights = rights
        self.options = options
        self.quotas = quotas
        self.grants = Grants()
        self.revision = rights.book.revision  # of the rules by which the grants were last looked at
        self.next_expiry_ms = 0  # of a token; 0: none ends
        self.unauthorised_until_ms = 0  # all tokens have run out: when to close
        options.sessions_max = min(STRANGER_SESSIONS_MAX, quotas.sessions_per_connection)
        options.links_max = min(STRANGER_LINKS_MAX, quotas.links_per_connection)
        options.elements_max = LOGIN_ELEMENTS_MAX
        options.partial_bytes_max = STRANGER_PARTIAL_BYTES_MAX

    @property
    def is_authorised(self) -> bool:
        return len(self.grants.by_scope) > 0

    def denial(self, scope: str, rights: int, now_ms: int) -> Unauthorized | None:
        """Why it may not, or None. By the rules of this moment: links that are open may be told a little later."""
        if self.revision != self.rights.book.revision:
            self.review(now_ms)
        return authorise(self.grants, scope, rights, now_ms)

    def rule_for(self, scope: str, rights: int, now_ms: int) -> str:
        """The name of the rule that allows it."""
        grant = find_grant(self.grants, scope, rights, now_ms)
        return "" if grant is None else grant.rule_name

    def rule_names(self) -> str:
        """Of all that it has shown, for who keeps watch."""
        return ",".join(dict.fromkeys([grant.rule_name for grant in self.grants.by_scope.values()]))

    def allow(self, grant: Grant) -> None:
        """It has shown a right to be here: from now on it may have what costs memory."""
        self.grants.add(grant)
        options = self.options
        options.sessions_max = self.quotas.sessions_per_connection
        options.links_max = self.quotas.links_per_connection
        options.elements_max = FRAME_ELEMENTS_MAX
        options.partial_bytes_max = limits.PARTIAL_BYTES_MAX

    def put_token(self, token: str, audience: str, now_ms: int) -> None:
        """`BrokerError` if it is not good."""
        grant = self.rights.check_token(token, audience, now_ms)
        # Azure refuses an entity that does not exist here, with 404. Python then retries for 17 s and shows no text at
        # all; refused at attach, it says at once which entity is missing (docs/adr/0005).
        self.allow(grant)
        self.unauthorised_until_ms = 0
        if grant.expires_ms < FOR_EVER and (self.next_expiry_ms == 0 or grant.expires_ms < self.next_expiry_ms):
            self.next_expiry_ms = grant.expires_ms

    def expire(self, now_ms: int) -> None:
        """Forget the tokens that have run out."""
        self.grants.drop_expired(now_ms)
        self._look_on(now_ms)

    def review(self, now_ms: int) -> None:
        """Forget what was granted by rules and keys that are no more."""
        self.revision = self.rights.book.revision
        if self.is_authorised:
            self.grants.review(self.rights.book)
            self._look_on(now_ms)

    def _look_on(self, now_ms: int) -> None:
        """With the last token gone begins the time to put another."""
        self.next_expiry_ms = self.grants.next_expiry_ms()
        if not self.is_authorised:
            self.unauthorised_until_ms = now_ms + limits.TOKEN_TIMEOUT_MS
