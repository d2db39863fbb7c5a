-- Whoever may not read everything asks for the turns that belong to no session.
CREATE INDEX turn_alone ON turn (n) WHERE session IS NULL;
-- Which sessions the calls of a turn started, when the turn changes hands.
CREATE INDEX spawn_turn ON spawn (turn);
-- How many messages a session was sent since a person spoke.
CREATE INDEX inbox_session ON inbox (session, n);
-- Which segments a tree has.
CREATE INDEX segment_root ON segment (root);
