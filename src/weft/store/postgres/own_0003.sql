-- The words of each passage, without the text. Words are made by Weft: no text search configuration ever sees them.
CREATE TABLE word (n BIGINT PRIMARY KEY, words TSVECTOR NOT NULL);
CREATE INDEX word_words ON word USING gin (words);
