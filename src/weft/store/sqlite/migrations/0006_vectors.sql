-- Local state: what nodes mean, as vectors of a model. Made again on request, gone with what they were made from.
CREATE TABLE vector (
    n INTEGER PRIMARY KEY,          -- arrival number of the event that tells of it
    model TEXT NOT NULL,
    node TEXT NOT NULL,
    dimensions INTEGER NOT NULL,
    floats BLOB NOT NULL,           -- 32-bit, little-endian, of length 1
    text INTEGER,                   -- content: what was embedded in the node's stead; null: its own text
    embedded_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX vector_node ON vector (model, node);
