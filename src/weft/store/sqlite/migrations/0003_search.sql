-- A lagging view: what messages and tool calls say, by their words. A passage is a few messages of one turn, of one role
-- and one day, with the calls they made.
CREATE TABLE passage (
    n INTEGER PRIMARY KEY,
    turn INTEGER NOT NULL,
    first INTEGER NOT NULL,         -- messages of the turn, by their sequence; 65536: what belongs to none
    last INTEGER NOT NULL,
    at INTEGER NOT NULL             -- the time of its latest message
);
CREATE INDEX passage_turn ON passage (turn);
CREATE INDEX passage_at ON passage (at, turn, first, n);

-- Lookups of the agents ledger schema. Tables that every append writes have an index on what is rare alone: whoever asks
-- for what nearly all turns are walks them by their time.
CREATE INDEX turn_type ON turn (type, n) WHERE type <> 'normal';
CREATE INDEX turn_status ON turn (status, n) WHERE status <> 'completed';
CREATE INDEX turn_role ON turn (role, n) WHERE role <> 'unified';
CREATE INDEX tool_call_spawned ON tool_call (spawned) WHERE spawned IS NOT NULL;
CREATE INDEX session_persona ON session (persona);
CREATE INDEX session_origin ON session (origin);
CREATE INDEX session_parent ON session (parent_session) WHERE parent_session IS NOT NULL;
CREATE INDEX session_routing ON session (routing) WHERE routing IS NOT NULL;
-- Lagging views, with the passages: moves of heads by the turn they went to, sessions by their last change.
CREATE TABLE arrival (
    turn INTEGER NOT NULL,
    move INTEGER NOT NULL,          -- its number in `history`
    PRIMARY KEY (turn, move)
) WITHOUT ROWID;
CREATE TABLE session_change (
    session INTEGER PRIMARY KEY,
    at INTEGER NOT NULL
);
CREATE INDEX session_change_at ON session_change (at, session);
