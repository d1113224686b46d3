-- What one namespace remembers. The format number is in the header (user_version) and in `meta`.
--
-- The columns of `message` and `parked` carry no NOT NULL and no CHECK on purpose: a flipped byte in a row is found by
-- its checksum and reported as that one message; a constraint would make the structural check refuse the whole file.

-- Active messages. key = entity id * 2^40 + sequence number: an entity's messages lie together, in order.
CREATE TABLE message (
    key INTEGER PRIMARY KEY,
    enqueued_ms INTEGER,
    expires_ms INTEGER,
    delivery_count INTEGER,
    enqueue_sequence_number INTEGER,
    session_id TEXT,
    checksum INTEGER,
    overlay BLOB,
    meta BLOB,
    body_id INTEGER, -- where the bytes are if they are not in `raw`
    raw BLOB
);

CREATE INDEX message_expiry ON message (key >> 40, expires_ms) WHERE expires_ms > 0;

-- Only messages of entities that require sessions have a session_id here.
CREATE INDEX message_session ON message (key >> 40, session_id) WHERE session_id IS NOT NULL;

-- Deferred (state 1), scheduled (2) and hidden (3) messages, so that the active ones stay dense.
CREATE TABLE parked (
    key INTEGER PRIMARY KEY,
    state INTEGER,
    due_ms INTEGER,
    enqueued_ms INTEGER,
    expires_ms INTEGER,
    delivery_count INTEGER,
    enqueue_sequence_number INTEGER,
    session_id TEXT,
    checksum INTEGER,
    overlay BLOB,
    meta BLOB,
    body_id INTEGER,
    raw BLOB
);

CREATE INDEX parked_due ON parked (key >> 40, due_ms) WHERE state >= 2;

-- Message sessions that have active messages or a state.
CREATE TABLE session (
    entity_id INTEGER,
    session_id TEXT,
    active INTEGER,
    ready_since INTEGER, -- the sequence number that made it have messages
    state BLOB,
    state_ms INTEGER,
    checksum INTEGER,
    PRIMARY KEY (entity_id, session_id)
) WITHOUT ROWID;

CREATE INDEX session_ready ON session (entity_id, ready_since) WHERE active > 0;

-- Bytes that several rows refer to. Each of these rows has them in its checksum.
CREATE TABLE body (
    id INTEGER PRIMARY KEY,
    raw BLOB
);

-- How many rows refer to a body. `mirror` is the same below zero: a count that does not agree with it is damaged.
CREATE TABLE body_count (
    body_id INTEGER PRIMARY KEY,
    count INTEGER,
    mirror INTEGER
);

-- Empty but for the end of a transaction, when what it names is deleted.
CREATE INDEX body_unused ON body_count (body_id) WHERE count = 0 AND mirror = 0;

-- Ids of accepted messages, 27 bytes each, in the order they were accepted. key = entity id * 2^40 + the number of the
-- last one in the row.
CREATE TABLE accepted_id (
    key INTEGER PRIMARY KEY,
    last_ms INTEGER, -- when that one was accepted
    ids BLOB,
    checksum INTEGER
);

-- Those that memory has no room for, by digest.
CREATE TABLE id_index (
    entity_id INTEGER,
    digest BLOB,
    sequence_number INTEGER,
    accepted_ms INTEGER,
    checksum INTEGER,
    PRIMARY KEY (entity_id, digest)
) WITHOUT ROWID;

-- Up to which number the ids of an entity are there, and when the last of them was accepted.
CREATE TABLE id_indexed (
    entity_id INTEGER PRIMARY KEY,
    upto INTEGER,
    accepted_ms INTEGER,
    checksum INTEGER
);

CREATE TABLE entity (
    id INTEGER PRIMARY KEY,
    kind TEXT,
    path TEXT,
    settings TEXT,
    parent_id INTEGER,
    put_checksum INTEGER,
    last_sequence_number INTEGER,
    active INTEGER,
    deferred INTEGER,
    scheduled INTEGER,
    hidden INTEGER,
    size_bytes INTEGER,
    used_ms INTEGER,
    counters_checksum INTEGER,
    tally BLOB -- what was counted last and is in no row of `ledger`; it ends with its own checksum
);

-- Rules of subscriptions, in the order they are tried.
CREATE TABLE rule (
    entity_id INTEGER,
    number INTEGER, -- its place among those of the subscription
    name TEXT,
    rule TEXT, -- JSON; NULL in the place of one that could not be read
    checksum INTEGER,
    PRIMARY KEY (entity_id, number)
) WITHOUT ROWID;

-- What was counted, and is in no sealed day. `proof` grows with the other numbers, so that a row is added to without being
-- read: 3 operations + 5 units + 7 bytes + the checksum of its key. No flipped byte leaves all of that true.
CREATE TABLE ledger (
    minute INTEGER, -- since 1970
    entity TEXT,
    kind INTEGER,
    operations INTEGER,
    units INTEGER,
    bytes INTEGER,
    proof INTEGER,
    PRIMARY KEY (minute, entity, kind)
) WITHOUT ROWID;

-- Days before this minute are in files of their own; what is left of them in `ledger` is being deleted.
CREATE TABLE ledger_sealed (
    id INTEGER PRIMARY KEY,
    before_minute INTEGER,
    mirror INTEGER -- the same below zero
);

-- Removed entities whose messages are still being deleted, piece by piece. Entity ids are never used again.
CREATE TABLE removed (
    entity_id INTEGER PRIMARY KEY
);

CREATE TABLE meta (
    id INTEGER PRIMARY KEY,
    format INTEGER,
    clock_ms INTEGER,
    last_entity_id INTEGER,
    last_body_number INTEGER,
    created_ms INTEGER, -- when this file was made
    checksum INTEGER
);

-- Up to which frame of the log this file has everything. Twice: rows 1 and 2 say the same.
CREATE TABLE folded (
    id INTEGER PRIMARY KEY,
    upto INTEGER,
    is_logged INTEGER, -- 1 while the log may have more
    checksum INTEGER
);
