-- Ordinary turns were appended by a function of this name, which own_0022.sql makes anew.
CREATE FUNCTION append_turn() RETURNS void LANGUAGE sql AS '';
