-- Lookups of the readable surface: each by an index, through the view, without a function that plain SQL does not have.
CREATE INDEX turn_parent ON turn (parent) WHERE parent IS NOT NULL;
CREATE INDEX turn_started ON turn (started_at);
CREATE INDEX turn_persona ON turn (persona);
CREATE INDEX turn_source_event ON turn (source_event) WHERE source_event IS NOT NULL;
CREATE INDEX tool_call_message ON tool_call (message) WHERE message IS NOT NULL;
CREATE INDEX session_name ON session (label);
CREATE INDEX session_updated ON session (updated_at);
CREATE INDEX session_parent_turn ON session (parent_turn) WHERE parent_turn IS NOT NULL;
CREATE INDEX session_shown_origin ON session ((COALESCE(origin, 'weft')));
CREATE INDEX message_file_path ON message_file (path);

-- One event may move several sessions: a move is named by its session and how many came before it there.
CREATE TABLE former_history AS SELECT * FROM history;
DROP TABLE history;
CREATE TABLE history (
    n INTEGER NOT NULL,             -- arrival number of the event that moved it
    session INTEGER NOT NULL,
    k INTEGER NOT NULL,
    turn TEXT,
    segment INTEGER,
    depth INTEGER,
    events INTEGER,
    changed_at INTEGER NOT NULL,
    since INTEGER NOT NULL,         -- changed_at, never before an earlier move
    why TEXT NOT NULL,
    reason INTEGER,
    PRIMARY KEY (session, k)
) WITHOUT ROWID;
INSERT INTO history SELECT n, session, k, turn, segment, depth, events, changed_at, since, why, reason FROM former_history;
DROP TABLE former_history;
CREATE INDEX history_event ON history (n);
CREATE INDEX history_turn ON history (turn) WHERE turn IS NOT NULL;

-- The turn that stands in place of one that is not current: another version of it, or one that took it in.
ALTER TABLE turn ADD COLUMN successor TEXT;

-- Names of those who own turns and sessions; one that no event names stands for itself.
CREATE TABLE persona (id TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX persona_name ON persona (name);
INSERT INTO persona(id, name) SELECT id, name FROM program;
INSERT INTO persona(id, name) SELECT o.persona, o.persona
    FROM (SELECT persona FROM turn UNION SELECT persona FROM session) o WHERE true ON CONFLICT (id) DO NOTHING;

-- Texts by which people look things up, out of contents: source events, routing keys, paths of files.
CREATE TABLE lookup_text (content INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE INDEX lookup_text_text ON lookup_text (text);

-- `label#depth`: the last turn by which a session came to stand at this depth.
CREATE TABLE thread_key (key TEXT PRIMARY KEY, session INTEGER NOT NULL, turn TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO thread_key(key, session, turn)
    SELECT s.label || '#' || h.depth, s.n, h.turn
    FROM history h JOIN session s ON s.n = h.session AND s.status <> 'deleted'
    WHERE (h.session, h.k) IN (
        SELECT session, max(k) FROM history WHERE why = 'turn' AND turn IS NOT NULL GROUP BY session, depth);

-- A subagent and the call that started it: where one names the other, both do.
ALTER TABLE session ADD COLUMN has_subagents INTEGER;    -- 1: one of them names a call of it
ALTER TABLE session ADD COLUMN spawn_call_name TEXT;     -- its call as `tool_calls.id` has it, or as it was told
CREATE INDEX session_spawn_call ON session (spawn_call_name) WHERE spawn_call_name IS NOT NULL;

-- All views are made anew when the ledger is next opened for writing: that fills what is empty here.
DELETE FROM local WHERE key IN ('import_rules', 'view_rules');
