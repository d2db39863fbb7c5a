-- Facts: what is exported, synced and verified.
CREATE TABLE log (
    n INTEGER PRIMARY KEY,          -- arrival number of the row's last event
    count INTEGER NOT NULL,
    at INTEGER NOT NULL,            -- when this ledger learned of it (local, Unix ms)
    chain BLOB NOT NULL,            -- hash over all event ids up to n
    contents INTEGER NOT NULL,      -- highest content number by then (local): none up to it is given again
    events BLOB NOT NULL            -- canonical JSON lines
);
CREATE TABLE content (
    n INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,         -- root segment of the tree that shares it; 0: the ledger's own
    ref BLOB NOT NULL,
    salt BLOB NOT NULL,
    digest BLOB NOT NULL,           -- plain SHA-256, local, gone with the bytes
    size INTEGER NOT NULL,
    shown TEXT,                     -- what to show where the bytes are not database text
    bytes BLOB                      -- null: in content_part
);
CREATE TABLE content_part (
    content INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (content, idx)
) WITHOUT ROWID;

-- Local state: backed up, never synced.
CREATE TABLE local (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE watermark (view TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE lease (
    session INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    beat INTEGER NOT NULL,
    turn TEXT                       -- null: released
);

-- Lagging views: finding facts by their hash.
CREATE TABLE lookup_event (key BLOB NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (key, n)) WITHOUT ROWID;
CREATE TABLE lookup_content (key BLOB NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (key, n)) WITHOUT ROWID;
CREATE TABLE lookup_bytes (
    scope INTEGER NOT NULL, key BLOB NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (scope, key, n)
) WITHOUT ROWID;

-- Immediate views. A segment is a run of turns without a fork: (segment, depth) addresses a turn, a thread is a few
-- ranges of it. A name kept as a content stands as '#' and the content's number.
CREATE TABLE segment (
    n INTEGER PRIMARY KEY,
    root INTEGER NOT NULL,
    base INTEGER NOT NULL,          -- depth of its first turn
    parent INTEGER,
    parent_depth INTEGER,
    parent_events INTEGER           -- how many events of that turn belong to the thread; null: all
);
CREATE INDEX segment_parent ON segment (parent, parent_depth);
CREATE TABLE turn (
    n INTEGER PRIMARY KEY,          -- arrival number of its first event
    segment INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    id TEXT NOT NULL,
    root INTEGER NOT NULL,          -- first segment of its tree
    parent TEXT,
    session INTEGER,
    persona TEXT NOT NULL,
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    completed_at INTEGER,
    model TEXT,
    provider TEXT,
    role TEXT NOT NULL,
    toolset TEXT,
    tools TEXT,
    permissions_granted INTEGER,
    permissions_used INTEGER,
    input_tokens INTEGER,
    output_tokens INTEGER,
    cached_input_tokens INTEGER,
    cache_write_tokens INTEGER,
    reasoning_tokens INTEGER,
    total_tokens INTEGER,
    tokens_before INTEGER NOT NULL, -- of all ancestors
    response TEXT,
    messages INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    events INTEGER NOT NULL,
    last_event BLOB NOT NULL,
    reason TEXT,
    source_event INTEGER,
    workspace INTEGER,
    compaction TEXT,
    thinking_config INTEGER,
    effective_config INTEGER,
    system INTEGER,                 -- content of the system prompt in effect
    interrupted TEXT,
    error INTEGER,
    error_code TEXT,
    origin TEXT
);
CREATE UNIQUE INDEX turn_place ON turn (segment, depth);
CREATE UNIQUE INDEX turn_id ON turn (id);
CREATE TABLE message (
    turn INTEGER NOT NULL,          -- number of its turn: what arrives together lies together
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    role TEXT NOT NULL,
    source TEXT,
    at INTEGER NOT NULL,
    position INTEGER NOT NULL,      -- of its event in the run
    text INTEGER,                   -- content, where the message is one text part and nothing more
    parts TEXT,                     -- otherwise: the parts, with content numbers
    list TEXT,
    parent TEXT,
    model TEXT,
    thinking INTEGER,
    thinking_config INTEGER,
    context INTEGER,
    metadata INTEGER,
    PRIMARY KEY (turn, seq)
) WITHOUT ROWID;
CREATE TABLE tool_call (
    turn INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    event BLOB NOT NULL,
    position INTEGER NOT NULL,
    call_id INTEGER NOT NULL,
    repeated INTEGER NOT NULL,      -- how many earlier calls of the turn have the same call id
    message TEXT,
    tool TEXT NOT NULL,
    number INTEGER,
    server TEXT,
    params INTEGER NOT NULL,
    result INTEGER,
    error INTEGER,
    error_code TEXT,
    status TEXT NOT NULL,
    outcome TEXT,
    spawned INTEGER,
    started_at INTEGER NOT NULL,
    completed_at INTEGER,
    result_position INTEGER,        -- of a late result: minus its arrival number
    correlation TEXT NOT NULL,
    PRIMARY KEY (turn, seq)
) WITHOUT ROWID;
CREATE TABLE session (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    label TEXT NOT NULL,
    persona TEXT NOT NULL,
    head TEXT,
    head_segment INTEGER,
    head_depth INTEGER,
    head_events INTEGER,            -- null: the whole turn
    moves INTEGER NOT NULL,
    since INTEGER NOT NULL,         -- of its last move
    last_event BLOB NOT NULL,
    status TEXT NOT NULL,
    lifecycle TEXT NOT NULL,
    compaction TEXT,                -- chosen by command; '': none; null: the newest of the thread
    parent_session TEXT,
    parent_turn TEXT,
    spawn_call INTEGER,
    task INTEGER,
    routing INTEGER,
    origin TEXT,
    origin_session INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    replica TEXT
);
CREATE UNIQUE INDEX session_label ON session (label) WHERE status <> 'deleted';
CREATE INDEX session_head ON session (head_segment);
CREATE TABLE history (
    n INTEGER PRIMARY KEY,          -- arrival number of the move
    session INTEGER NOT NULL,
    k INTEGER NOT NULL,
    turn TEXT,
    segment INTEGER,
    depth INTEGER,
    events INTEGER,
    changed_at INTEGER NOT NULL,
    since INTEGER NOT NULL,         -- changed_at, never before an earlier move
    why TEXT NOT NULL,
    reason INTEGER
);
CREATE UNIQUE INDEX history_move ON history (session, k);
CREATE TABLE departure (            -- a session stood here and was moved elsewhere
    segment INTEGER NOT NULL,
    session INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    PRIMARY KEY (segment, session)
) WITHOUT ROWID;
CREATE TABLE alias (
    alias TEXT PRIMARY KEY,
    session INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    reason TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX alias_session ON alias (session);
CREATE TABLE compaction (
    turn TEXT PRIMARY KEY,
    segment INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    summary INTEGER NOT NULL,
    through TEXT NOT NULL,
    first_kept TEXT,
    turns_summarized INTEGER,
    type TEXT NOT NULL,
    model TEXT NOT NULL,
    provider TEXT,
    tokens_before INTEGER,
    tokens_after INTEGER,
    summary_tokens INTEGER,
    summarization_input_tokens INTEGER,
    summarization_output_tokens INTEGER,
    duration_ms INTEGER,
    "trigger" TEXT,
    metadata INTEGER
) WITHOUT ROWID;
CREATE INDEX compaction_place ON compaction (segment, depth);
CREATE TABLE message_file (
    id INTEGER PRIMARY KEY,
    message TEXT NOT NULL,
    kind TEXT NOT NULL,
    path INTEGER NOT NULL,
    line_start INTEGER,
    line_end INTEGER
);
CREATE UNIQUE INDEX message_file_once ON message_file (message, kind, path, (COALESCE(line_start, -1)));
CREATE TABLE message_lint (
    id INTEGER PRIMARY KEY,
    message TEXT NOT NULL,
    path INTEGER,
    text INTEGER,
    source TEXT,
    start_line INTEGER,
    start_col INTEGER,
    end_line INTEGER,
    end_col INTEGER,
    severity TEXT
);
CREATE INDEX message_lint_message ON message_lint (message);
CREATE TABLE program (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    name TEXT NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX program_name ON program (name);
CREATE TABLE stream_tip (stream TEXT PRIMARY KEY, last BLOB NOT NULL) WITHOUT ROWID;

-- A lagging view: code blocks of assistant messages. Derived ones are a slice of the message's text.
CREATE TABLE codeblock (
    id INTEGER PRIMARY KEY,
    message TEXT NOT NULL,
    idx INTEGER NOT NULL,
    language TEXT,
    content INTEGER NOT NULL,
    start INTEGER,
    length INTEGER,
    path INTEGER,
    line_start INTEGER,
    line_end INTEGER
);
CREATE UNIQUE INDEX codeblock_once ON codeblock (message, idx);
