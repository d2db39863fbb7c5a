-- Who made a model and the program that was asked for it are two things. Turns that a broker configured named the program;
-- of these the vendor is known where the program had its name.
ALTER TABLE turn ADD COLUMN provider_program TEXT;
UPDATE turn SET provider_program = provider,
    provider = CASE WHEN provider IN ('anthropic', 'openai', 'google', 'local') THEN provider END
    WHERE origin IS NULL AND effective_config IS NOT NULL AND provider IS NOT NULL;
