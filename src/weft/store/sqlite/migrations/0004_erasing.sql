-- Erasing: tombstones. A content that was erased keeps its number and its reference, and nothing else.
CREATE TABLE erasure (              -- an immediate view
    n INTEGER PRIMARY KEY,          -- arrival number of the tombstone
    ref BLOB NOT NULL,
    erased_at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    replica TEXT,
    reason INTEGER,
    turn TEXT,                      -- erased as a whole
    session TEXT                    -- erased as a whole
);
CREATE INDEX erasure_ref ON erasure (ref);
CREATE INDEX erasure_turn ON erasure (turn) WHERE turn IS NOT NULL;
CREATE INDEX erasure_session ON erasure (session) WHERE session IS NOT NULL;

-- Packs: where the bytes of cold contents lie, many in one compressed block. Part of the facts' storage.
CREATE TABLE pack (
    n INTEGER PRIMARY KEY,
    size INTEGER NOT NULL,          -- of its bytes once unpacked
    bytes BLOB NOT NULL
);
CREATE TABLE packed (               -- in place of a content's own bytes, or of one of its parts
    content INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    pack INTEGER NOT NULL,
    start INTEGER NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (content, idx)
) WITHOUT ROWID;
CREATE INDEX packed_pack ON packed (pack);

-- Local state: copies that were made of this ledger, so that an erasure can name them.
CREATE TABLE copy_made (
    path TEXT PRIMARY KEY,
    kind TEXT NOT NULL,             -- backup, facts
    made_at INTEGER NOT NULL,
    contents INTEGER NOT NULL       -- highest content number then
) WITHOUT ROWID;
