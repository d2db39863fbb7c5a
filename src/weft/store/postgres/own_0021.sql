-- One ordinary turn, appended under the writers' lock: `straight_append.py` calls it and says what a turn has to be like.
--
-- Its numbers are provisional. New events are numbered from 2^61 on and new contents from 2^62 on; only here, where the
-- end of the log is known, do they get the numbers that they keep. What the caller remembers of the session, of its
-- lease and of the turn at its head is compared with what is stored, column by column: if anything is different, nothing
-- is written, and the verdict says what was.
--
-- It is a transaction by itself, under READ COMMITTED: each statement sees what was committed before the lock was taken.
-- Plans are made once for each connection, mostly while tables are small and have no statistics. So a range has two ends:
-- of one that is open to one side a third of the table is expected, and all of it read, also when it has grown.
CREATE FUNCTION append_turn(
    lock_key BIGINT, schema_number BIGINT, erasures BIGINT,     -- whose lock, and by what the caller goes
    seen BIGINT, filled BIGINT,                                 -- the caller knows this tree's contents from `filled` to `seen`
    arrived_at BIGINT, ids BYTEA, lines BYTEA,                  -- the events
    tree BIGINT, starts BIGINT[], sizes BIGINT[], pieces BYTEA, -- new contents: reference, salt, digest and bytes of each
    session_before JSON, lease_before JSON, head_before JSON,
    session_after JSON, turn_after JSON, messages JSON, calls JSON, move JSON, key_after JSON,
    OUT verdict TEXT, OUT last_n BIGINT, OUT last_chain BYTEA, OUT last_content BIGINT, OUT newer JSON, OUT locked_at BIGINT
) LANGUAGE plpgsql AS $$
DECLARE
    events_from CONSTANT BIGINT := 2305843009213693952;
    contents_from CONSTANT BIGINT := 4611686018427387904;
    was_session session := json_populate_record(NULL::session, session_before);
    was_lease lease := json_populate_record(NULL::lease, lease_before);
    was_head turn := json_populate_record(NULL::turn, head_before);
    moved session := json_populate_record(NULL::session, session_after);
    new_turn turn := json_populate_record(NULL::turn, turn_after);
    new_move history := json_populate_record(NULL::history, move);
    new_key thread_key := json_populate_record(NULL::thread_key, key_after);
    new_messages message[] := ARRAY(SELECT m FROM json_populate_recordset(NULL::message, messages) m);
    new_calls tool_call[] := ARRAY(SELECT c FROM json_populate_recordset(NULL::tool_call, calls) c);
    new_message message;
    new_call tool_call;
    digests BYTEA[] := ARRAY(SELECT substring(pieces FROM (s + 48)::int FOR 32) FROM unnest(starts) s);
    amount BIGINT := length(ids) / 32;
    stored_session session;
    stored_lease lease;
    stored_head turn;
    stored_number BIGINT;
    stored_erasures BIGINT;
    is_followed BOOLEAN;
    is_known BOOLEAN;
    write_number BIGINT;
    commit_mode TEXT := set_config('synchronous_commit', 'off', true);  -- the caller flushes after the lock is let go
    event_shift BIGINT;
    content_shift BIGINT;
BEGIN
    IF filled > 0 THEN
        SELECT json_agg(json_build_array(c.n, encode(c.digest, 'hex'), encode(c.ref, 'hex'))) INTO newer
            FROM unnest(digests) d JOIN lookup_bytes l ON l.scope = tree AND l.key = substring(d FROM 1 FOR 8)
            JOIN content c ON c.n = l.n AND c.digest = d;
        IF newer IS NOT NULL THEN
            verdict := 'known';
            RETURN;
        END IF;
    END IF;

    PERFORM pg_advisory_xact_lock(lock_key);
    locked_at := extract(epoch FROM clock_timestamp()) * 1000000;
    SELECT (SELECT number FROM weft_schema), coalesce((SELECT n FROM watermark WHERE view = 'erasing'), 0),
            EXISTS (SELECT 1 FROM turn WHERE segment = was_head.segment AND depth = was_head.depth + 1),
            l.n, l.chain, greatest(l.contents, (SELECT n FROM content ORDER BY n DESC LIMIT 1)), nextval('writes')
        INTO stored_number, stored_erasures, is_followed, last_n, last_chain, last_content, write_number
        FROM log l ORDER BY l.n DESC LIMIT 1;
    IF stored_number IS DISTINCT FROM schema_number THEN
        verdict := 'schema';
        RETURN;
    END IF;
    IF stored_erasures <> erasures THEN
        verdict := 'erased';
        RETURN;
    END IF;

    SELECT * INTO stored_session FROM session WHERE n = was_session.n;
    SELECT * INTO stored_lease FROM lease WHERE kind = 'session' AND key = was_session.id;
    SELECT * INTO stored_head FROM turn WHERE id = was_session.head;
    IF is_followed OR stored_session IS DISTINCT FROM was_session OR stored_lease IS DISTINCT FROM was_lease
            OR stored_head IS DISTINCT FROM was_head THEN
        verdict := 'moved';
        RETURN;
    END IF;

    IF last_content - seen > 4096 THEN
        verdict := 'behind';
        RETURN;
    END IF;
    IF last_content > seen THEN
        SELECT json_agg(json_build_array(n, encode(digest, 'hex'), encode(ref, 'hex'))), bool_or(digest = ANY (digests))
            INTO newer, is_known FROM (SELECT * FROM content WHERE n > seen AND n <= last_content ORDER BY n LIMIT 4096) c
            WHERE scope = tree AND digest <> '';
        IF is_known THEN
            verdict := 'known';
            RETURN;
        END IF;
    END IF;

    event_shift := last_n - events_from;
    content_shift := last_content - contents_from;
    FOR k IN 0 .. amount - 1 LOOP
        last_chain := sha256(last_chain || substring(ids FROM (k * 32 + 1)::int FOR 32));
    END LOOP;
    INSERT INTO content(n, scope, ref, salt, digest, size, bytes)
        SELECT last_content + p.place, tree, substring(pieces FROM p.start::int FOR 32),
            substring(pieces FROM (p.start + 32)::int FOR 16), digests[p.place], p.size,
            substring(pieces FROM (p.start + 80)::int FOR p.size::int)
        FROM unnest(starts, sizes) WITH ORDINALITY AS p(start, size, place);
    last_n := last_n + amount;
    last_content := last_content + cardinality(sizes);
    INSERT INTO log(n, count, at, chain, contents, events)
        VALUES (last_n, amount, arrived_at, last_chain, last_content, lines);

    new_turn.n := new_turn.n + event_shift;
    IF new_turn.system >= contents_from THEN new_turn.system := new_turn.system + content_shift; END IF;
    INSERT INTO turn VALUES (new_turn.*);
    FOREACH new_message IN ARRAY new_messages LOOP
        new_message.turn := new_turn.n;
        IF new_message.text >= contents_from THEN new_message.text := new_message.text + content_shift; END IF;
        INSERT INTO message VALUES (new_message.*);
    END LOOP;
    FOREACH new_call IN ARRAY new_calls LOOP
        new_call.turn := new_turn.n;
        IF new_call.call_id >= contents_from THEN new_call.call_id := new_call.call_id + content_shift; END IF;
        IF new_call.params >= contents_from THEN new_call.params := new_call.params + content_shift; END IF;
        IF new_call.result >= contents_from THEN new_call.result := new_call.result + content_shift; END IF;
        INSERT INTO tool_call VALUES (new_call.*);
    END LOOP;
    new_move.n := new_move.n + event_shift;
    INSERT INTO history VALUES (new_move.*);
    INSERT INTO thread_key VALUES (new_key.*)
        ON CONFLICT (key) DO UPDATE SET session = excluded.session, turn = excluded.turn;
    UPDATE session SET head = moved.head, head_segment = moved.head_segment, head_depth = moved.head_depth,
            moves = moved.moves, since = moved.since, last_event = moved.last_event, updated_at = moved.updated_at
        WHERE n = was_session.n;
    verdict := 'done';
END $$;
