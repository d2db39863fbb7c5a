-- Imported history: what identifies a turn elsewhere, and what its sources tell of it.
ALTER TABLE turn ADD COLUMN native INTEGER;              -- content: the origin's id, shared by versions of one turn
ALTER TABLE turn ADD COLUMN mapping TEXT;
ALTER TABLE turn ADD COLUMN source BLOB;                 -- digest of the normalised records
ALTER TABLE turn ADD COLUMN current INTEGER NOT NULL DEFAULT 1; -- 0: another version of it stands in its place
ALTER TABLE turn ADD COLUMN seen BLOB;                   -- the sighting whose words are shown
ALTER TABLE turn ADD COLUMN seen_at INTEGER;             -- when that one says the turn began
ALTER TABLE turn ADD COLUMN synthesised INTEGER;         -- 1: the origin gives no time, arrival's is shown
ALTER TABLE turn ADD COLUMN git_branch INTEGER;
ALTER TABLE turn ADD COLUMN version INTEGER;
ALTER TABLE turn ADD COLUMN metadata INTEGER;
CREATE INDEX turn_native ON turn (native) WHERE native IS NOT NULL;
ALTER TABLE turn ADD COLUMN listed_at INTEGER NOT NULL DEFAULT 0; -- its start, never before its parent's
UPDATE turn SET listed_at = started_at;
CREATE INDEX turn_listed ON turn (listed_at, n);
ALTER TABLE message ADD COLUMN native INTEGER;
ALTER TABLE message ADD COLUMN provider TEXT;
ALTER TABLE message ADD COLUMN input_tokens INTEGER;
ALTER TABLE message ADD COLUMN output_tokens INTEGER;
ALTER TABLE message ADD COLUMN cached_input_tokens INTEGER;
ALTER TABLE message ADD COLUMN cache_write_tokens INTEGER;
ALTER TABLE message ADD COLUMN reasoning_tokens INTEGER;
ALTER TABLE message ADD COLUMN finish TEXT;
ALTER TABLE tool_call ADD COLUMN detail INTEGER;
ALTER TABLE session ADD COLUMN title INTEGER;
ALTER TABLE session ADD COLUMN workspace INTEGER;
ALTER TABLE session ADD COLUMN git_branch INTEGER;
ALTER TABLE session ADD COLUMN version INTEGER;
ALTER TABLE session ADD COLUMN agent TEXT;
ALTER TABLE session ADD COLUMN metadata INTEGER;
ALTER TABLE session ADD COLUMN reach INTEGER;            -- place in the source that its head ends at; null: moved here
ALTER TABLE session ADD COLUMN told INTEGER;             -- place in the source up to which its sighting tells
ALTER TABLE session ADD COLUMN seen BLOB;
CREATE TABLE superseded (
    turn TEXT NOT NULL,
    by TEXT NOT NULL,
    PRIMARY KEY (turn, by)
) WITHOUT ROWID;
CREATE TABLE link (
    child TEXT NOT NULL,
    parent TEXT NOT NULL,
    why TEXT NOT NULL,
    call BLOB,                      -- event of the tool call that spawned it
    PRIMARY KEY (child, parent, why)
) WITHOUT ROWID;
CREATE INDEX link_parent ON link (parent);
CREATE TABLE spawn (                -- a tool call that started a session
    child TEXT NOT NULL,
    turn TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (child, turn, seq)
) WITHOUT ROWID;
CREATE TABLE message_context (      -- what was injected beside an imported message, thing by thing
    message TEXT NOT NULL,
    idx INTEGER NOT NULL,
    name TEXT NOT NULL,
    listed INTEGER NOT NULL,
    content INTEGER NOT NULL,
    PRIMARY KEY (message, idx)
) WITHOUT ROWID;
CREATE TABLE kept (                 -- stretches of sources, verbatim
    n INTEGER PRIMARY KEY,          -- of its sighting
    session INTEGER NOT NULL,
    file INTEGER,
    start INTEGER NOT NULL,
    "end" INTEGER NOT NULL,
    content INTEGER NOT NULL
);
CREATE INDEX kept_session ON kept (session);

-- Local state of importing: what was read, and whom links wait for.
CREATE TABLE import_source (
    name TEXT PRIMARY KEY,
    origin TEXT NOT NULL,
    mapping TEXT NOT NULL,
    size INTEGER NOT NULL,
    stamp INTEGER NOT NULL,         -- modification time, ns
    digest BLOB NOT NULL,           -- of its first `size` bytes
    open INTEGER NOT NULL,          -- 1: its last turn was still being written and was left out
    read_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE import_name (          -- native ids of records, and the turn that holds them
    key BLOB NOT NULL,
    turn INTEGER NOT NULL,          -- its number
    PRIMARY KEY (key, turn)
) WITHOUT ROWID;
CREATE TABLE import_wait (          -- links to what is not here yet
    child TEXT NOT NULL,
    wants BLOB NOT NULL,
    why TEXT NOT NULL,
    session TEXT,                   -- whose last turn then it is, where no record is named
    PRIMARY KEY (child, wants, why)
) WITHOUT ROWID;
