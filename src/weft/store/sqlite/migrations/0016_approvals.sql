-- What was decided about tool calls, each decision on its own.
CREATE TABLE tool_decision (
    n INTEGER PRIMARY KEY,          -- arrival number of the event
    turn TEXT NOT NULL,
    call BLOB NOT NULL,             -- the event that asks for the call
    decision TEXT NOT NULL,
    source TEXT NOT NULL,
    bound TEXT,
    policy TEXT,
    approval TEXT,                  -- the request whose grant was used up
    rationale INTEGER,
    decided_at INTEGER NOT NULL
);
CREATE INDEX tool_decision_turn ON tool_decision (turn, n);

-- Requests to people, and their answers.
CREATE TABLE approval (
    request TEXT PRIMARY KEY,       -- the event that asks
    n INTEGER NOT NULL,
    turn TEXT NOT NULL,
    session INTEGER,
    call BLOB NOT NULL,
    bound TEXT NOT NULL,
    state TEXT NOT NULL,
    replica TEXT,                   -- whose turn: only what was answered there counts
    rationale INTEGER,
    shown INTEGER,
    subjects INTEGER,
    requested_at INTEGER NOT NULL,
    expires_at INTEGER,
    answer TEXT,                    -- the event that answers
    answered_by TEXT,
    answered_at INTEGER,
    scope TEXT,
    reason INTEGER,
    used INTEGER NOT NULL DEFAULT 0 -- 1: what follows from the answer was recorded
) WITHOUT ROWID;
CREATE INDEX approval_state ON approval (state, n);
CREATE INDEX approval_turn ON approval (turn);
CREATE INDEX approval_session ON approval (session) WHERE scope = 'session';

-- Approval policies: proposed, active, rejected, or replaced by another one.
CREATE TABLE policy (
    id TEXT PRIMARY KEY,
    n INTEGER NOT NULL,
    state TEXT NOT NULL,
    agent TEXT,                     -- null: for every agent
    name INTEGER,
    source INTEGER NOT NULL,
    digest TEXT,
    notes INTEGER,
    docstring INTEGER,
    tests_total INTEGER,
    tests_passed INTEGER,
    tests_failed INTEGER,
    replica TEXT,
    proposed_by TEXT NOT NULL,
    proposed_at INTEGER NOT NULL,
    decided_by TEXT,
    decided_at INTEGER,
    decided_n INTEGER,
    reason INTEGER
) WITHOUT ROWID;
CREATE INDEX policy_state ON policy (state, n);

-- For whom else a private agent works.
CREATE TABLE agent_share (
    agent TEXT NOT NULL,
    principal TEXT NOT NULL,
    n INTEGER NOT NULL,
    replica TEXT,
    PRIMARY KEY (agent, principal)
) WITHOUT ROWID;

-- Whether a stranger may have written something that a turn's context holds.
ALTER TABLE turn ADD COLUMN untrusted INTEGER;
