-- The agents ledger's tables, as views that a plain `psql` can read. Made again with every schema version. The same names, columns
-- and values as SQLite's, letter by letter: JSON that is put together here is put together as SQLite does it.
-- `text_of`, `json_of` and `name_of` are short for questions, which are put in their place when this file is read: as
-- functions they would be called row by row.
CREATE VIEW content_text AS
    SELECT n, COALESCE(shown, convert_from(COALESCE(bytes,
        (SELECT string_agg(p.bytes, ''::bytea ORDER BY p.idx) FROM content_part p WHERE p.content = content.n)),
        'UTF8')) COLLATE "C" AS text,
        (length(salt) = 0)::int AS erased, EXISTS (SELECT 1 FROM packed p WHERE p.content = content.n)::int AS packed
    FROM content;

-- A text as JSON writes it. Stable, as what it calls is: only then is it taken into the query that asks for it.
CREATE OR REPLACE FUNCTION quoted(value TEXT) RETURNS TEXT STABLE
    BEGIN ATOMIC SELECT COALESCE(to_json(value)::text, 'null'); END;

CREATE VIEW content_json AS
    SELECT n, CASE WHEN erased = 1 THEN quoted(text) ELSE text END AS json FROM content_text;

CREATE VIEW events AS
    SELECT l.n - l.count + j.place AS n, l.at AS arrived_at, j.value::json ->> 'kind' AS kind,
        j.value::json ->> 'stream' AS stream, j.value::json ->> 'ts' AS ts, j.value AS event_json
    FROM log l, string_to_table(convert_from(l.events, 'UTF8'), chr(10)) WITH ORDINALITY AS j(value, place);

CREATE VIEW turns AS
    SELECT t.id, t.parent AS parent_turn_id, t.type AS turn_type, t.status, t.started_at, t.completed_at,
        name_of(t.model) AS model, name_of(t.provider) AS provider, name_of(t.provider_program) AS provider_program, t.role, name_of(t.toolset) AS toolset_name,
        CASE WHEN t.tools IS NULL THEN NULL WHEN t.tools LIKE '#%' THEN json_of(substr(t.tools, 2)::bigint)
            ELSE '[' || COALESCE((SELECT string_agg(quoted(name_of(j.value)), ',' ORDER BY j.place)
                FROM json_array_elements_text(t.tools::json) WITH ORDINALITY AS j(value, place)), '') || ']'
            END AS tools_available,
        json_of(t.permissions_granted) AS permissions_granted, json_of(t.permissions_used) AS permissions_used,
        t.input_tokens, t.output_tokens, t.cached_input_tokens, t.cache_write_tokens,
        t.cache_write_1h_tokens, t.reasoning_tokens,
        t.total_tokens,
        '[' || COALESCE((SELECT string_agg(quoted(m.id), ',' ORDER BY m.seq) FROM message m
            WHERE m.turn = t.n AND (m.role IN ('user', 'system') OR (m.role = 'tool'
                AND NOT EXISTS (SELECT 1 FROM message a WHERE a.turn = m.turn AND a.seq < m.seq AND a.role = 'assistant')
                AND NOT EXISTS (SELECT 1 FROM tool_call c WHERE c.turn = m.turn AND c.position < m.position)))),
            '') || ']' AS query_message_ids,
        t.response AS response_message_id,
        (EXISTS (SELECT 1 FROM turn c WHERE c.segment = t.segment AND c.depth = t.depth + 1)
            OR EXISTS (SELECT 1 FROM segment s WHERE s.parent = t.segment AND s.parent_depth = t.depth))::int
            AS has_children,
        t.calls AS tool_call_count, e.text AS source_event_id, text_of(t.workspace) AS workspace_path,
        json_of(t.thinking_config) AS thinking_config_json, json_of(t.effective_config) AS effective_config_json,
        text_of(t.error) AS error, t.interrupted AS interruption_reason, t.compaction AS compaction_turn_id,
        encode(t.last_event, 'hex') AS digest, t.origin, text_of(t.native) AS native_id,
        text_of(t.git_branch) AS git_branch, text_of(t.version) AS version, json_of(t.metadata) AS metadata_json,
        t.current AS is_current, (t.synthesised IS DISTINCT FROM 1)::int AS time_known, t.listed_at
    FROM turn t LEFT JOIN lookup_text e ON e.content = t.source_event;

CREATE VIEW threads AS
    SELECT t.id AS turn_id,
        CASE WHEN t.depth <= 1000 THEN (
            WITH RECURSIVE up(segment, base, depth, parent, parent_depth) AS (
                SELECT s.n, s.base, t.depth, s.parent, s.parent_depth FROM segment s WHERE s.n = t.segment
                UNION ALL SELECT s.n, s.base, up.parent_depth, s.parent, s.parent_depth
                FROM up JOIN segment s ON s.n = up.parent)
            SELECT '[' || string_agg(quoted(a.id), ',' ORDER BY a.depth) || ']'
            FROM up JOIN turn a ON a.segment = up.segment AND a.depth BETWEEN up.base AND up.depth) END AS ancestry,
        t.tokens_before + COALESCE(t.total_tokens, 0) AS total_tokens,
        t.depth,
        a.name AS persona_id,
        (SELECT NULLIF(encode(digest, 'hex'), '') FROM content WHERE n = t.system) AS system_prompt_hash,
        k.key AS thread_key
    FROM turn t LEFT JOIN persona a ON a.id = t.persona LEFT JOIN session s ON s.n = t.session
        LEFT JOIN thread_key k ON k.key = s.label || '#' || t.depth AND k.turn = t.id;

CREATE VIEW sessions AS
    SELECT s.label, s.head AS thread_id,
        a.name AS persona_id,
        (s.parent_turn IS NOT NULL OR s.parent_session IS NOT NULL)::int AS is_subagent,
        p.label AS parent_session_label, s.parent_turn AS parent_turn_id,
        s.spawn_call_name AS spawn_tool_call_id,
        text_of(s.task) AS task_description,
        CASE WHEN s.parent_turn IS NOT NULL OR s.parent_session IS NOT NULL THEN COALESCE(
            (SELECT CASE t.status WHEN 'failed' THEN 'failed' ELSE 'running' END FROM turn t
                WHERE t.session = s.n AND t.status <> 'completed' AND t.current = 1 AND t.n > COALESCE(
                    (SELECT h.n FROM history h WHERE h.session = s.n ORDER BY h.k DESC LIMIT 1), 0)
                ORDER BY t.n DESC LIMIT 1),
            (SELECT CASE status WHEN 'completed' THEN 'completed' WHEN 'failed' THEN 'failed' ELSE 'running' END
                FROM turn WHERE id = s.head), 'pending') END AS task_status,
        r.text AS routing_key, COALESCE(s.origin, 'weft') AS origin,
        text_of(s.origin_session) AS origin_session_id, s.created_at, s.updated_at, s.status, s.lifecycle, s.id,
        s.compaction AS chosen_compaction, s.head_events, text_of(s.title) AS title,
        text_of(s.workspace) AS workspace_path, text_of(s.git_branch) AS git_branch, text_of(s.version) AS version,
        name_of(s.agent) AS agent, json_of(s.metadata) AS metadata_json, json_of(s.config) AS config_json,
        s.config_version, (SELECT name FROM program WHERE id = s.model) AS default_model
    FROM session s LEFT JOIN persona a ON a.id = s.persona LEFT JOIN session p ON p.id = s.parent_session
        LEFT JOIN lookup_text r ON r.content = s.routing;

CREATE VIEW messages AS
    SELECT m.id, t.id AS turn_id, m.role,
        CASE WHEN m.text IS NOT NULL THEN text_of(m.text)
            ELSE (SELECT string_agg(c.text, chr(10) ORDER BY j.place)
                FROM json_array_elements(m.parts::json) WITH ORDINALITY AS j(value, place)
                JOIN content_text c ON c.n = (j.value ->> 'text')::bigint
                WHERE j.value ->> 'type' = 'text') END AS content,
        m.source, m.seq AS sequence, m.at AS created_at,
        CASE WHEN m.thinking IS NOT NULL THEN (SELECT string_agg(c.text, chr(10) ORDER BY j.place)
            FROM json_array_elements(m.parts::json) WITH ORDINALITY AS j(value, place)
            JOIN content_text c ON c.n = (j.value ->> 'text')::bigint
            WHERE j.value ->> 'type' = 'reasoning') END AS thinking,
        CASE WHEN m.context = 0 THEN '{' || COALESCE((
                SELECT string_agg(quoted(name) || ':' || value, ',' ORDER BY name) FROM (
                    SELECT name, CASE max(listed) WHEN 1 THEN '[' || string_agg(value, ',' ORDER BY idx) || ']'
                        ELSE max(value) END AS value
                    FROM (SELECT i.name, i.listed, i.idx,
                            CASE WHEN c.text IS JSON THEN c.text ELSE quoted(c.text) END AS value
                        FROM message_context i JOIN content_text c ON c.n = i.content WHERE i.message = m.id) things
                    GROUP BY name) named), '') || '}'
            ELSE json_of(m.context) END AS context_json,
        json_of(m.metadata) AS metadata_json,
        COALESCE(m.parent, CASE WHEN m.seq > 0
            THEN (SELECT p.id FROM message p WHERE p.turn = m.turn AND p.seq = m.seq - 1)
            ELSE (
            WITH RECURSIVE before(turn, segment, depth, parent, events, place) AS (
                SELECT p.n, p.segment, p.depth, p.parent, CASE WHEN s.base = t.depth THEN s.parent_events END, 1
                    FROM turn p JOIN segment s ON s.n = t.segment WHERE p.id = t.parent
                UNION ALL SELECT p.n, p.segment, p.depth, p.parent,
                        CASE WHEN s.base = b.depth THEN s.parent_events END, b.place + 1
                    FROM before b JOIN turn p ON p.id = b.parent JOIN segment s ON s.n = b.segment
                    WHERE NOT EXISTS (SELECT 1 FROM message x WHERE x.turn = b.turn
                        AND (b.events IS NULL OR x.position < b.events)))
            SELECT x.id FROM before b JOIN message x ON x.turn = b.turn AND (b.events IS NULL OR x.position < b.events)
                ORDER BY b.place, x.seq DESC LIMIT 1) END) AS parent_message_id,
        name_of(m.model) AS model,
        json_of(m.thinking_config) AS thinking_config_json,
        CASE WHEN m.text IS NOT NULL THEN '[{"type":"text","text":' || quoted(text_of(m.text)) || '}]'
            ELSE '[' || COALESCE((SELECT string_agg(CASE j.value ->> 'type'
                WHEN 'image_url' THEN concat('{"type":"image_url","url":', quoted(text_of((j.value ->> 'url')::bigint)),
                    ',"detail":', quoted(name_of(j.value ->> 'detail')), '}')
                WHEN 'tool_use' THEN concat('{"type":"tool_use","id":', quoted(text_of((j.value ->> 'id')::bigint)),
                    ',"name":', quoted(name_of(j.value ->> 'name')),
                    ',"input":', quoted(json_of((j.value ->> 'input')::bigint)), '}')
                WHEN 'tool_result' THEN concat('{"type":"tool_result","tool_call_id":',
                    quoted(text_of((j.value ->> 'tool_call_id')::bigint)),
                    ',"output":', quoted(json_of((j.value ->> 'output')::bigint)),
                    ',"is_error":', CASE j.value ->> 'is_error' WHEN 'true' THEN '1' WHEN 'false' THEN '0'
                        ELSE 'null' END, '}')
                ELSE concat('{"type":', quoted(j.value ->> 'type'),
                    ',"text":', quoted(text_of((j.value ->> 'text')::bigint)), '}') END, ',' ORDER BY j.place)
                FROM json_array_elements(m.parts::json) WITH ORDINALITY AS j(value, place)), '') || ']' END AS parts_json,
        text_of(m.native) AS native_id, name_of(m.provider) AS provider, m.input_tokens, m.output_tokens,
        m.cached_input_tokens, m.cache_write_tokens, m.cache_write_1h_tokens, m.recorded_cost, m.reasoning_tokens,
        name_of(m.finish) AS finish_reason
    FROM message m JOIN turn t ON t.n = m.turn;

CREATE VIEW tool_calls AS
    SELECT t.id || ':' || (SELECT text || CASE WHEN c.repeated > 0 OR strpos(text, '~') > 0 THEN '~' || (c.repeated + 1)
            ELSE '' END FROM content_text WHERE n = c.call_id) AS id,
        t.id AS turn_id, c.message AS message_id, name_of(c.tool) AS tool_name, c.number AS tool_number,
        json_of(c.params) AS params_json, json_of(c.result) AS result_json, text_of(c.error) AS error,
        c.status, s.label AS spawned_session_label,
        c.started_at, c.completed_at, c.seq AS sequence, text_of(c.call_id) AS call_id, c.outcome,
        name_of(c.server) AS server, name_of(c.error_code) AS error_code, c.correlation AS correlation_id,
        json_of(c.detail) AS metadata_json
    FROM tool_call c JOIN turn t ON t.n = c.turn LEFT JOIN session s ON s.n = c.spawned;

CREATE VIEW compactions AS
    SELECT k.turn AS turn_id, text_of(k.summary) AS summary,
        k.through AS summarized_through_turn_id, k.first_kept AS first_kept_turn_id, k.turns_summarized,
        k.type AS compaction_type, name_of(k.model) AS model, name_of(k.provider) AS provider,
        k.tokens_before, k.tokens_after, k.summary_tokens, k.summarization_input_tokens,
        k.summarization_output_tokens, k.duration_ms, k."trigger", json_of(k.metadata) AS metadata_json
    FROM compaction k;

CREATE VIEW session_history AS
    SELECT h.n AS id, s.label AS session_label, h.turn AS thread_id, h.changed_at, h.why,
        text_of(h.reason) AS reason, s.id AS session_id, h.k
    FROM history h JOIN session s ON s.n = h.session;

CREATE VIEW session_aliases AS
    SELECT a.alias, s.label AS session_label, a.created_at, a.reason FROM alias a JOIN session s ON s.n = a.session;

CREATE VIEW message_files AS
    SELECT f.id, f.message AS message_id, f.kind, p.text AS file_path, f.line_start, f.line_end
    FROM message_file f LEFT JOIN lookup_text p ON p.content = f.path;

CREATE VIEW message_lints AS
    SELECT l.id, l.message AS message_id, text_of(l.path) AS file_path, text_of(l.text) AS message,
        name_of(l.source) AS lint_source, l.start_line, l.start_col, l.end_line, l.end_col, l.severity
    FROM message_lint l;

CREATE VIEW message_codeblocks AS
    SELECT b.id, b.message AS message_id, b.idx, name_of(b.language) AS language,
        (SELECT CASE WHEN b.start IS NULL THEN text ELSE substr(text, (b.start + 1)::int, b.length::int) END
            FROM content_text WHERE n = b.content) AS content,
        text_of(b.path) AS file_path, b.line_start, b.line_end
    FROM codeblock b;

CREATE VIEW turn_links AS
    SELECT child AS child_turn_id, parent AS parent_turn_id, why FROM link;

CREATE VIEW turn_versions AS
    SELECT t.id AS turn_id, CASE WHEN t.current = 1 THEN t.id ELSE (
            WITH RECURSIVE version(id, current, successor) AS (
                SELECT t.id, t.current, t.successor
                UNION SELECT n.id, n.current, n.successor FROM version v JOIN turn n ON n.id = v.successor
                    WHERE v.current = 0)
            SELECT id FROM version WHERE current = 1) END AS current_turn_id,
        text_of(t.native) AS native_id, t.mapping
    FROM turn t WHERE t.native IS NOT NULL;

CREATE VIEW erasures AS
    SELECT e.n, encode(e.ref, 'hex') AS content_ref, e.erased_at,
        COALESCE((SELECT name FROM program WHERE id = e.actor), e.actor) AS actor, text_of(e.reason) AS reason,
        e.turn AS turn_id, e.session AS session_id, e.replica
    FROM erasure e;

CREATE VIEW programs AS
    SELECT p.id, p.name, p.kind, p.state, json_of(p.config) AS config_json, p.version,
        COALESCE((SELECT '[' || string_agg(to_json(tag)::text, ',' ORDER BY tag) || ']' FROM node_tag
            WHERE node = p.id), '[]') AS tags,
        p.info_type, p.deleted AS is_deleted, p.created_at, p.updated_at,
        COALESCE((SELECT name FROM program WHERE id = p.created_by), p.created_by) AS created_by,
        (SELECT name FROM program WHERE id = p.task) AS current_task,
        (SELECT label FROM session WHERE id = p.session) AS current_session,
        p.turns AS turn_count, p.checkpoint AS last_checkpoint, text_of(p.result) AS result
    FROM program p
    UNION ALL SELECT s.id, s.label, 'session', s.lifecycle, json_of(s.config), s.config_version,
        COALESCE((SELECT '[' || string_agg(to_json(tag)::text, ',' ORDER BY tag) || ']' FROM node_tag
            WHERE node = s.id), '[]'),
        NULL, (s.status = 'deleted')::int, s.created_at, s.updated_at,
        COALESCE((SELECT name FROM program WHERE id = s.persona), s.persona), NULL, NULL, NULL, NULL, NULL
    FROM session s;

CREATE VIEW program_versions AS
    SELECT h.program AS program_id, h.version, h.at AS changed_at,
        COALESCE((SELECT name FROM program WHERE id = h.actor), h.actor) AS actor, json_of(h.config) AS config_json,
        text_of(h.reason) AS reason
    FROM program_history h WHERE h.config IS NOT NULL;

CREATE VIEW program_references AS
    SELECT program AS program_id, field, target AS target_id, version AS target_version FROM program_reference;

CREATE VIEW task_checks AS
    SELECT task AS task_id, criterion, type, passed, json_of(observed) AS observed_json, version AS task_version,
        at AS checked_at
    FROM task_check;

CREATE VIEW human_requests AS
    SELECT r.id, r.human AS human_id, text_of(r.text) AS text, r.asks, r.status, r.program AS program_id,
        json_of(r.data) AS data_json, COALESCE((SELECT name FROM program WHERE id = r.asked_by), r.asked_by) AS asked_by,
        r.asked_at, r.decided_at, text_of(r.reason) AS reason
    FROM human_request r;

CREATE VIEW node_tags AS
    SELECT node AS node_id, tag, tagged_at FROM node_tag;
