-- Syncing: where other replicas' branches of a session end.
CREATE TABLE branch (               -- an immediate view
    session INTEGER NOT NULL,       -- the session's number
    tip BLOB NOT NULL,              -- the last event of the branch
    n INTEGER NOT NULL,             -- its arrival number
    replica TEXT,                   -- who wrote it
    head TEXT,
    head_segment INTEGER,
    head_depth INTEGER,
    head_events INTEGER,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (session, tip)
) WITHOUT ROWID;

-- Local state: ledgers to sync with, what has come from which, and what they last said of themselves.
CREATE TABLE remote (
    name TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    sessions TEXT NOT NULL,         -- a JSON list of session ids; empty: everything
    shares_imports INTEGER NOT NULL,
    added_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE peer (
    replica TEXT PRIMARY KEY,
    n INTEGER NOT NULL,             -- so far its log was read
    chain BLOB NOT NULL,            -- the chain of arrival there
    seen INTEGER NOT NULL,          -- where its log ended when we last heard of it
    seen_chain BLOB NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE came_from (            -- stretches of this log that a peer has for certain
    replica TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (replica, first)
) WITHOUT ROWID;
