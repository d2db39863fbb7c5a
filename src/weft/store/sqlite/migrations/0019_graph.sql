-- Things that exist beside conversations and about which a fork decides: what events last said of each.
CREATE TABLE resource (
    id TEXT PRIMARY KEY,
    n INTEGER NOT NULL,             -- arrival number of the event that declared it first
    replica TEXT,
    kind TEXT NOT NULL,
    name INTEGER NOT NULL,
    place INTEGER NOT NULL,         -- a path, a uri, a name in an engine
    capabilities TEXT NOT NULL,     -- words with spaces between them
    imperative INTEGER NOT NULL,
    made INTEGER NOT NULL,          -- 1: Weft made it
    scope_agent TEXT,
    scope_run TEXT,
    scope_session TEXT,
    metadata INTEGER,
    owner_kind TEXT,                -- session, agent or run; null: nobody
    owner TEXT,
    liveness TEXT NOT NULL,
    probed_at INTEGER,
    declared_by TEXT NOT NULL,
    declared_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX resource_owner ON resource (owner) WHERE owner IS NOT NULL;

CREATE TABLE resource_part (
    resource TEXT NOT NULL,
    part_ref TEXT NOT NULL,
    part TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (resource, part_ref)
) WITHOUT ROWID;

-- Who has a resource attached or mounted now.
CREATE TABLE resource_use (
    resource TEXT NOT NULL,
    way TEXT NOT NULL,              -- attached or mounted
    user_kind TEXT NOT NULL,        -- session, agent, run or container
    user_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    mode TEXT NOT NULL,
    mount INTEGER,
    since INTEGER NOT NULL,
    PRIMARY KEY (resource, way, user_kind, user_id)
) WITHOUT ROWID;

CREATE TABLE resource_handle (
    id TEXT PRIMARY KEY,
    n INTEGER NOT NULL,
    replica TEXT,
    resource TEXT NOT NULL,
    provider TEXT NOT NULL,
    provider_id INTEGER NOT NULL,
    capabilities TEXT NOT NULL,
    opened_at INTEGER NOT NULL,
    closed_at INTEGER
) WITHOUT ROWID;
CREATE INDEX resource_handle_resource ON resource_handle (resource);

CREATE TABLE resource_snapshot (
    id TEXT PRIMARY KEY,
    n INTEGER NOT NULL,             -- arrival number of the event that asked for it, or told of it first
    replica TEXT,
    resource TEXT NOT NULL,
    state TEXT NOT NULL,            -- requested, ok, error or discarded
    run TEXT,                       -- the turn after which it shows the resource
    segment INTEGER,                -- of that turn
    depth INTEGER,
    after TEXT,                     -- the event
    before INTEGER NOT NULL,        -- 1: it shows what was there before the turn changed anything
    method TEXT,
    ref_kind TEXT,
    ref INTEGER,
    consistency TEXT,
    size_bytes INTEGER,
    restorable INTEGER,
    inferred INTEGER NOT NULL,
    skipped INTEGER,
    error INTEGER,
    error_code TEXT,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX resource_snapshot_resource ON resource_snapshot (resource, n);
CREATE INDEX resource_snapshot_run ON resource_snapshot (run, n) WHERE run IS NOT NULL;
CREATE INDEX resource_snapshot_place ON resource_snapshot (segment, depth) WHERE segment IS NOT NULL;
CREATE INDEX resource_snapshot_open ON resource_snapshot (n) WHERE state = 'requested';

CREATE TABLE resource_restore (
    id TEXT PRIMARY KEY,
    n INTEGER NOT NULL,
    replica TEXT,
    snapshot TEXT NOT NULL,
    new_resource TEXT,              -- null: over the resource that the snapshot was taken of
    place INTEGER,
    owner_kind TEXT,
    owner TEXT,
    outcome TEXT,                   -- null: not tried yet
    error INTEGER,
    error_code TEXT,
    requested_at INTEGER NOT NULL,
    ended_at INTEGER
) WITHOUT ROWID;
CREATE INDEX resource_restore_snapshot ON resource_restore (snapshot);
CREATE INDEX resource_restore_open ON resource_restore (n) WHERE outcome IS NULL;

-- Messages and results of tools that are shown as another event tells them. Each row is one change; the last one counts.
CREATE TABLE substitution (
    original BLOB NOT NULL,         -- id of the event in whose place another one is shown
    n INTEGER NOT NULL,             -- arrival number of the event that says so
    turn INTEGER NOT NULL,
    place TEXT NOT NULL,            -- message or call
    seq INTEGER NOT NULL,           -- which of the turn's messages or calls
    original_n INTEGER NOT NULL,
    replacement BLOB NOT NULL,      -- the original itself: it is shown again
    replacement_n INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason INTEGER,
    "at" INTEGER NOT NULL,
    PRIMARY KEY (original, n)
) WITHOUT ROWID;
CREATE INDEX substitution_n ON substitution (n);
CREATE INDEX substitution_turn ON substitution (turn);
CREATE INDEX substitution_replacement ON substitution (replacement);

-- The agent graph: what relates to what, since when, and until when. It lags behind the log.
CREATE TABLE edge (
    id INTEGER PRIMARY KEY,         -- arrival number of the event that opened it, times 65536, and which of its edges
    type TEXT NOT NULL,
    source TEXT NOT NULL,           -- the kind of a node, a colon, and its id; of an event its arrival number
    target TEXT NOT NULL,
    attributes TEXT,
    valid_from INTEGER NOT NULL,
    valid_to INTEGER,
    closed INTEGER                  -- arrival number of the event that ended it
);
CREATE INDEX edge_source ON edge (source, type, id);
CREATE INDEX edge_target ON edge (target, type, id);
