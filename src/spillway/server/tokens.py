"""Whether a token that came with a request, and not over `$cbs`, allows what is asked."""

import logging

from spillway.dialect.addresses import shown
from spillway.dialect.rights import Rights
from spillway.model.errors import Unauthorized
from spillway.server.clock import Clock

log = logging.getLogger(__name__)


class TokenGate:
    def __init__(self, rights: Rights, clock: Clock, right: int, lacking_text: str, bad_text: str) -> None:
        self.rights = rights
        self.clock = clock
        self.right = right
        self.lacking_text = lacking_text
        self.bad_text = bad_text

    def refuse(self, token: str, path: str, sent: str) -> str | None:
        """What to answer, or None if the token is good for the path and has the right.

        JavaScript signs the whole URL that it sends, query included; others sign a path or the namespace.
        """
        now_ms = self.clock.real_ms()
        why = ""
        for audience in (path, sent):
            try:
                grant = self.rights.check_token(token, audience, now_ms)
            except Unauthorized as error:
                why = why or error.description
                continue
            return None if grant.rights & self.right else self.lacking_text
        log.warning("a token was refused for '%s': %s", shown(path), why)  # the answer does not say why
        return self.bad_text
