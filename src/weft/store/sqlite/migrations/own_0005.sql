-- Agents that were named so far: when, and by whom. The first event of a stream counts.
INSERT INTO program_history(n, program, kind, state, version, config, at, actor, reason)
    SELECT e.n, substr(e.stream, 9), 'agent_created', 'idle', 0, NULL,
        COALESCE(CAST(strftime('%s', substr(e.ts, 1, 19)) AS INTEGER) * 1000 + CAST(substr(e.ts, 21, 3) AS INTEGER), e.at),
        e.actor, NULL
    FROM (SELECT min(l.n - l.count + 1 + j.key) AS n, l.at, json_extract(j.value, '$.stream') AS stream,
            json_extract(j.value, '$.ts') AS ts, json_extract(j.value, '$.actor') AS actor
        FROM log l, json_each('[' || replace(CAST(l.events AS TEXT), char(10), ',') || ']') j
        WHERE instr(CAST(l.events AS TEXT), '"kind":"agent_created"') > 0
            AND json_extract(j.value, '$.kind') = 'agent_created'
        GROUP BY json_extract(j.value, '$.stream')) e
    WHERE EXISTS (SELECT 1 FROM program WHERE id = substr(e.stream, 9));
UPDATE program SET
    created_at = (SELECT at FROM program_history WHERE program = program.id),
    updated_at = (SELECT at FROM program_history WHERE program = program.id),
    created_by = (SELECT actor FROM program_history WHERE program = program.id)
    WHERE id IN (SELECT program FROM program_history);
