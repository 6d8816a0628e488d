-- Every position is (milliseconds since the epoch << 20) | slot << 14 | counter: rows lie in the order they were made,
-- "made at" is position >> 20, and two nodes (slots) never give the same one. A delivery made at accept lies right behind
-- its event, so one range finds an event's deliveries. Columns ending in _ms are milliseconds since the epoch.
-- "document" is JSON of the struct of core/model.py.
--
-- Every unique key contains the tenant, so that tenants can be spread over databases. Texts compare by their bytes.
--
-- event, history and attempt are partitioned by "day": the day (since the epoch) their *event* was accepted on. All of an
-- event lies in one day, and a day is dropped whole; what has to outlive its day moves to day -1.

CREATE TABLE meta (
    id smallint PRIMARY KEY CHECK (id = 1),
    salt bigint NOT NULL,
    incarnation bigint NOT NULL,          -- the newest one, of whichever node
    oldest_day integer NOT NULL,          -- what remains of earlier days lies in day -1, or is on its way there
    is_complete boolean NOT NULL DEFAULT true -- false: another store is being copied into this one
);

-- The fence (rule E3): commits lock their node's row; a takeover waits for them, then makes it not alive.
CREATE TABLE node (
    id text COLLATE "C" PRIMARY KEY,
    incarnation bigint NOT NULL,
    alive boolean NOT NULL,
    slot smallint NOT NULL CHECK (slot BETWEEN 0 AND 63),
    since_ms bigint NOT NULL,
    role text NOT NULL,                   -- all, api (delivers nothing), engine; sole: nobody else may have it open
    leaving boolean NOT NULL,             -- it stops: it takes no partitions any more
    home text NOT NULL,                   -- tells two machines apart that were given one name
    version text NOT NULL
);
CREATE UNIQUE INDEX node_slot ON node (slot) WHERE alive;

CREATE TABLE node_lease (
    id text COLLATE "C" PRIMARY KEY REFERENCES node,
    incarnation bigint NOT NULL,          -- whose it is; 0: nobody's any more
    expires_ms bigint NOT NULL
);

CREATE TABLE position_slot (
    slot smallint PRIMARY KEY,
    position_bound bigint NOT NULL        -- no position above it was ever given with this slot
);

CREATE TABLE partition (
    id smallint PRIMARY KEY,
    node text COLLATE "C"                 -- who delivers to its endpoints; NULL: nobody yet
);
INSERT INTO partition (id) SELECT generate_series(0, 255);

CREATE TABLE tenant (
    position bigint PRIMARY KEY,
    uid text COLLATE "C" NOT NULL,
    deleted boolean NOT NULL,
    routing_version bigint NOT NULL,
    created_ms bigint NOT NULL,
    document text NOT NULL
);
CREATE UNIQUE INDEX tenant_uid ON tenant (uid) WHERE NOT deleted;

CREATE TABLE api_key (
    position bigint PRIMARY KEY,
    tenant bigint,                        -- NULL: operator
    digest bytea NOT NULL,
    created_ms bigint NOT NULL,
    last_used_ms bigint,
    document text NOT NULL
);
CREATE INDEX api_key_digest ON api_key (digest);
CREATE INDEX api_key_tenant ON api_key (tenant, position);

CREATE TABLE endpoint (
    position bigint NOT NULL,
    tenant bigint NOT NULL,
    uid text COLLATE "C",
    url text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    circuit text COLLATE "C" NOT NULL,
    rev bigint NOT NULL,
    hears boolean NOT NULL,               -- its filter names Ackpost's own events
    paused_since_ms bigint,
    paused_total_ms bigint NOT NULL,
    created_ms bigint NOT NULL,
    document text NOT NULL,
    PRIMARY KEY (position, tenant)
);
CREATE UNIQUE INDEX endpoint_uid ON endpoint (tenant, uid) WHERE uid IS NOT NULL;
CREATE INDEX endpoint_tenant ON endpoint (tenant, position);
CREATE INDEX endpoint_url ON endpoint (tenant, md5(url));
CREATE INDEX endpoint_hears ON endpoint (tenant, position) WHERE hears;

-- What requests looked like; outlives the endpoint.
CREATE TABLE endpoint_version (
    endpoint bigint NOT NULL,
    version integer NOT NULL,
    tenant bigint NOT NULL,
    document text NOT NULL,
    PRIMARY KEY (endpoint, version, tenant)
);

CREATE TABLE key_state (
    id bigint NOT NULL,                   -- position of the key's first event
    tenant bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    last_sequence bigint NOT NULL,
    last_event bigint NOT NULL,
    PRIMARY KEY (id, tenant)
);
CREATE UNIQUE INDEX key_state_key ON key_state (tenant, key);

CREATE TABLE event (
    position bigint NOT NULL,
    day integer NOT NULL,
    tenant bigint NOT NULL,
    type text COLLATE "C" NOT NULL,
    fanout integer NOT NULL,              -- deliveries made at accept: at position + 1 to position + fanout
    key_id bigint,
    sequence bigint,
    occurred_at_ms bigint,                -- NULL: when it was accepted
    uid text COLLATE "C",
    channels text,                        -- JSON array; NULL: none
    metadata bytea,
    data bytea,                           -- NULL: expired
    PRIMARY KEY (position, day, tenant)
) PARTITION BY RANGE (day);
CREATE INDEX event_key ON event (key_id, position) WHERE key_id IS NOT NULL;

CREATE TABLE event_uid (
    tenant bigint NOT NULL,
    uid text COLLATE "C" NOT NULL,
    event bigint NOT NULL,
    digest bytea,
    PRIMARY KEY (tenant, uid)
);

CREATE TABLE idempotency (
    tenant bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    created_ms bigint NOT NULL,
    digest bytea NOT NULL,
    result bytea NOT NULL,                -- JSON of the operation's result
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_age ON idempotency (created_ms, tenant, key);

-- The backlog and nothing else: narrow, changed and emptied all the time. event = position - event_offset.
CREATE TABLE delivery (
    position bigint NOT NULL,
    event_offset bigint NOT NULL,
    tenant bigint NOT NULL,
    endpoint bigint NOT NULL,
    rev bigint NOT NULL,
    due_ms bigint NOT NULL,
    age_start_ms bigint NOT NULL,         -- reading of the endpoint's running clock
    key_id bigint,                        -- set where the endpoint keeps order by key
    number integer NOT NULL DEFAULT 0,    -- attempts in all
    round integer NOT NULL DEFAULT 1,
    round_attempts integer NOT NULL DEFAULT 0,
    status_code integer,                  -- of the last attempt
    partition smallint NOT NULL,          -- the endpoint's
    crashes smallint NOT NULL DEFAULT 0,
    klass smallint NOT NULL DEFAULT 0,    -- 0 first, 1 retry, 2 replay
    trigger smallint NOT NULL,            -- 0 schedule, 1 redeliver, 2 replay, 3 recover, 4 test
    waiting smallint NOT NULL,            -- 1: behind another of its key
    pin text NOT NULL,
    code text COLLATE "C",                -- of the last attempt
    PRIMARY KEY (position, tenant)
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX delivery_hot ON delivery (partition, endpoint, klass, due_ms, position) WHERE waiting = 0;
-- A key's order is that of its events, not of its deliveries: one made later may belong to an earlier event.
CREATE INDEX delivery_order ON delivery (endpoint, key_id, (position - event_offset)) WHERE key_id IS NOT NULL;
CREATE INDEX delivery_waiting ON delivery (position) WHERE waiting = 1;

-- Deliveries made after the accept (recovered, or sent to an endpoint that never had the event).
CREATE TABLE late_delivery (
    event bigint NOT NULL,
    delivery bigint NOT NULL,
    tenant bigint NOT NULL,
    PRIMARY KEY (event, delivery, tenant)
);

CREATE TABLE dead_letter (
    position bigint NOT NULL,             -- the delivery's
    event_offset bigint NOT NULL,
    tenant bigint NOT NULL,
    endpoint bigint NOT NULL,
    trigger smallint NOT NULL,
    reason text COLLATE "C" NOT NULL,
    round integer NOT NULL,
    number integer NOT NULL,
    code text COLLATE "C",
    status_code integer,
    ended_ms bigint NOT NULL,
    ended_mark bigint NOT NULL,           -- last position given when it ended: jobs made later have a higher one
    PRIMARY KEY (position, tenant)
);
CREATE INDEX dead_letter_endpoint ON dead_letter (endpoint, position);
CREATE INDEX dead_letter_ended ON dead_letter (ended_ms);

-- A key of an endpoint that stands still behind a dead delivery (on_dead: hold).
CREATE TABLE key_hold (
    endpoint bigint NOT NULL,
    key_id bigint NOT NULL,
    delivery bigint NOT NULL,
    tenant bigint NOT NULL,
    event bigint NOT NULL,
    PRIMARY KEY (endpoint, key_id, delivery, tenant)
);
CREATE INDEX key_hold_delivery ON key_hold (delivery);

-- Ended deliveries that are not dead. One that its first attempt delivered is that attempt, too (attempt_position).
CREATE TABLE history (
    position bigint NOT NULL,             -- the delivery's
    day integer NOT NULL,
    event_offset bigint NOT NULL,
    tenant bigint NOT NULL,
    endpoint bigint NOT NULL,
    ended_ms bigint NOT NULL,
    ended_mark bigint,                    -- as in dead_letter; NULL: delivered at first
    attempt_position bigint,
    started_ms bigint,
    duration_ms double precision,
    round integer NOT NULL DEFAULT 1,
    number integer NOT NULL DEFAULT 1,
    status_code integer,
    status smallint NOT NULL DEFAULT 1,   -- 1 delivered, 3 cancelled, 4 discarded
    trigger smallint NOT NULL DEFAULT 0,
    reason text COLLATE "C",
    code text COLLATE "C" DEFAULT 'delivered',
    detail bytea,                         -- MessagePack
    body bytea,
    PRIMARY KEY (position, day, tenant)
) PARTITION BY RANGE (day);
CREATE INDEX history_endpoint ON history (endpoint, position);
CREATE INDEX history_attempt ON history (endpoint, attempt_position) WHERE attempt_position IS NOT NULL;

CREATE TABLE attempt (
    position bigint NOT NULL,
    delivery bigint NOT NULL,
    day integer NOT NULL,
    event bigint NOT NULL,
    tenant bigint NOT NULL,
    endpoint bigint NOT NULL,
    started_ms bigint NOT NULL,
    duration_ms double precision NOT NULL,
    round integer NOT NULL,
    number integer NOT NULL,
    status_code integer,
    trigger smallint NOT NULL,
    code text COLLATE "C" NOT NULL,
    detail bytea NOT NULL,                -- MessagePack
    body bytea,                           -- NULL: there was none; empty: cut off later
    PRIMARY KEY (delivery, round, number, day, tenant)
) PARTITION BY RANGE (day);
CREATE INDEX attempt_endpoint ON attempt (endpoint, position);

CREATE TABLE event_kept PARTITION OF event FOR VALUES FROM (-1) TO (0);
CREATE TABLE history_kept PARTITION OF history FOR VALUES FROM (-1) TO (0);
CREATE TABLE attempt_kept PARTITION OF attempt FOR VALUES FROM (-1) TO (0);

CREATE TABLE job (
    position bigint NOT NULL,
    tenant bigint NOT NULL,
    open boolean NOT NULL,
    created_ms bigint NOT NULL,
    finished_ms bigint,
    document text NOT NULL,
    PRIMARY KEY (position, tenant)
);
CREATE INDEX job_open ON job (position) WHERE open;
