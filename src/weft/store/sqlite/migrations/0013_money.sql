-- Cache writes that are kept for an hour, a part of all cache writes; and what an origin itself says a message cost.
ALTER TABLE turn ADD COLUMN cache_write_1h_tokens INTEGER;
ALTER TABLE message ADD COLUMN cache_write_1h_tokens INTEGER;
ALTER TABLE message ADD COLUMN recorded_cost INTEGER;   -- micro-dollars

-- Sessions that were imported before have both in the metadata of their messages: they are read out at the next open.
INSERT INTO local(key, value) SELECT 'figures_due', '1'
    WHERE EXISTS (SELECT 1 FROM message m JOIN turn t ON t.n = m.turn WHERE t.origin IS NOT NULL AND m.metadata IS NOT NULL);
