-- Every statement the store runs, by name. Rows of both message tables are read in one column order.

-- name: insert_message
INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_parked
INSERT INTO parked VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: delete_messages
DELETE FROM message WHERE key BETWEEN ? AND ?

-- name: delete_parked
DELETE FROM parked WHERE key BETWEEN ? AND ?

-- name: select_row
SELECT key, 0, 0, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM message WHERE key = ?1
UNION ALL
SELECT key, state, due_ms, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM parked WHERE key = ?1

-- name: select_active
SELECT key, 0, 0, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM message WHERE key BETWEEN ? AND ? ORDER BY key

-- name: select_active_of_session
SELECT key, 0, 0, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM message INDEXED BY message_session
WHERE session_id IS NOT NULL AND key >> 40 = ? AND session_id = ? AND key BETWEEN ? AND ? ORDER BY key

-- name: select_session
SELECT entity_id, session_id, active, ready_since, state, state_ms, checksum
FROM session WHERE entity_id = ? AND session_id = ?

-- name: select_ready_sessions
SELECT entity_id, session_id, active, ready_since, state, state_ms, checksum
FROM session INDEXED BY session_ready
WHERE active > 0 AND entity_id = ? AND ready_since > ? ORDER BY ready_since LIMIT ?

-- name: select_sessions
SELECT entity_id, session_id, active, ready_since, state, state_ms, checksum
FROM session WHERE entity_id = ? ORDER BY session_id LIMIT ? OFFSET ?

-- name: select_sessions_changed_since
SELECT entity_id, session_id, active, ready_since, state, state_ms, checksum
FROM session WHERE entity_id = ? AND state IS NOT NULL AND state_ms >= ? ORDER BY session_id LIMIT ? OFFSET ?

-- name: select_all_sessions
SELECT entity_id, session_id, active, ready_since, state, state_ms, checksum FROM session

-- name: put_session
INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: delete_session
DELETE FROM session WHERE entity_id = ? AND session_id = ?

-- name: delete_sessions
DELETE FROM session WHERE entity_id = ?

-- name: count_session
SELECT count(*), coalesce(min(key), 0) FROM message INDEXED BY message_session
WHERE session_id IS NOT NULL AND key >> 40 = ? AND session_id = ?

-- name: delete_session_of_bytes
DELETE FROM session WHERE entity_id = ? AND session_id = CAST(? AS TEXT)

-- name: count_sessions
SELECT key >> 40, session_id, count(*) FROM message WHERE session_id IS NOT NULL GROUP BY 1, 2

-- name: select_any
SELECT key, 0, 0, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM message WHERE key BETWEEN ?1 AND ?2
UNION ALL
SELECT key, state, due_ms, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM parked WHERE key BETWEEN ?1 AND ?2 AND state IS NOT 3 -- hidden
ORDER BY 1

-- name: select_any_of_session
SELECT key, 0, 0, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM message INDEXED BY message_session
WHERE session_id IS NOT NULL AND key >> 40 = ?3 AND session_id = ?4 AND key BETWEEN ?1 AND ?2
UNION ALL
SELECT key, state, due_ms, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM parked WHERE key BETWEEN ?1 AND ?2 AND state IS NOT 3 -- hidden
ORDER BY 1

-- name: select_due
SELECT key, state, due_ms, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM parked INDEXED BY parked_due WHERE state >= 2 AND key >> 40 = ? ORDER BY due_ms, key

-- name: select_expiring
SELECT key, 0, 0, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM message INDEXED BY message_expiry WHERE expires_ms > 0 AND key >> 40 = ? ORDER BY expires_ms, key

-- name: next_due_after_entity
SELECT key >> 40, due_ms FROM parked INDEXED BY parked_due
WHERE state >= 2 AND key >> 40 > ? ORDER BY key >> 40, due_ms LIMIT 1

-- name: next_expiry_after_entity
SELECT key >> 40, expires_ms FROM message INDEXED BY message_expiry
WHERE expires_ms > 0 AND key >> 40 > ? ORDER BY key >> 40, expires_ms LIMIT 1

-- name: next_id_after_entity
SELECT key >> 40, last_ms FROM accepted_id WHERE key >= (? + 1) << 40 ORDER BY key LIMIT 1

-- name: insert_ids
INSERT INTO accepted_id VALUES (?, ?, ?, ?)

-- name: select_ids
SELECT key, last_ms, ids, checksum FROM accepted_id WHERE key > ? AND key <= ? ORDER BY key

-- name: delete_ids
DELETE FROM accepted_id WHERE key BETWEEN ? AND ?

-- name: delete_some_ids
DELETE FROM accepted_id WHERE key IN (SELECT key FROM accepted_id WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?)

-- name: select_all_ids
SELECT key, last_ms, ids, checksum FROM accepted_id

-- name: put_index
INSERT OR REPLACE INTO id_index VALUES (?, ?, ?, ?, ?)

-- name: select_index
SELECT digest, sequence_number, accepted_ms, checksum FROM id_index WHERE entity_id = ? AND digest = ?

-- name: delete_from_index
DELETE FROM id_index WHERE entity_id = ? AND digest = ? AND sequence_number <= ?

-- name: delete_some_index
DELETE FROM id_index WHERE entity_id = ?1 AND digest IN (SELECT digest FROM id_index WHERE entity_id = ?1 LIMIT ?2)

-- name: select_all_index
SELECT entity_id, digest, sequence_number, accepted_ms, checksum FROM id_index

-- name: put_indexed
INSERT OR REPLACE INTO id_indexed VALUES (?, ?, ?, ?)

-- name: select_indexed
SELECT upto, accepted_ms, checksum FROM id_indexed WHERE entity_id = ?

-- name: delete_indexed
DELETE FROM id_indexed WHERE entity_id = ?

-- name: put_entity
INSERT INTO entity VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0, 0, ?, NULL)
ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, path = excluded.path, settings = excluded.settings,
    parent_id = excluded.parent_id, put_checksum = excluded.put_checksum

-- name: put_settings
UPDATE entity SET settings = ?, put_checksum = ? WHERE id = ?

-- name: put_rule
INSERT OR REPLACE INTO rule VALUES (?, ?, ?, ?, ?)

-- name: delete_rule
DELETE FROM rule WHERE entity_id = ? AND number = ?

-- name: delete_rule_at
DELETE FROM rule WHERE typeof(entity_id) || hex(entity_id) || ' ' || typeof(number) || hex(number) = ?

-- name: delete_some_rules
DELETE FROM rule WHERE entity_id = ?1 AND number IN (SELECT number FROM rule WHERE entity_id = ?1 LIMIT ?2)

-- name: select_rules
SELECT entity_id, number, name, rule, checksum,
    typeof(entity_id) || hex(entity_id) || ' ' || typeof(number) || hex(number)
FROM rule ORDER BY entity_id, number

-- name: select_rules_of
SELECT entity_id, number, name, rule, checksum,
    typeof(entity_id) || hex(entity_id) || ' ' || typeof(number) || hex(number)
FROM rule WHERE entity_id = ? ORDER BY number

-- name: remove_entity
DELETE FROM entity WHERE id = ?

-- name: put_counters
UPDATE entity SET last_sequence_number = ?, active = ?, deferred = ?, scheduled = ?, hidden = ?, size_bytes = ?,
    used_ms = ?, counters_checksum = ? WHERE id = ?

-- name: put_counters_and_tally
UPDATE entity SET last_sequence_number = ?, active = ?, deferred = ?, scheduled = ?, hidden = ?, size_bytes = ?,
    used_ms = ?, counters_checksum = ?, tally = ? WHERE id = ?

-- name: put_tally
UPDATE entity SET tally = ? WHERE id = ?

-- name: select_entities
SELECT id, kind, path, settings, parent_id, put_checksum,
    last_sequence_number, active, deferred, scheduled, hidden, size_bytes, used_ms, counters_checksum, tally
FROM entity ORDER BY id

-- name: select_entity
SELECT id, kind, path, settings, parent_id, put_checksum,
    last_sequence_number, active, deferred, scheduled, hidden, size_bytes, used_ms, counters_checksum, tally
FROM entity WHERE id = ?

-- name: weigh_messages
SELECT count(*), coalesce(sum(
    CASE WHEN body_id IS NULL THEN length(raw) ELSE (SELECT length(body.raw) FROM body WHERE id = body_id) END), 0)
FROM message WHERE key BETWEEN ? AND ?

-- name: weigh_parked
SELECT coalesce(sum(state = 1), 0), coalesce(sum(state = 2), 0), coalesce(sum(state = 3), 0), coalesce(sum(
    CASE WHEN body_id IS NULL THEN length(raw) ELSE (SELECT length(body.raw) FROM body WHERE id = body_id) END), 0)
FROM parked WHERE key BETWEEN ? AND ?

-- name: last_number_of
SELECT coalesce(max(key), 0) FROM (
    SELECT max(key) AS key FROM message WHERE key BETWEEN ?1 AND ?2
    UNION ALL
    SELECT max(key) FROM parked WHERE key BETWEEN ?1 AND ?2
    UNION ALL
    SELECT max(key) FROM accepted_id WHERE key BETWEEN ?1 AND ?2
)

-- name: last_entity_of_all
SELECT coalesce(max(id), 0) FROM (
    SELECT max(id) AS id FROM entity
    UNION ALL
    SELECT max(entity_id) FROM removed
    UNION ALL
    SELECT max(key) >> 40 FROM message
    UNION ALL
    SELECT max(key) >> 40 FROM parked
    UNION ALL
    SELECT max(key) >> 40 FROM accepted_id
)

-- name: last_body_of_all
SELECT coalesce(max(id), 0) FROM (SELECT max(id) AS id FROM body UNION ALL SELECT max(body_id) FROM body_count)

-- name: last_of_index
SELECT coalesce(max(sequence_number), 0), coalesce(max(accepted_ms), 0) FROM id_index WHERE entity_id = ?

-- name: select_all_indexed
SELECT entity_id, upto, accepted_ms, checksum FROM id_indexed

-- name: put_removed
INSERT OR IGNORE INTO removed VALUES (?)

-- name: select_removed
SELECT entity_id FROM removed ORDER BY entity_id

-- name: forget_removed
DELETE FROM removed WHERE entity_id = ?

-- name: delete_some_messages
DELETE FROM message WHERE key IN (SELECT key FROM message WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?)

-- name: delete_some_parked
DELETE FROM parked WHERE key IN (SELECT key FROM parked WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?)

-- name: select_body
SELECT raw FROM body WHERE id = ?

-- name: select_any_body
SELECT 1 FROM body_count LIMIT 1

-- name: insert_body
INSERT INTO body VALUES (?, ?)

-- name: insert_body_count
INSERT INTO body_count VALUES (?1, ?2, -?2)

-- name: add_to_body_count
UPDATE body_count SET count = count + ?2, mirror = mirror - ?2 WHERE body_id = ?1 AND count + mirror = 0

-- name: delete_unused_bodies
DELETE FROM body WHERE id IN (
    SELECT body_id FROM body_count INDEXED BY body_unused WHERE count = 0 AND mirror = 0
)

-- name: delete_unused_body_counts
DELETE FROM body_count INDEXED BY body_unused WHERE count = 0 AND mirror = 0

-- name: select_body_ids
SELECT body_id FROM message WHERE key BETWEEN ?1 AND ?2 AND body_id IS NOT NULL
UNION ALL
SELECT body_id FROM parked WHERE key BETWEEN ?1 AND ?2 AND body_id IS NOT NULL

-- name: select_some_body_ids
SELECT body_id FROM (SELECT body_id FROM message WHERE key BETWEEN ?1 AND ?2 ORDER BY key LIMIT ?3)
WHERE body_id IS NOT NULL
UNION ALL
SELECT body_id FROM (SELECT body_id FROM parked WHERE key BETWEEN ?1 AND ?2 ORDER BY key LIMIT ?3)
WHERE body_id IS NOT NULL

-- name: count_body_references
SELECT body_id, count(*) FROM (
    SELECT body_id FROM message WHERE body_id IS NOT NULL
    UNION ALL
    SELECT body_id FROM parked WHERE body_id IS NOT NULL
) GROUP BY body_id

-- name: select_body_counts
SELECT body_id, count, mirror FROM body_count

-- name: select_uncounted_bodies
SELECT id FROM body WHERE id NOT IN (SELECT body_id FROM body_count)

-- name: add_to_ledger
INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (minute, entity, kind) DO UPDATE SET operations = operations + excluded.operations,
    units = units + excluded.units, bytes = bytes + excluded.bytes, proof = proof + excluded.proof - ?

-- name: select_ledger
SELECT minute, entity, kind, operations, units, bytes, proof FROM ledger
WHERE minute >= ? AND minute < ? AND (minute, entity, kind) > (?, ?, ?) ORDER BY minute, entity, kind LIMIT ?

-- name: first_of_ledger
SELECT minute FROM ledger WHERE minute >= ? ORDER BY minute LIMIT 1

-- name: delete_some_of_ledger
DELETE FROM ledger WHERE (minute, entity, kind) IN (
    SELECT minute, entity, kind FROM ledger WHERE minute < ? ORDER BY minute, entity, kind LIMIT ?
)

-- name: select_whole_ledger
SELECT minute, entity, kind, operations, units, bytes, proof FROM ledger

-- name: put_ledger_sealed
INSERT OR REPLACE INTO ledger_sealed VALUES (1, ?1, -?1)

-- name: select_ledger_sealed
SELECT before_minute, mirror FROM ledger_sealed

-- name: put_meta
INSERT OR REPLACE INTO meta VALUES (1, ?, ?, ?, ?, ?, ?)

-- name: select_meta
SELECT format, clock_ms, last_entity_id, last_body_number, created_ms, checksum FROM meta

-- name: last_message
SELECT max(key) FROM message WHERE key BETWEEN ? AND ?

-- name: put_folded
INSERT OR REPLACE INTO folded VALUES (?, ?, ?, ?)

-- name: select_folded
SELECT id, upto, is_logged, checksum FROM folded

-- name: select_schema
SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name

-- name: count_rows
SELECT entity_id, sum(state = 0), sum(state = 1), sum(state = 2), sum(state = 3) FROM (
    SELECT key >> 40 AS entity_id, 0 AS state FROM message
    UNION ALL
    SELECT key >> 40, state FROM parked
) GROUP BY entity_id

-- name: select_all
SELECT key, 0, 0, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM message
UNION ALL
SELECT key, state, due_ms, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum,
    overlay, meta, body_id, raw
FROM parked

-- name: disagreeing_expiry
SELECT key FROM (
    SELECT key >> 40, expires_ms, key FROM message NOT INDEXED WHERE expires_ms > 0
    EXCEPT
    SELECT key >> 40, expires_ms, key FROM message INDEXED BY message_expiry WHERE expires_ms > 0 AND key >> 40 >= 0
)
UNION
SELECT key FROM (
    SELECT key >> 40, expires_ms, key FROM message INDEXED BY message_expiry WHERE expires_ms > 0 AND key >> 40 >= 0
    EXCEPT
    SELECT key >> 40, expires_ms, key FROM message NOT INDEXED WHERE expires_ms > 0
)

-- name: disagreeing_due
SELECT key FROM (
    SELECT key >> 40, due_ms, key FROM parked NOT INDEXED WHERE state >= 2
    EXCEPT
    SELECT key >> 40, due_ms, key FROM parked INDEXED BY parked_due WHERE state >= 2 AND key >> 40 >= 0
)
UNION
SELECT key FROM (
    SELECT key >> 40, due_ms, key FROM parked INDEXED BY parked_due WHERE state >= 2 AND key >> 40 >= 0
    EXCEPT
    SELECT key >> 40, due_ms, key FROM parked NOT INDEXED WHERE state >= 2
)
