-- Local state: credentials that were found in contents, and nothing that would give them away.
CREATE TABLE secret_found (
    content INTEGER NOT NULL,
    start INTEGER NOT NULL,         -- in bytes; of a kept stretch: in what it unpacks to
    rule TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    shown TEXT NOT NULL,            -- at most four characters of it
    PRIMARY KEY (content, start, rule)
) WITHOUT ROWID;
CREATE TABLE secret_ignored (
    fingerprint TEXT PRIMARY KEY,
    ignored_at INTEGER NOT NULL
) WITHOUT ROWID;
