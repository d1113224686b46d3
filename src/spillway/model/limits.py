"""Every limit that the wire, a message or a client can run into, with its reason.

Azure Standard's published quotas are the defaults; what has no quota there has a bound of ours here, because
whatever is counted or sized by the wire must have one.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * 1024

# -- messages ---------------------------------------------------------------------------------------------
MESSAGE_BYTES_MAX: Final = 256 * KIB  # Azure Standard: one encoded message
# The Python SDK fills a batch by an estimate that forgets part of the envelope (wire: 262,170 bytes seen).
BATCH_SLACK_BYTES: Final = 1 * KIB
BATCH_MESSAGES_MAX: Final = 4_500  # Azure: messages in one batch
MESSAGE_ID_CHARS_MAX: Final = 128
SESSION_ID_CHARS_MAX: Final = 128
PARTITION_KEY_CHARS_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 64 * KIB  # Azure: all application properties of a message
PROPERTY_BYTES_MAX: Final = 32 * KIB  # Azure: one property
DEAD_LETTER_TEXT_CHARS_MAX: Final = 4_096  # Azure: reason and description, each
# .NET's longest time span; now plus this still fits the 64 bits that a time is stored in.
TTL_MS_MAX: Final = 922_337_203_685_477
SCHEDULED_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999: no SDK can read a later time
# The end of the year 2100: what is counted from a clock that was moved there is still a time that SDKs can read.
CLOCK_MS_MAX: Final = 4_133_980_799_999

# -- entities ---------------------------------------------------------------------------------------------
ENTITY_NAME_CHARS_MAX: Final = 260
ENTITY_SIZE_MB_DEFAULT: Final = 1_024
ENTITY_SIZE_MB_MAX: Final = 80 * 1_024  # Azure's largest; it allows whole GB only
LOCK_DURATION_MS_MIN: Final = 5_000
LOCK_DURATION_MS_MAX: Final = 300_000
LOCK_DURATION_MS_DEFAULT: Final = 60_000
DELIVERY_COUNT_MAX_DEFAULT: Final = 10
DUPLICATE_WINDOW_MS_DEFAULT: Final = 600_000
DUPLICATE_WINDOW_MS_MIN: Final = 20_000
DUPLICATE_WINDOW_MS_MAX: Final = 7 * 86_400_000
USER_METADATA_CHARS_MAX: Final = 1_024
DELIVERY_COUNT_MAX_MAX: Final = 2_147_483_647
ENTITIES_MAX: Final = 10_000  # Azure Standard: queues and topics of a namespace
SUBSCRIPTIONS_MAX: Final = 100_000  # of all topics together: ours, each takes memory
SUBSCRIPTIONS_PER_TOPIC_MAX: Final = 2_000  # Azure Standard
SQL_FILTERS_PER_TOPIC_MAX: Final = 2_000  # Azure Standard; with those that take all or nothing
CORRELATION_FILTERS_PER_TOPIC_MAX: Final = 100_000  # Azure Standard
RECEIVERS_PER_ENTITY_MAX: Final = 5_000  # Azure: concurrent receives; of a topic, over all its subscriptions
PARTITIONS: Final = 16  # Azure Standard: of a partitioned entity, each with a store of its own
SUBSCRIPTION_NAME_CHARS_MAX: Final = 50
AUTO_DELETE_MS_MIN: Final = 300_000  # Azure: how long an entity must be idle, at least
# The time when an entity was last used is stored with its counters; by itself at most this often.
USED_STEP_MS: Final = 60_000
FORWARD_HOPS_MAX: Final = 4  # Azure: from entity to entity; then a message is dead-lettered
ACCESS_RULES_MAX: Final = 12  # Azure: of a namespace, of a queue, of a topic
ACCESS_RULE_NAME_CHARS_MAX: Final = 256
ACCESS_KEY_CHARS: Final = 44  # 256 bits in base64

# -- one request over $management ---------------------------------------------------------------------------
PEEK_MESSAGES_MAX: Final = 5_000  # and never more than PEEK_BYTES_MAX of them
PEEK_BYTES_MAX: Final = 1 * MIB
PEEKS_AT_ONCE: Final = 4  # of a namespace; the others wait: what was read stays in memory until it is answered
LOCK_TOKENS_MAX: Final = 5_000
SEQUENCE_NUMBERS_MAX: Final = 5_000
NUMBERS_PER_LOAD: Final = 500  # of them asked of the store at a time
BATCH_DELETE_MAX: Final = 4_000
RULES_LISTED_MAX: Final = 2_000  # and never more than RULES_LISTED_BYTES_MAX of them
RULES_LISTED_BYTES_MAX: Final = 256 * KIB  # clients page through them by how many came
BY_NUMBER_BYTES_MAX: Final = 16 * MIB  # messages received or cancelled by number in one request

# -- the resident window: queue depth costs disk, not memory -------------------------------------------------
RESIDENT_MESSAGES_MAX: Final = 4_000  # per entity
RESIDENT_BYTES_MAX: Final = 8 * MIB  # per entity
RESIDENT_NAMESPACE_BYTES_MAX: Final = 256 * MIB
RESIDENT_MESSAGE_BYTES: Final = 600  # what a message takes in memory besides its bytes
LOCK_BYTES_MAX: Final = 256 * MIB  # of all locks of a namespace: some 650,000
RULES_BYTES_MAX: Final = 1_024 * MIB  # of all rules of a namespace
QUERY_ROWS_MAX: Final = 1_000  # that one query reads, or passes over: then others have theirs, and commits go on
LOAD_MESSAGES: Final = 1_000  # asked of the store at a time
LOAD_BYTES: Final = 2 * MIB
SESSIONS_PER_LOAD: Final = 100  # message sessions looked for, or read from, at a time
SWEEP_MESSAGES: Final = 500  # due or expired messages handled in one turn
FORWARD_MESSAGES: Final = 500  # passed on together, where the store is asked about duplicates first
LEDGER_ROWS_MAX: Final = 5_000  # asked of the store at a time: some 5 ms of the writer's

# -- duplicate detection: ids cost disk, not memory ------------------------------------------------------------
ID_MEMORY_MAX: Final = 4_000_000  # ids of a namespace in memory; of others the store is asked
ID_MEMORY_BYTES: Final = 40  # what one takes there, overheads included
ID_ROW_MAX: Final = 1_024  # ids in one row of the store
READ_IDS: Final = 20_000  # read at a time when an entity is first sent to after a start
ASK_IDS: Final = 2_000  # looked up in the store at a time
INDEX_IDS: Final = 1_000  # put into the index of the store at a time
SWEEP_IDS: Final = 1_000  # forgotten at a time; many more where no index has them

# -- throttling ------------------------------------------------------------------------------------------------
BUSY_MS: Final = 10_000  # who is told "server busy" waits so long, and finds it over (contract I5, I6)
MANAGEMENT_OPERATIONS: Final = 10  # Azure: what a create, read, update or delete counts; a message counts 1

# -- fairness and back-pressure -------------------------------------------------------------------------------
COMMANDS_PER_TURN_MAX: Final = 256  # of one peer
COMMAND_BYTES_PER_TURN_MAX: Final = 1 * MIB
FRAMES_PER_TURN_MAX: Final = 1_024  # of all peers that have sent more than was read at once; then others have theirs
FRAMES_PER_VISIT_MAX: Final = 256  # of one peer: as many as its commands; of 1 KB each, what a read of a socket brings
FRAMES_PER_VISIT_MIN: Final = 16  # also of a peer that comes when the others have had all frames of a turn
TOKEN_FRAMES: Final = 32  # a token that is put counts as so many frames more: it is checked, 50 µs
REQUEST_FRAMES: Final = 8  # and so does a request to $management
# Work that one turn does for publishing what is sent in it, in steps of about a microsecond.
STEPS_PER_TURN_MAX: Final = 10_000
# And for what happens by itself: the commit of that is what others wait behind, and takes two to four times as long.
CHORE_STEPS_PER_TURN_MAX: Final = 4_000
FILTER_STEPS_PER_TURN_MAX: Final = 4_000  # of both together, for trying rules
COPY_STEPS: Final = 20  # one copy of a message for a subscription, written down
LOCK_STEPS: Final = 40  # one lock that has run out: its row is read, changed and written
RULE_STEPS: Final = 100  # a rule added or removed, or read for the first time after a start: besides its text
# What a step of these weighs of what a peer brings into a turn: rules of 2,000 characters together, or 20 small ones.
RULE_STEP_BYTES: Final = COMMAND_BYTES_PER_TURN_MAX // 2_000
DELIVERIES_PER_TURN_MAX: Final = 1_000  # of one entity, then others have their turn
DELIVERIES_PER_VISIT_MAX: Final = 32  # to one link before the next link of the entity is served
PENDING_BYTES_PAUSE: Final = 32 * MIB  # waiting for the disk: stop reading sockets, until half of it is left
# Early delivery: with more than this waiting for the disk, deliveries wait as well. What takes a sequence number weighs
# 64 bytes and more, so fewer than 4,096 numbers of an entity are seen by somebody and on no disk. A life that did not
# end in order is followed by one that leaves out this many.
EARLY_BYTES_MAX: Final = 256 * KIB
NUMBERS_SKIPPED: Final = 65_536
LOG_BATCH_BYTES: Final = 16 * MIB  # in the log and not in the file yet; twice that, and senders are held back
DISK_RESERVE_BYTES: Final = 64 * MIB  # below this much free space clients add nothing
DISK_FULL_BYTES: Final = 48 * MIB  # and below this only what deletes is done
DISK_WATCHED_BYTES: Final = 4_096 * MIB  # below this the core knows to the byte how much there is
DISK_BALLAST_BYTES: Final = 32 * MIB  # of the reserve, in a file: given up when others have filled the disk

# -- connections of a namespace ------------------------------------------------------------------------------
CONNECTIONS_MAX: Final = 5_000  # Azure: concurrent AMQP connections
PENDING_CONNECTIONS_MAX: Final = 1_000  # those of them that have shown no token yet: ours

# -- one connection --------------------------------------------------------------------------------------------
FRAME_BYTES_MAX: Final = 64 * KIB
FRAME_BYTES_MIN: Final = 512  # AMQP 1.0 section 2.7.1
CHANNEL_MAX: Final = 4_999
HANDLE_MAX: Final = 4_999
LINKS_PER_CONNECTION_MAX: Final = 5_000
UNSETTLED_PER_LINK_MAX: Final = 100_000  # messages locked by one receiver
IDLE_TIMEOUT_MS: Final = 240_000
HEADER_TIMEOUT_MS: Final = 5_000  # a socket that says nothing
TOKEN_TIMEOUT_MS: Final = 20_000  # a connection without a valid token (Azure's rule)
# Before its first good token. A client needs some ten frames; one without a token must cost less than what it sends.
UNAUTHENTICATED_FRAMES_PER_SECOND: Final = 100
UNAUTHENTICATED_FRAME_WEIGHT: Final = 8  # a frame of such a client may be a token: as much work as so many others
UNAUTHENTICATED_UNREAD_BYTES_MAX: Final = 32 * KIB  # received faster than that allows
BAD_TOKENS_MAX: Final = 5  # then the connection ends
# So much later, while what is asked meanwhile is answered: JavaScript's process ends if a token has no answer.
BAD_TOKENS_GRACE_MS: Final = 2_000
OUTPUT_BYTES_PAUSE: Final = 1 * MIB  # unsent bytes of a connection: no more deliveries until it reads
PARTIAL_BYTES_MAX: Final = 32 * MIB  # of unfinished deliveries of several frames
# All that is held for clients beyond the turn it came in, of the process; a quarter of `memory-mb` where that is set.
HELD_BYTES_MAX: Final = 1_024 * MIB
CONNECTION_HELD_BYTES_MAX: Final = 128 * MIB  # of one connection, and never more than half of all
UNAUTHENTICATED_HELD_BYTES_MAX: Final = 256 * KIB  # of one that has shown no token
CONNECTION_BYTES: Final = 8 * KIB  # what a connection takes by being there
TLS_BYTES: Final = 64 * KIB  # and what TLS adds
LINK_CREDIT: Final = 1_000  # what a sender is granted, topped up at half

# -- faults on purpose -----------------------------------------------------------------------------------------
FAULTS_MAX: Final = 1_000  # planted at once in a namespace: each operation looks at all of its kind
FAULTS_REMEMBERED_MAX: Final = 1_500  # with those that are spent or have ended and are still listed
FAULT_DELAY_MS_MAX: Final = 15 * 60_000  # contract I8: up to 15 minutes
FAULT_DURATION_MS_MAX: Final = 24 * 3_600_000
FAULT_COUNT_MAX: Final = 1_000_000_000
FAULT_SEED_MAX: Final = (1 << 53) - 1  # what JSON carries unharmed everywhere
FAULT_TEXT_CHARS_MAX: Final = 1_024
CONDITION_CHARS_MAX: Final = 128
DELAYED_EFFECTS_MAX: Final = 100_000  # answers held back by slow faults: beyond it the earliest are said early
