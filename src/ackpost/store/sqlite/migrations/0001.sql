-- Every position is (milliseconds since the epoch << 20) | counter: rows lie in the order they were made, and "made at"
-- is position >> 20. A delivery made at accept lies right behind its event, so one range finds an event's deliveries.
-- Columns ending in _ms are milliseconds since the epoch. "document" is JSON of the struct of core/model.py.

CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    salt INTEGER NOT NULL,
    position_bound INTEGER NOT NULL,      -- no position above it was ever given
    incarnation INTEGER NOT NULL,
    node TEXT,                            -- owner; NULL after a clean close
    host TEXT,                            -- the running system it is on
    owned_since_ms INTEGER,
    lease_expires_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE tenant (
    position INTEGER PRIMARY KEY,
    uid TEXT NOT NULL,
    deleted INTEGER NOT NULL,
    routing_version INTEGER NOT NULL,
    document TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX tenant_uid ON tenant (uid) WHERE deleted = 0;

CREATE TABLE api_key (
    position INTEGER PRIMARY KEY,
    tenant INTEGER,                       -- NULL: operator
    digest BLOB NOT NULL,
    last_used_ms INTEGER,
    document TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX api_key_digest ON api_key (digest);
CREATE INDEX api_key_tenant ON api_key (tenant, position);

CREATE TABLE endpoint (
    position INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    uid TEXT,
    url TEXT NOT NULL,
    state TEXT NOT NULL,
    circuit TEXT NOT NULL,
    rev INTEGER NOT NULL,
    hears INTEGER NOT NULL,               -- 1: its filter names Ackpost's own events
    paused_since_ms INTEGER,
    paused_total_ms INTEGER NOT NULL,
    document TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX endpoint_uid ON endpoint (tenant, uid) WHERE uid IS NOT NULL;
CREATE INDEX endpoint_tenant ON endpoint (tenant, position);
CREATE INDEX endpoint_hears ON endpoint (tenant, position) WHERE hears = 1;

-- What requests looked like; outlives the endpoint.
CREATE TABLE endpoint_version (
    endpoint INTEGER NOT NULL,
    version INTEGER NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (endpoint, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE key_state (
    id INTEGER PRIMARY KEY,               -- position of the key's first event
    tenant INTEGER NOT NULL,
    key TEXT NOT NULL,
    last_sequence INTEGER NOT NULL,
    last_event INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX key_state_key ON key_state (tenant, key);

CREATE TABLE event (
    position INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    type TEXT NOT NULL,
    fanout INTEGER NOT NULL,              -- deliveries made at accept: at position + 1 to position + fanout
    key_id INTEGER,
    sequence INTEGER,
    occurred_at_ms INTEGER,               -- NULL: when it was accepted
    uid TEXT,
    channels TEXT,                        -- JSON array; NULL: none
    metadata BLOB,
    data BLOB                             -- NULL: expired
) STRICT;
CREATE INDEX event_key ON event (key_id, position) WHERE key_id IS NOT NULL;

CREATE TABLE event_uid (
    tenant INTEGER NOT NULL,
    uid TEXT NOT NULL,
    event INTEGER NOT NULL,
    digest BLOB,
    PRIMARY KEY (tenant, uid)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    id INTEGER PRIMARY KEY,
    created_ms INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    result BLOB NOT NULL                  -- JSON of the operation's result
) STRICT;
CREATE UNIQUE INDEX idempotency_key ON idempotency (tenant, key);

-- The backlog and nothing else. event = position - event_offset.
CREATE TABLE delivery (
    position INTEGER PRIMARY KEY,
    event_offset INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    age_start_ms INTEGER NOT NULL,        -- reading of the endpoint's running clock
    pin TEXT NOT NULL,
    trigger INTEGER NOT NULL,             -- 0 schedule, 1 redeliver, 2 replay, 3 recover, 4 test
    key_id INTEGER,                       -- set where the endpoint keeps order by key
    waiting INTEGER NOT NULL,             -- 1: behind another of its key
    klass INTEGER NOT NULL DEFAULT 0,     -- 0 first, 1 retry, 2 replay
    round INTEGER NOT NULL DEFAULT 1,
    number INTEGER NOT NULL DEFAULT 0,    -- attempts in all
    round_attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    code TEXT,                            -- of the last attempt
    status_code INTEGER
) STRICT;
CREATE INDEX delivery_hot ON delivery (endpoint, klass, due_ms, position) WHERE waiting = 0;
-- A key's order is that of its events, not of its deliveries: one made later may belong to an earlier event.
CREATE INDEX delivery_order ON delivery (endpoint, key_id, (position - event_offset)) WHERE key_id IS NOT NULL;
CREATE INDEX delivery_waiting ON delivery (position) WHERE waiting = 1;

-- Deliveries made after the accept (recovered, or sent to an endpoint that never had the event).
CREATE TABLE late_delivery (
    event INTEGER NOT NULL,
    delivery INTEGER NOT NULL,
    PRIMARY KEY (event, delivery)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letter (
    position INTEGER PRIMARY KEY,         -- the delivery's
    event_offset INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    trigger INTEGER NOT NULL,
    reason TEXT NOT NULL,
    round INTEGER NOT NULL,
    number INTEGER NOT NULL,
    code TEXT,
    status_code INTEGER,
    ended_ms INTEGER NOT NULL,
    ended_mark INTEGER NOT NULL           -- last position given when it ended: jobs made later have a higher one
) STRICT;
CREATE INDEX dead_letter_endpoint ON dead_letter (endpoint, position);
CREATE INDEX dead_letter_ended ON dead_letter (ended_ms);

-- A key of an endpoint that stands still behind a dead delivery (on_dead: hold).
CREATE TABLE key_hold (
    endpoint INTEGER NOT NULL,
    key_id INTEGER NOT NULL,
    delivery INTEGER NOT NULL,
    event INTEGER NOT NULL,
    PRIMARY KEY (endpoint, key_id, delivery)
) STRICT, WITHOUT ROWID;
CREATE INDEX key_hold_delivery ON key_hold (delivery);

-- Ended deliveries that are not dead. One that its first attempt delivered is that attempt, too (attempt_position).
CREATE TABLE history (
    position INTEGER PRIMARY KEY,         -- the delivery's
    event_offset INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL,
    status INTEGER NOT NULL DEFAULT 1,    -- 1 delivered, 3 cancelled, 4 discarded
    reason TEXT,
    trigger INTEGER NOT NULL DEFAULT 0,
    round INTEGER NOT NULL DEFAULT 1,
    number INTEGER NOT NULL DEFAULT 1,
    code TEXT DEFAULT 'delivered',
    status_code INTEGER,
    ended_mark INTEGER,                   -- as in dead_letter; NULL: delivered at first
    attempt_position INTEGER,
    started_ms INTEGER,
    duration_ms REAL,
    detail BLOB,                          -- MessagePack
    body BLOB
) STRICT;
CREATE INDEX history_endpoint ON history (endpoint, position);
CREATE INDEX history_attempt ON history (endpoint, attempt_position) WHERE attempt_position IS NOT NULL;

CREATE TABLE attempt (
    position INTEGER PRIMARY KEY,
    delivery INTEGER NOT NULL,
    round INTEGER NOT NULL,
    number INTEGER NOT NULL,
    event INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    trigger INTEGER NOT NULL,
    code TEXT NOT NULL,
    status_code INTEGER,
    started_ms INTEGER NOT NULL,
    duration_ms REAL NOT NULL,
    detail BLOB NOT NULL,                 -- MessagePack
    body BLOB                             -- NULL: there was none; empty: cut off later
) STRICT;
CREATE UNIQUE INDEX attempt_delivery ON attempt (delivery, round, number);
CREATE INDEX attempt_endpoint ON attempt (endpoint, position);

CREATE TABLE job (
    position INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    open INTEGER NOT NULL,
    document TEXT NOT NULL
) STRICT;
CREATE INDEX job_open ON job (position) WHERE open = 1;
