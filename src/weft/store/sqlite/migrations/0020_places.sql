-- Resources by their name, by their place and by the end of their id. Texts are found by their digests; what is erased
-- has none.
ALTER TABLE resource ADD COLUMN machine TEXT;       -- the machine on which the place is; null: bound to none
ALTER TABLE resource ADD COLUMN name_digest TEXT;
ALTER TABLE resource ADD COLUMN place_digest TEXT;
ALTER TABLE resource ADD COLUMN stands INTEGER;     -- 1: the one resource of this ledger that somebody owns at its place
CREATE INDEX resource_name ON resource (name_digest);
CREATE INDEX resource_place ON resource (place_digest, owner);
CREATE UNIQUE INDEX resource_standing ON resource (place_digest, kind, (COALESCE(machine, ''))) WHERE stands = 1;
CREATE INDEX resource_name_content ON resource (name);
CREATE INDEX resource_place_content ON resource (place);
CREATE INDEX resource_end ON resource ((substr(id, 21)));

-- Snapshots by what they are kept as, and by the end of their id.
ALTER TABLE resource_snapshot ADD COLUMN ref_digest TEXT;
CREATE INDEX resource_snapshot_held ON resource_snapshot (ref_digest) WHERE state = 'ok';
CREATE INDEX resource_snapshot_ref ON resource_snapshot (ref) WHERE ref IS NOT NULL;
CREATE INDEX resource_snapshot_end ON resource_snapshot ((substr(id, 21)));
CREATE INDEX resource_restore_order ON resource_restore (n);

-- All views are made anew when the ledger is next opened for writing: that fills what is empty here.
DELETE FROM local WHERE key = 'view_rules';
