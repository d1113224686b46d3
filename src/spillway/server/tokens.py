"""Whether a token that came with a request, and not over `$cbs`, allows what is asked."""

from dataclasses import dataclass

from spillway.dialect.rights import MANAGE, Grants, Rights, authorise, claimed_rule
from spillway.model.errors import Unauthorized
from spillway.server.audit import AuditLog
from spillway.server.clock import Clock


@dataclass(frozen=True)
class Verdict:
    """`problem` is what to answer, or None if the token allows it; `rule` whose key signed the token."""

    problem: str | None
    rule: str = ""


class TokenGate:
    """Asks for Manage. The answers do not say why a token is no good; the audit log does."""

    def __init__(self, rights: Rights, clock: Clock, audit: AuditLog, lacking_text: str, bad_text: str) -> None:
        self.rights = rights
        self.clock = clock
        self.audit = audit
        self.lacking_text = lacking_text
        self.bad_text = bad_text

    def judge(self, token: str, path: str, sent: str, where: str) -> Verdict:
        """JavaScript signs the whole URL that it sends, query included; others sign a path or the namespace."""
        now_ms = self.clock.real_ms()
        grants = Grants()
        try:
            grant = self.rights.check_token(token, path, now_ms, also=sent)
        except Unauthorized as error:
            self.audit.refused(where, "http", claimed_rule(token), path, error.description)
            return Verdict(self.bad_text)
        grants.add(grant)
        denied = authorise(grants, path, MANAGE, now_ms)
        if denied is not None:
            self.audit.refused(where, "http", grant.rule_name, path, denied.description)
            return Verdict(self.lacking_text)
        return Verdict(None, grant.rule_name)
