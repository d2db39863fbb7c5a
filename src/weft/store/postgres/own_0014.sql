-- Texts that are looked up by. Compressed ones are written by the next rebuild of the views.
INSERT INTO lookup_text(content, text)
    SELECT n, COALESCE(shown, convert_from(bytes, 'UTF8')) FROM content
    WHERE (shown IS NOT NULL OR bytes IS NOT NULL) AND n IN (
        SELECT source_event FROM turn UNION SELECT routing FROM session UNION SELECT path FROM message_file);

-- Calls that started a session, by the id that `tool_calls` shows them with, or as the session was told.
UPDATE session SET spawn_call_name = COALESCE(
        (SELECT t.id || ':' || k.text || CASE WHEN c.repeated > 0 OR strpos(k.text, '~') > 0
                THEN '~' || (c.repeated + 1) ELSE '' END
            FROM tool_call c JOIN turn t ON t.n = c.turn JOIN (
                SELECT n, COALESCE(shown, convert_from(bytes, 'UTF8')) AS text FROM content) k ON k.n = c.call_id
            WHERE c.spawned = session.n AND t.id = session.parent_turn ORDER BY c.seq LIMIT 1),
        (SELECT COALESCE(shown, convert_from(bytes, 'UTF8')) FROM content WHERE n = session.spawn_call))
    WHERE spawn_call IS NOT NULL;
