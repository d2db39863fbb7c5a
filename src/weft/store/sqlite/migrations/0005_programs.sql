-- Programs: what people and agents work with, each with a lifecycle and a configuration. Agents were here before.
DROP INDEX program_name;
ALTER TABLE program ADD COLUMN state TEXT NOT NULL DEFAULT 'idle';
ALTER TABLE program ADD COLUMN was TEXT;                    -- of a paused agent: the state it goes back to
ALTER TABLE program ADD COLUMN info_type TEXT;              -- of a piece of information
ALTER TABLE program ADD COLUMN config INTEGER;              -- content; null: named, but not described
ALTER TABLE program ADD COLUMN version INTEGER NOT NULL DEFAULT 0; -- how many configurations it has had
ALTER TABLE program ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE program ADD COLUMN applied INTEGER NOT NULL DEFAULT 0; -- 1: a file of programs says what it is
ALTER TABLE program ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE program ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE program ADD COLUMN created_by TEXT NOT NULL DEFAULT 'local';
ALTER TABLE program ADD COLUMN task TEXT;                   -- of an agent: what it works on, where, how far
ALTER TABLE program ADD COLUMN session TEXT;
ALTER TABLE program ADD COLUMN turns INTEGER;
ALTER TABLE program ADD COLUMN checkpoint INTEGER;
ALTER TABLE program ADD COLUMN saved INTEGER;               -- content: its state at the last checkpoint
ALTER TABLE program ADD COLUMN result INTEGER;              -- content: of a task that is done
CREATE UNIQUE INDEX program_name ON program (name) WHERE deleted = 0;
CREATE INDEX program_kind ON program (kind, name);
ALTER TABLE session ADD COLUMN config INTEGER;
ALTER TABLE session ADD COLUMN config_version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN model TEXT;                  -- program: the model it asks
CREATE TABLE program_reference (    -- programs that a configuration names
    program TEXT NOT NULL,
    field TEXT NOT NULL,
    target TEXT NOT NULL,
    version INTEGER,
    PRIMARY KEY (program, field, target)
) WITHOUT ROWID;
CREATE INDEX program_reference_target ON program_reference (target);
CREATE TABLE program_history (      -- every event of a program, and of a session that concerns it as one
    n INTEGER PRIMARY KEY,          -- arrival number
    program TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,            -- after it
    version INTEGER NOT NULL,       -- after it
    config INTEGER,                 -- the one that it brought
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason INTEGER
);
CREATE INDEX program_history_program ON program_history (program, n);
CREATE TABLE task_check (           -- success criteria held against what was there
    n INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    criterion INTEGER NOT NULL,
    type TEXT NOT NULL,
    passed INTEGER NOT NULL,
    observed INTEGER,
    version INTEGER NOT NULL,       -- of the task then
    at INTEGER NOT NULL
);
CREATE INDEX task_check_task ON task_check (task, n);
CREATE TABLE human_request (        -- what people were told or asked
    id TEXT PRIMARY KEY,
    human TEXT NOT NULL,
    text INTEGER,
    asks INTEGER NOT NULL,
    program TEXT,
    data INTEGER,
    status TEXT NOT NULL,           -- told, pending, approved, rejected
    asked_by TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    decided_at INTEGER,
    reason INTEGER
) WITHOUT ROWID;
CREATE INDEX human_request_human ON human_request (human, status);
CREATE TABLE node_tag (
    node TEXT NOT NULL,
    tag TEXT NOT NULL,
    tagged_at INTEGER NOT NULL,
    PRIMARY KEY (node, tag)
) WITHOUT ROWID;
CREATE INDEX node_tag_tag ON node_tag (tag);

-- Local state: commands that were done, so that one sent again is not done twice.
CREATE TABLE command_done (
    key BLOB PRIMARY KEY,           -- digest of the caller's key
    request BLOB NOT NULL,          -- digest of what was asked for
    program TEXT NOT NULL,
    done_at INTEGER NOT NULL
) WITHOUT ROWID;
