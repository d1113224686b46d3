"""Whether a token that came with a request, and not over `$cbs`, allows what is asked."""

from dataclasses import dataclass

from spillway.dialect.rights import MANAGE, SEND, Grant, Grants, Rights, authorise, claimed_rule
from spillway.model.errors import Unauthorized
from spillway.server.audit import AuditLog
from spillway.server.clock import Clock


@dataclass(frozen=True)
class TokenVerdict:
    """`problem` is what to answer, or None if the token allows it; `rule` whose key signed the token.

    `is_good`: the token is, though the right may be missing.
    """

    problem: str | None
    rule: str = ""
    is_good: bool = False


class TokenGate:
    """Asks for Manage. The answers do not say why a token is no good; the audit log does."""

    def __init__(self, rights: Rights, clock: Clock, audit: AuditLog, lacking_text: str, bad_text: str) -> None:
        self.rights = rights
        self.clock = clock
        self.audit = audit
        self.lacking_text = lacking_text
        self.bad_text = bad_text

    def judge(self, token: str, path: str, sent: str, host: str, where: str) -> TokenVerdict:
        """JavaScript signs the whole URL that it sends, query included; others a path, the namespace or its host."""
        try:
            grant = self.rights.check_token(token, path, self.clock.wall_ms(), also=sent, host=host)
        except Unauthorized as error:
            self.audit.refused(where, "http", claimed_rule(token), path, error.description)
            return TokenVerdict(self.bad_text)
        denied = self.denial(grant, path, MANAGE)
        if denied is not None:
            self.audit.refused(where, "http", grant.rule_name, path, denied.description)
            return TokenVerdict(self.lacking_text, grant.rule_name, is_good=True)
        return TokenVerdict(None, grant.rule_name, is_good=True)

    def may_send(self, tokens: list[str], path: str, host: str, where: str) -> bool:
        """JavaScript signs the name of the host alone."""
        why = "no token for it came with the request"
        for token in tokens:
            try:
                grant = self.rights.check_token(token, path, self.clock.wall_ms(), also=f"{host}/{path}")
            except Unauthorized as error:
                why = error.description
                continue
            denied = self.denial(grant, path, SEND)
            if denied is None:
                return True
            why = denied.description
        self.audit.refused(where, "forwarding", ",".join(claimed_rule(token) for token in tokens), path, why)
        return False

    def denial(self, grant: Grant, path: str, right: int) -> Unauthorized | None:
        grants = Grants()
        grants.add(grant)
        return authorise(grants, path, right, self.clock.wall_ms())
