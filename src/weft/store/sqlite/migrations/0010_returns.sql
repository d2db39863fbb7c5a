-- A source that was rewritten and then written back: which of two versions was put in the other's place last.
ALTER TABLE superseded ADD COLUMN round INTEGER NOT NULL DEFAULT 0;
