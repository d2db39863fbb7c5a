-- The agents ledger's tables, as views that a plain `sqlite3 -readonly` can read. Made again with every schema version.
CREATE VIEW content_text AS
    SELECT n, COALESCE(shown, CAST(COALESCE(bytes,
        (SELECT group_concat(CAST(p.bytes AS TEXT), '') FROM (
            SELECT bytes FROM content_part WHERE content = content.n ORDER BY idx) p)) AS TEXT)) AS text,
        length(salt) = 0 AS erased, EXISTS (SELECT 1 FROM packed WHERE packed.content = content.n) AS packed
    FROM content;

CREATE VIEW content_json AS
    SELECT n, CASE WHEN erased THEN json_quote(text) ELSE text END AS json FROM content_text;

CREATE VIEW events AS
    SELECT l.n - l.count + 1 + j.key AS n, l.at AS arrived_at, json_extract(j.value, '$.kind') AS kind,
        json_extract(j.value, '$.stream') AS stream, json_extract(j.value, '$.ts') AS ts, j.value AS event_json
    FROM log l, json_each('[' || replace(CAST(l.events AS TEXT), char(10), ',') || ']') j;

CREATE VIEW turns AS
    SELECT t.id, t.parent AS parent_turn_id, t.type AS turn_type, t.status, t.started_at, t.completed_at,
        CASE WHEN t.model LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(t.model, 2) AS INTEGER))
            ELSE t.model END AS model,
        CASE WHEN t.provider LIKE '#%'
            THEN (SELECT text FROM content_text WHERE n = CAST(substr(t.provider, 2) AS INTEGER))
            ELSE t.provider END AS provider,
        CASE WHEN t.provider_program LIKE '#%'
            THEN (SELECT text FROM content_text WHERE n = CAST(substr(t.provider_program, 2) AS INTEGER))
            ELSE t.provider_program END AS provider_program,
        t.role,
        CASE WHEN t.toolset LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(t.toolset, 2) AS INTEGER))
            ELSE t.toolset END AS toolset_name,
        CASE WHEN t.tools IS NULL THEN NULL
            WHEN t.tools LIKE '#%' THEN (SELECT json FROM content_json WHERE n = CAST(substr(t.tools, 2) AS INTEGER))
            ELSE (
            SELECT json_group_array(CASE WHEN j.value LIKE '#%'
                THEN (SELECT text FROM content_text WHERE n = CAST(substr(j.value, 2) AS INTEGER)) ELSE j.value END)
            FROM json_each(t.tools) j) END AS tools_available,
        (SELECT json FROM content_json WHERE n = t.permissions_granted) AS permissions_granted,
        (SELECT json FROM content_json WHERE n = t.permissions_used) AS permissions_used,
        t.input_tokens, t.output_tokens, t.cached_input_tokens, t.cache_write_tokens,
        t.cache_write_1h_tokens, t.reasoning_tokens,
        t.total_tokens,
        (SELECT json_group_array(id) FROM (SELECT m.id FROM message m WHERE m.turn = t.n
            AND (m.role IN ('user', 'system') OR (m.role = 'tool'
                AND NOT EXISTS (SELECT 1 FROM message a WHERE a.turn = m.turn AND a.seq < m.seq AND a.role = 'assistant')
                AND NOT EXISTS (SELECT 1 FROM tool_call c WHERE c.turn = m.turn AND c.position < m.position)))
            ORDER BY m.seq)) AS query_message_ids,
        t.response AS response_message_id,
        EXISTS (SELECT 1 FROM turn c WHERE c.segment = t.segment AND c.depth = t.depth + 1)
            OR EXISTS (SELECT 1 FROM segment s WHERE s.parent = t.segment AND s.parent_depth = t.depth) AS has_children,
        t.calls AS tool_call_count,
        e.text AS source_event_id,
        (SELECT text FROM content_text WHERE n = t.workspace) AS workspace_path,
        (SELECT json FROM content_json WHERE n = t.thinking_config) AS thinking_config_json,
        (SELECT json FROM content_json WHERE n = t.effective_config) AS effective_config_json,
        (SELECT text FROM content_text WHERE n = t.error) AS error,
        t.interrupted AS interruption_reason, t.compaction AS compaction_turn_id, lower(hex(t.last_event)) AS digest,
        t.origin, (SELECT text FROM content_text WHERE n = t.native) AS native_id,
        (SELECT text FROM content_text WHERE n = t.git_branch) AS git_branch,
        (SELECT text FROM content_text WHERE n = t.version) AS version,
        (SELECT json FROM content_json WHERE n = t.metadata) AS metadata_json,
        t.current AS is_current, t.synthesised IS NOT 1 AS time_known, t.listed_at
    FROM turn t LEFT JOIN lookup_text e ON e.content = t.source_event;

CREATE VIEW threads AS
    SELECT t.id AS turn_id,
        CASE WHEN t.depth <= 1000 THEN (
            WITH RECURSIVE up(id, parent, depth) AS (
                SELECT t.id, t.parent, t.depth
                UNION ALL SELECT p.id, p.parent, p.depth FROM up JOIN turn p ON p.id = up.parent)
            SELECT json_group_array(id) FROM (SELECT id FROM up ORDER BY depth)) END AS ancestry,
        t.tokens_before + COALESCE(t.total_tokens, 0) AS total_tokens,
        t.depth,
        a.name AS persona_id,
        (SELECT NULLIF(lower(hex(digest)), '') FROM content WHERE n = t.system) AS system_prompt_hash,
        k.key AS thread_key
    FROM turn t LEFT JOIN persona a ON a.id = t.persona LEFT JOIN session s ON s.n = t.session
        LEFT JOIN thread_key k ON k.key = s.label || '#' || t.depth AND k.turn = t.id;

CREATE VIEW sessions AS
    SELECT s.label, s.head AS thread_id,
        a.name AS persona_id,
        s.parent_turn IS NOT NULL OR s.parent_session IS NOT NULL AS is_subagent,
        p.label AS parent_session_label,
        s.parent_turn AS parent_turn_id,
        s.spawn_call_name AS spawn_tool_call_id,
        (SELECT text FROM content_text WHERE n = s.task) AS task_description,
        CASE WHEN s.parent_turn IS NOT NULL OR s.parent_session IS NOT NULL THEN COALESCE(
            (SELECT CASE t.status WHEN 'failed' THEN 'failed' ELSE 'running' END FROM turn t
                WHERE t.session = s.n AND t.status <> 'completed' AND t.current = 1 AND t.n > COALESCE(
                    (SELECT h.n FROM history h WHERE h.session = s.n ORDER BY h.k DESC LIMIT 1), 0)
                ORDER BY t.n DESC LIMIT 1),
            (SELECT CASE status WHEN 'completed' THEN 'completed' WHEN 'failed' THEN 'failed' ELSE 'running' END
                FROM turn WHERE id = s.head), 'pending') END AS task_status,
        r.text AS routing_key,
        COALESCE(s.origin, 'weft') AS origin,
        (SELECT text FROM content_text WHERE n = s.origin_session) AS origin_session_id,
        s.created_at, s.updated_at, s.status, s.lifecycle, s.id,
        s.compaction AS chosen_compaction, s.head_events,
        (SELECT text FROM content_text WHERE n = s.title) AS title,
        (SELECT text FROM content_text WHERE n = s.workspace) AS workspace_path,
        (SELECT text FROM content_text WHERE n = s.git_branch) AS git_branch,
        (SELECT text FROM content_text WHERE n = s.version) AS version,
        CASE WHEN s.agent LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(s.agent, 2) AS INTEGER))
            ELSE s.agent END AS agent,
        (SELECT json FROM content_json WHERE n = s.metadata) AS metadata_json,
        (SELECT json FROM content_json WHERE n = s.config) AS config_json, s.config_version,
        (SELECT name FROM program WHERE id = s.model) AS default_model
    FROM session s LEFT JOIN persona a ON a.id = s.persona LEFT JOIN session p ON p.id = s.parent_session
        LEFT JOIN lookup_text r ON r.content = s.routing;

CREATE VIEW messages AS
    SELECT m.id, t.id AS turn_id, m.role,
        CASE WHEN m.text IS NOT NULL THEN (SELECT text FROM content_text WHERE n = m.text)
            ELSE (SELECT group_concat(text, char(10)) FROM (
                SELECT c.text FROM json_each(m.parts) j JOIN content_text c ON c.n = json_extract(j.value, '$.text')
                WHERE json_extract(j.value, '$.type') = 'text' ORDER BY j.key)) END AS content,
        m.source, m.seq AS sequence, m.at AS created_at,
        CASE WHEN m.thinking IS NOT NULL THEN (SELECT group_concat(text, char(10)) FROM (
            SELECT c.text FROM json_each(m.parts) j JOIN content_text c ON c.n = json_extract(j.value, '$.text')
            WHERE json_extract(j.value, '$.type') = 'reasoning' ORDER BY j.key)) END AS thinking,
        CASE WHEN m.context = 0 THEN (SELECT json_group_object(name, json(value)) FROM (
                SELECT name, CASE max(listed) WHEN 1 THEN json_group_array(json(value)) ELSE max(value) END AS value
                FROM (SELECT i.name, i.listed, CASE WHEN json_valid(c.text) THEN c.text ELSE json_quote(c.text) END AS value
                    FROM message_context i JOIN content_text c ON c.n = i.content WHERE i.message = m.id ORDER BY i.idx)
                GROUP BY name))
            ELSE (SELECT json FROM content_json WHERE n = m.context) END AS context_json,
        (SELECT json FROM content_json WHERE n = m.metadata) AS metadata_json,
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
        CASE WHEN m.model LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(m.model, 2) AS INTEGER))
            ELSE m.model END AS model,
        (SELECT json FROM content_json WHERE n = m.thinking_config) AS thinking_config_json,
        CASE WHEN m.text IS NOT NULL
            THEN json_array(json_object('type', 'text', 'text', (SELECT text FROM content_text WHERE n = m.text)))
            ELSE (SELECT json_group_array(json(part)) FROM (
                SELECT CASE json_extract(j.value, '$.type')
                    WHEN 'image_url' THEN json_object('type', 'image_url',
                        'url', (SELECT text FROM content_text WHERE n = json_extract(j.value, '$.url')),
                        'detail', CASE WHEN json_extract(j.value, '$.detail') LIKE '#%'
                            THEN (SELECT text FROM content_text
                                WHERE n = CAST(substr(json_extract(j.value, '$.detail'), 2) AS INTEGER))
                            ELSE json_extract(j.value, '$.detail') END)
                    WHEN 'tool_use' THEN json_object('type', 'tool_use',
                        'id', (SELECT text FROM content_text WHERE n = json_extract(j.value, '$.id')),
                        'name', CASE WHEN json_extract(j.value, '$.name') LIKE '#%'
                            THEN (SELECT text FROM content_text
                                WHERE n = CAST(substr(json_extract(j.value, '$.name'), 2) AS INTEGER))
                            ELSE json_extract(j.value, '$.name') END,
                        'input', (SELECT json FROM content_json WHERE n = json_extract(j.value, '$.input')))
                    WHEN 'tool_result' THEN json_object('type', 'tool_result',
                        'tool_call_id', (SELECT text FROM content_text WHERE n = json_extract(j.value, '$.tool_call_id')),
                        'output', (SELECT json FROM content_json WHERE n = json_extract(j.value, '$.output')),
                        'is_error', json_extract(j.value, '$.is_error'))
                    ELSE json_object('type', json_extract(j.value, '$.type'),
                        'text', (SELECT text FROM content_text WHERE n = json_extract(j.value, '$.text')))
                    END AS part FROM json_each(m.parts) j ORDER BY j.key)) END AS parts_json,
        (SELECT text FROM content_text WHERE n = m.native) AS native_id,
        CASE WHEN m.provider LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(m.provider, 2) AS INTEGER))
            ELSE m.provider END AS provider,
        m.input_tokens, m.output_tokens, m.cached_input_tokens, m.cache_write_tokens,
        m.cache_write_1h_tokens, m.recorded_cost, m.reasoning_tokens,
        CASE WHEN m.finish LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(m.finish, 2) AS INTEGER))
            ELSE m.finish END AS finish_reason
    FROM message m JOIN turn t ON t.n = m.turn;

CREATE VIEW tool_calls AS
    SELECT t.id || ':' || (SELECT text || CASE WHEN c.repeated > 0 OR instr(text, '~') > 0 THEN '~' || (c.repeated + 1)
            ELSE '' END FROM content_text WHERE n = c.call_id) AS id,
        t.id AS turn_id, c.message AS message_id,
        CASE WHEN c.tool LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(c.tool, 2) AS INTEGER))
            ELSE c.tool END AS tool_name,
        c.number AS tool_number,
        (SELECT json FROM content_json WHERE n = c.params) AS params_json,
        (SELECT json FROM content_json WHERE n = c.result) AS result_json,
        (SELECT text FROM content_text WHERE n = c.error) AS error,
        c.status, s.label AS spawned_session_label,
        c.started_at, c.completed_at, c.seq AS sequence,
        (SELECT text FROM content_text WHERE n = c.call_id) AS call_id, c.outcome,
        CASE WHEN c.server LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(c.server, 2) AS INTEGER))
            ELSE c.server END AS server,
        CASE WHEN c.error_code LIKE '#%'
            THEN (SELECT text FROM content_text WHERE n = CAST(substr(c.error_code, 2) AS INTEGER))
            ELSE c.error_code END AS error_code,
        c.correlation AS correlation_id,
        (SELECT json FROM content_json WHERE n = c.detail) AS metadata_json
    FROM tool_call c JOIN turn t ON t.n = c.turn LEFT JOIN session s ON s.n = c.spawned;

CREATE VIEW compactions AS
    SELECT k.turn AS turn_id, (SELECT text FROM content_text WHERE n = k.summary) AS summary,
        k.through AS summarized_through_turn_id, k.first_kept AS first_kept_turn_id, k.turns_summarized,
        k.type AS compaction_type,
        CASE WHEN k.model LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(k.model, 2) AS INTEGER))
            ELSE k.model END AS model,
        CASE WHEN k.provider LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(k.provider, 2) AS INTEGER))
            ELSE k.provider END AS provider,
        k.tokens_before, k.tokens_after, k.summary_tokens, k.summarization_input_tokens,
        k.summarization_output_tokens, k.duration_ms, k."trigger",
        (SELECT json FROM content_json WHERE n = k.metadata) AS metadata_json
    FROM compaction k;

CREATE VIEW session_history AS
    SELECT h.n AS id, s.label AS session_label, h.turn AS thread_id, h.changed_at, h.why,
        (SELECT text FROM content_text WHERE n = h.reason) AS reason, s.id AS session_id, h.k
    FROM history h JOIN session s ON s.n = h.session;

CREATE VIEW session_aliases AS
    SELECT a.alias, s.label AS session_label, a.created_at, a.reason FROM alias a JOIN session s ON s.n = a.session;

CREATE VIEW message_files AS
    SELECT f.id, f.message AS message_id, f.kind, p.text AS file_path, f.line_start, f.line_end
    FROM message_file f LEFT JOIN lookup_text p ON p.content = f.path;

CREATE VIEW message_lints AS
    SELECT l.id, l.message AS message_id, (SELECT text FROM content_text WHERE n = l.path) AS file_path,
        (SELECT text FROM content_text WHERE n = l.text) AS message,
        CASE WHEN l.source LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(l.source, 2) AS INTEGER))
            ELSE l.source END AS lint_source,
        l.start_line, l.start_col, l.end_line, l.end_col, l.severity
    FROM message_lint l;

CREATE VIEW message_codeblocks AS
    SELECT b.id, b.message AS message_id, b.idx,
        CASE WHEN b.language LIKE '#%' THEN (SELECT text FROM content_text WHERE n = CAST(substr(b.language, 2) AS INTEGER))
            ELSE b.language END AS language,
        (SELECT CASE WHEN b.start IS NULL THEN text ELSE substr(text, b.start + 1, b.length) END
            FROM content_text WHERE n = b.content) AS content,
        (SELECT text FROM content_text WHERE n = b.path) AS file_path, b.line_start, b.line_end
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
        (SELECT text FROM content_text WHERE n = t.native) AS native_id, t.mapping
    FROM turn t WHERE t.native IS NOT NULL;

CREATE VIEW erasures AS
    SELECT e.n, lower(hex(e.ref)) AS content_ref, e.erased_at,
        COALESCE((SELECT name FROM program WHERE id = e.actor), e.actor) AS actor,
        (SELECT text FROM content_text WHERE n = e.reason) AS reason,
        e.turn AS turn_id, e.session AS session_id, e.replica
    FROM erasure e;

CREATE VIEW programs AS
    SELECT p.id, p.name, p.kind, p.state, (SELECT json FROM content_json WHERE n = p.config) AS config_json, p.version,
        (SELECT json_group_array(tag) FROM (SELECT tag FROM node_tag WHERE node = p.id ORDER BY tag)) AS tags,
        p.info_type, p.deleted AS is_deleted, p.created_at, p.updated_at,
        COALESCE((SELECT name FROM program WHERE id = p.created_by), p.created_by) AS created_by,
        (SELECT name FROM program WHERE id = p.task) AS current_task,
        (SELECT label FROM session WHERE id = p.session) AS current_session,
        p.turns AS turn_count, p.checkpoint AS last_checkpoint,
        (SELECT text FROM content_text WHERE n = p.result) AS result
    FROM program p
    UNION ALL SELECT s.id, s.label, 'session', s.lifecycle, (SELECT json FROM content_json WHERE n = s.config),
        s.config_version, (SELECT json_group_array(tag) FROM (SELECT tag FROM node_tag WHERE node = s.id ORDER BY tag)),
        NULL, s.status = 'deleted', s.created_at, s.updated_at,
        COALESCE((SELECT name FROM program WHERE id = s.persona), s.persona), NULL, NULL, NULL, NULL, NULL
    FROM session s;

CREATE VIEW program_versions AS
    SELECT h.program AS program_id, h.version, h.at AS changed_at,
        COALESCE((SELECT name FROM program WHERE id = h.actor), h.actor) AS actor,
        (SELECT json FROM content_json WHERE n = h.config) AS config_json,
        (SELECT text FROM content_text WHERE n = h.reason) AS reason
    FROM program_history h WHERE h.config IS NOT NULL;

CREATE VIEW program_references AS
    SELECT program AS program_id, field, target AS target_id, version AS target_version FROM program_reference;

CREATE VIEW task_checks AS
    SELECT task AS task_id, criterion, type, passed, (SELECT json FROM content_json WHERE n = observed) AS observed_json,
        version AS task_version, at AS checked_at
    FROM task_check;

CREATE VIEW human_requests AS
    SELECT r.id, r.human AS human_id, (SELECT text FROM content_text WHERE n = r.text) AS text, r.asks, r.status,
        r.program AS program_id, (SELECT json FROM content_json WHERE n = r.data) AS data_json,
        COALESCE((SELECT name FROM program WHERE id = r.asked_by), r.asked_by) AS asked_by, r.asked_at, r.decided_at,
        (SELECT text FROM content_text WHERE n = r.reason) AS reason
    FROM human_request r;

CREATE VIEW node_tags AS
    SELECT node AS node_id, tag, tagged_at FROM node_tag;
