-- Agents that were named so far: when, and by whom. The first event of a stream counts.
INSERT INTO program_history(n, program, kind, state, version, config, at, actor, reason)
    SELECT DISTINCT ON (e.stream) e.n, substr(e.stream, 9), 'agent_created', 'idle', 0, NULL,
        COALESCE((EXTRACT(epoch FROM e.ts::timestamptz) * 1000)::bigint, e.at), e.actor, NULL
    FROM (SELECT l.n - l.count + j.place AS n, l.at, j.value::json ->> 'stream' AS stream, j.value::json ->> 'ts' AS ts,
            j.value::json ->> 'actor' AS actor
        FROM log l, string_to_table(convert_from(l.events, 'UTF8'), chr(10)) WITH ORDINALITY AS j(value, place)
        WHERE position('"kind":"agent_created"'::bytea IN l.events) > 0
            AND j.value::json ->> 'kind' = 'agent_created') e
    WHERE EXISTS (SELECT 1 FROM program WHERE id = substr(e.stream, 9)) ORDER BY e.stream, e.n;
UPDATE program SET created_at = h.at, updated_at = h.at, created_by = h.actor
    FROM program_history h WHERE h.program = program.id;
