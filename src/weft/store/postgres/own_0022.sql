-- A session's row is written again with every turn, at its old place in every index as long as no indexed column has
-- changed (a "heap-only" update). Its time has, so that is indexed by blocks of rows: such an index allows it.
DROP INDEX session_updated;
CREATE INDEX session_updated ON session USING brin (updated_at);
ALTER TABLE session SET (fillfactor = 80);
-- Events of one turn fit into a block: pressing them together is time under the writers' lock.
ALTER TABLE log SET (toast_tuple_target = 8160);

-- One ordinary turn, appended under the writers' lock: `straight_append.py` calls it and says what a turn has to be like.
--
-- Its numbers are provisional. New events are numbered from 2^61 on and new contents from 2^62 on; only here, where the
-- end of the log is known, do they get the numbers that they keep. The caller remembers the session, its lease and the
-- turn at its head, each with the transaction that wrote its row (`xmin`). Had anybody written one of them again, it would
-- be another's: then nothing is written, and the verdict says what was.
--
-- It is a transaction by itself, under READ COMMITTED: each statement sees what was committed before it. What could be
-- wrong is asked twice. Whoever is refused without the lock need not wait for it; and when the same is asked again under the
-- lock, all that the question takes is at hand.
-- Plans are made once for each connection, mostly while tables are small and have no statistics. So a range has two ends:
-- of one that is open to one side a third of the table is expected, and all of it read, also when it has grown.
DROP FUNCTION append_turn;
CREATE FUNCTION append_turn(
    lock_key BIGINT, schema_number BIGINT, erasures BIGINT,     -- whose lock, and by what the caller goes
    seen BIGINT, filled BIGINT,                                 -- the caller knows this tree's contents from `filled` to `seen`
    arrived_at BIGINT, ids BYTEA, lines BYTEA,                  -- the events
    tree BIGINT, starts BIGINT[], sizes BIGINT[], pieces BYTEA, -- new contents: reference, salt, digest and bytes of each
    session_version XID, lease_version XID, head_version XID,   -- who wrote the rows that the caller remembers
    moved session, new_turn turn, new_messages message[], new_calls tool_call[], new_move history, new_key thread_key,
    OUT verdict TEXT, OUT last_n BIGINT, OUT last_chain BYTEA, OUT last_content BIGINT, OUT newer JSON,
    OUT locked_at BIGINT, OUT written_by XID
) LANGUAGE plpgsql AS $$
DECLARE
    events_from CONSTANT BIGINT := 2305843009213693952;
    contents_from CONSTANT BIGINT := 4611686018427387904;
    new_message message;
    new_call tool_call;
    digests BYTEA[] := ARRAY(SELECT substring(pieces FROM (s + 48)::int FOR 32) FROM unnest(starts) s);
    amount BIGINT := length(ids) / 32;
    stored_number BIGINT;
    stored_erasures BIGINT;
    is_locked BOOLEAN;
    is_moved BOOLEAN;
    is_known BOOLEAN;
    commit_mode TEXT := set_config('synchronous_commit', 'off', true);  -- the caller flushes after the lock is let go
    event_shift BIGINT;
    content_shift BIGINT;
BEGIN
    IF filled > 0 THEN
        SELECT json_agg(json_build_array(c.n, encode(c.digest, 'hex'), encode(c.ref, 'hex'))) INTO newer
            FROM unnest(digests) d CROSS JOIN LATERAL (
                SELECT n FROM lookup_bytes WHERE scope = tree AND key = substring(d FROM 1 FOR 8) OFFSET 0
            ) l JOIN content c ON c.n = l.n AND c.digest = d;
        IF newer IS NOT NULL THEN
            verdict := 'known';
            RETURN;
        END IF;
    END IF;

    FOREACH is_locked IN ARRAY ARRAY[false, true] LOOP
        IF is_locked THEN
            PERFORM pg_advisory_xact_lock(lock_key);
            PERFORM nextval('writes');
            locked_at := extract(epoch FROM clock_timestamp()) * 1000000;
        END IF;
        SELECT (SELECT number FROM weft_schema), coalesce((SELECT n FROM watermark WHERE view = 'erasing'), 0),
                (SELECT xmin FROM session WHERE n = moved.n) IS DISTINCT FROM session_version
                OR (SELECT xmin FROM lease WHERE kind = 'session' AND key = moved.id) IS DISTINCT FROM lease_version
                OR (SELECT xmin FROM turn WHERE id = new_turn.parent) IS DISTINCT FROM head_version
                OR EXISTS (SELECT 1 FROM turn WHERE segment = new_turn.segment AND depth = new_turn.depth),
                l.n, l.chain, greatest(l.contents, (SELECT n FROM content ORDER BY n DESC LIMIT 1))
            INTO stored_number, stored_erasures, is_moved, last_n, last_chain, last_content
            FROM log l ORDER BY l.n DESC LIMIT 1;
        IF stored_number IS DISTINCT FROM schema_number THEN
            verdict := 'schema';
        ELSIF stored_erasures <> erasures THEN
            verdict := 'erased';
        ELSIF is_moved THEN
            verdict := 'moved';
        ELSIF last_content - seen > 4096 THEN
            verdict := 'behind';
        END IF;
        IF verdict IS NOT NULL THEN
            RETURN;
        END IF;
    END LOOP;
    IF last_content > seen THEN
        SELECT json_agg(json_build_array(n, encode(digest, 'hex'), encode(ref, 'hex'))), bool_or(digest = ANY (digests))
            INTO newer, is_known FROM content
            WHERE n > seen AND n <= last_content AND scope = tree AND digest <> '';
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
        WHERE n = moved.n;
    written_by := pg_current_xact_id()::xid;
    verdict := 'done';
END $$;
