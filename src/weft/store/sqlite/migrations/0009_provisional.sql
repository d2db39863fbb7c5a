-- Sources that are still written to: how much of them is kept, and their open tails as they were last read. Local state.
ALTER TABLE import_source ADD COLUMN kept INTEGER;       -- so many of its bytes are kept verbatim; null: all
CREATE TABLE provisional (          -- turns that are not facts yet
    source TEXT NOT NULL,
    session TEXT NOT NULL,
    idx INTEGER NOT NULL,
    stamp INTEGER NOT NULL,         -- modification time of the source then, ns
    seen_at INTEGER NOT NULL,
    body BLOB NOT NULL,             -- JSON
    PRIMARY KEY (source, session, idx)
) WITHOUT ROWID;
CREATE INDEX provisional_session ON provisional (session);
