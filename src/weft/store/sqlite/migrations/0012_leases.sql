-- One table of leases for whatever one process at a time may write to, and one of retry keys for every command.
CREATE TABLE lease_before AS SELECT session, owner, epoch, beat, turn FROM lease;
DROP TABLE lease;
CREATE TABLE lease (
    kind TEXT NOT NULL,             -- session; turn: one without a session; agent
    key TEXT NOT NULL,              -- the id of what is held
    owner TEXT NOT NULL,
    epoch INTEGER NOT NULL,         -- how often it was taken
    beat INTEGER NOT NULL,          -- how often the holder renewed it
    purpose TEXT,                   -- what the holder does: the turn, or an agent's work; null: released
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
INSERT INTO lease SELECT 'session', s.id, b.owner, b.epoch, b.beat, b.turn
    FROM lease_before b JOIN session s ON s.n = b.session;
INSERT INTO lease SELECT 'turn', turn, owner, epoch, beat, turn
    FROM lease_before WHERE session < 0 AND turn IS NOT NULL;
DROP TABLE lease_before;

-- An agent's lease was one text, `epoch owner`, without an owner where it was released.
INSERT INTO lease SELECT 'agent', substr(key, 6), ltrim(ltrim(value, '0123456789')),
    CAST(substr(value, 1, length(value) - length(ltrim(value, '0123456789'))) AS INTEGER), 0,
    CASE WHEN ltrim(ltrim(value, '0123456789')) = '' THEN NULL ELSE 'run' END
    FROM local WHERE key LIKE 'held:%';
DELETE FROM local WHERE key LIKE 'held:%';

CREATE TABLE done_before AS SELECT key, request, program, done_at FROM command_done;
DROP TABLE command_done;
CREATE TABLE command_done (
    key BLOB PRIMARY KEY,           -- digest of the caller's key
    command TEXT NOT NULL,          -- its name; empty where a version before this one did it
    request BLOB NOT NULL,          -- digest of what was asked for; empty where that was erased
    node TEXT NOT NULL,             -- the turn or program that it made or changed
    details TEXT,                   -- what else the first answer is made of: ids and digests, as JSON
    done_at INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO command_done SELECT key, '', request, program, NULL, done_at FROM done_before;
DROP TABLE done_before;
CREATE INDEX command_done_at ON command_done (done_at);
CREATE INDEX command_done_node ON command_done (node);
