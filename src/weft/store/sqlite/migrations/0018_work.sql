-- Sessions that a tool call of a turn started: the workers of an agent.
CREATE TABLE worker (
    session TEXT PRIMARY KEY,
    n INTEGER NOT NULL,             -- arrival number of the event that began it
    replica TEXT,
    parent_session TEXT NOT NULL,
    parent_turn TEXT NOT NULL,
    call TEXT NOT NULL,             -- the event of the tool call
    depth INTEGER NOT NULL,         -- 1: its spawner is no worker itself
    role TEXT,
    constraints INTEGER
) WITHOUT ROWID;
CREATE INDEX worker_turn ON worker (parent_turn);
CREATE INDEX worker_parent ON worker (parent_session);

-- Ended turns of workers, and how their answers came to the spawner: each of them once.
CREATE TABLE worker_answer (
    turn TEXT PRIMARY KEY,
    worker TEXT NOT NULL,
    n INTEGER NOT NULL,
    state TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX worker_answer_worker ON worker_answer (worker, state);

-- Calls of parked turns that wait for the answers of workers.
CREATE TABLE awaiting (
    turn TEXT NOT NULL,
    call TEXT NOT NULL,
    worker TEXT NOT NULL,
    is_any INTEGER NOT NULL,
    PRIMARY KEY (turn, call, worker)
) WITHOUT ROWID;
CREATE INDEX awaiting_worker ON awaiting (worker);

-- What triggers did: one row for each occasion.
CREATE TABLE trigger_firing (
    trigger_id TEXT NOT NULL,
    occasion TEXT NOT NULL,
    n INTEGER NOT NULL,
    replica TEXT,
    source TEXT NOT NULL,
    due INTEGER,
    fired_at INTEGER NOT NULL,
    message TEXT,
    posted TEXT,
    cause TEXT,
    hops INTEGER NOT NULL DEFAULT 0,
    error INTEGER,
    error_code TEXT,
    PRIMARY KEY (trigger_id, occasion)
) WITHOUT ROWID;
CREATE INDEX trigger_firing_order ON trigger_firing (trigger_id, n);
CREATE INDEX trigger_firing_message ON trigger_firing (message) WHERE message IS NOT NULL;
CREATE INDEX trigger_firing_posted ON trigger_firing (posted) WHERE posted IS NOT NULL;

-- Times of schedules at which triggers did not fire.
CREATE TABLE trigger_gap (
    n INTEGER PRIMARY KEY,
    trigger_id TEXT NOT NULL,
    replica TEXT,
    count INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    reason INTEGER,
    noted_at INTEGER NOT NULL
);
CREATE INDEX trigger_gap_order ON trigger_gap (trigger_id, n);

-- Up to where triggers have looked at the log, or what a folder was like. Local state.
CREATE TABLE trigger_cursor (
    trigger_id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,       -- of the trigger's configuration
    position INTEGER NOT NULL,      -- an arrival number, or a time in Unix milliseconds
    state TEXT
) WITHOUT ROWID;
