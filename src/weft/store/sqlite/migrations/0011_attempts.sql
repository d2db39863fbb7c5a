-- Turns that a session's head has not moved to: under way, or failed. What becomes of a subagent is read off them.
CREATE INDEX turn_attempt ON turn (session, n) WHERE status <> 'completed';
