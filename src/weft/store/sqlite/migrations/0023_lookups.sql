-- Whoever may not read everything asks for the turns that belong to no session.
CREATE INDEX turn_alone ON turn (n) WHERE session IS NULL;
-- Which sessions the calls of a turn started, when the turn changes hands.
CREATE INDEX spawn_turn ON spawn (turn);
-- Which messages a session was sent, and which of them wait.
DROP INDEX inbox_queued;
CREATE INDEX inbox_session ON inbox (session, state, n);
-- Which segments a tree has.
CREATE INDEX segment_root ON segment (root);
