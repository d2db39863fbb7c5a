-- Cache writes that are kept for an hour, a part of all cache writes; and what an origin itself says a message cost.
ALTER TABLE turn ADD COLUMN cache_write_1h_tokens INTEGER;
ALTER TABLE message ADD COLUMN cache_write_1h_tokens INTEGER;
ALTER TABLE message ADD COLUMN recorded_cost INTEGER;   -- micro-dollars
