-- A lagging view: totals of what was spent and done, in slots of a quarter of an hour. A cell is everything that a report
-- never tells apart: its name says what it has in common, as a JSON array that begins with its slot.
CREATE TABLE usage_total (          -- responses
    n INTEGER PRIMARY KEY,
    slot INTEGER,                   -- quarters of an hour since 1970; null: without a time
    name TEXT NOT NULL,
    responses INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_input_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    cache_write_1h_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    unspecified_tokens INTEGER NOT NULL,
    recorded_cost INTEGER NOT NULL
);
CREATE TABLE work_total (           -- turns
    n INTEGER PRIMARY KEY,
    slot INTEGER,
    name TEXT NOT NULL,
    turns INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    first_at INTEGER NOT NULL,      -- when its first turn is listed
    first_turn INTEGER NOT NULL,    -- the number of that one
    last_at INTEGER NOT NULL        -- when its last turn ended
);
CREATE TABLE file_total (           -- files that were written
    n INTEGER PRIMARY KEY,
    slot INTEGER,
    name TEXT NOT NULL,
    changes INTEGER NOT NULL        -- messages that noted to have written it
);
-- What each turn adds to which cells. The owner of what a response adds that lies in several places is minus the number of
-- its id.
CREATE TABLE usage_entry (
    owner INTEGER NOT NULL,
    cell INTEGER NOT NULL,
    responses INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_input_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    cache_write_1h_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    unspecified_tokens INTEGER NOT NULL,
    recorded_cost INTEGER NOT NULL,
    PRIMARY KEY (owner, cell)
) WITHOUT ROWID;
CREATE TABLE work_entry (
    owner INTEGER NOT NULL,
    cell INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    first_turn INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    PRIMARY KEY (owner, cell)
) WITHOUT ROWID;
CREATE TABLE file_entry (
    owner INTEGER NOT NULL,
    cell INTEGER NOT NULL,
    changes INTEGER NOT NULL,
    PRIMARY KEY (owner, cell)
) WITHOUT ROWID;
CREATE UNIQUE INDEX usage_total_name ON usage_total (name);
CREATE UNIQUE INDEX work_total_name ON work_total (name);
CREATE UNIQUE INDEX file_total_name ON file_total (name);
CREATE INDEX usage_total_slot ON usage_total (slot);
CREATE INDEX work_total_slot ON work_total (slot);
CREATE INDEX file_total_slot ON file_total (slot);
CREATE INDEX usage_entry_cell ON usage_entry (cell);
CREATE INDEX work_entry_cell ON work_entry (cell);
CREATE INDEX file_entry_cell ON file_entry (cell);
-- In which turns a response lies, by the provider's id of it.
CREATE TABLE response_turn (
    native INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    reported INTEGER NOT NULL,      -- how many of its messages there have numbers
    current INTEGER NOT NULL,
    PRIMARY KEY (native, turn)
) WITHOUT ROWID;
-- Where segments are cut: a thread leaves there, so that what lies before a cut is in other threads than what follows.
CREATE TABLE usage_cut (
    segment INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    events INTEGER NOT NULL,
    PRIMARY KEY (segment, depth, events)
) WITHOUT ROWID;
-- When imported sessions had begun, as far as their turns were counted by that.
CREATE TABLE usage_session (
    session INTEGER PRIMARY KEY,
    created_at INTEGER NOT NULL,
    followed INTEGER NOT NULL       -- 1: the turns that it took from others are counted as its own
);
