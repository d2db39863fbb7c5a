-- The words of each passage, without the text. Words are made by Weft: the tokenizer splits at spaces and no more.
CREATE VIRTUAL TABLE word USING fts5(
    words, content = '', contentless_delete = 1, detail = none, tokenize = "ascii tokenchars ':'"
);
CREATE VIRTUAL TABLE word_pair USING fts5vocab('word', 'instance');
