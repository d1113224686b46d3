"""The states a connection, a session and a link can be in, and the AMQP conditions that end them.

Numbers rise with a life: a comparison tells "not over yet" from "over". What each performative does in each state is
laid down in `rules`.
"""

from typing import Final

# -- connection: what we expect to read next --------------------------------------------------------------
HEADER: Final = 0  # the first protocol header
SASL_MECHANISMS: Final = 1  # client: the server's offer
SASL_INIT: Final = 2  # server: the client's choice
SASL_DECIDING: Final = 3  # server: nothing, until the owner has decided; bytes are kept
SASL_OUTCOME: Final = 4  # client: the server's decision
AMQP_HEADER: Final = 5  # the header behind SASL
OPENING: Final = 6  # the peer's open
OPENED: Final = 7  # anything
CLOSE_SENT: Final = 8  # the peer's close; all else is discarded
CLOSED: Final = 9  # nothing

# -- session [2.5.5] --------------------------------------------------------------------------------------
SESSION_BEGIN_SENT: Final = 0
SESSION_MAPPED: Final = 1
SESSION_END_SENT: Final = 2  # the peer's end; all else is discarded
SESSION_ENDED: Final = 3

# -- link [2.6.5] -----------------------------------------------------------------------------------------
LINK_ATTACH_SENT: Final = 0
LINK_ATTACH_RCVD: Final = 1  # the owner has to accept or refuse
LINK_ATTACHED: Final = 2
LINK_DETACH_SENT: Final = 3  # the peer's detach; all else is discarded
LINK_DETACHED: Final = 4

# -- conditions [2.8.15 to 2.8.18] ------------------------------------------------------------------------
ILLEGAL_STATE: Final = "amqp:illegal-state"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
WINDOW_VIOLATION: Final = "amqp:session:window-violation"
ERRANT_LINK: Final = "amqp:session:errant-link"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
TRANSFER_LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"
STOLEN: Final = "amqp:link:stolen"
