-- Messages for sessions, and what became of each.
CREATE TABLE inbox (
    message TEXT PRIMARY KEY,
    n INTEGER NOT NULL,             -- arrival number of the event that admitted it
    session INTEGER NOT NULL,
    state TEXT NOT NULL,
    mode TEXT NOT NULL,
    priority INTEGER NOT NULL,
    sender TEXT NOT NULL,
    source TEXT,
    replica TEXT,                   -- whose inbox: only its own broker answers it
    turn TEXT,                      -- the turn that took it
    admitted_at INTEGER NOT NULL,
    settled_at INTEGER,
    error INTEGER,
    again TEXT
) WITHOUT ROWID;
CREATE INDEX inbox_queued ON inbox (session, n) WHERE state = 'queued';
CREATE INDEX inbox_state ON inbox (state, n);
CREATE INDEX inbox_turn ON inbox (turn) WHERE turn IS NOT NULL;

-- Turns that a broker runs and that are not over.
CREATE TABLE open_run (
    turn TEXT PRIMARY KEY,
    session INTEGER,
    replica TEXT,
    state TEXT NOT NULL,
    until INTEGER
) WITHOUT ROWID;
ALTER TABLE turn ADD COLUMN inbox INTEGER;

-- What has come of an answer that is still being written, for readers in other processes.
CREATE TABLE partial_reply (
    turn TEXT PRIMARY KEY,
    attempt INTEGER NOT NULL,
    text TEXT NOT NULL,
    thinking TEXT NOT NULL
) WITHOUT ROWID;
