-- Conversations of people and agents.
CREATE TABLE conversation (
    id TEXT PRIMARY KEY,
    n INTEGER NOT NULL,             -- arrival number of the event that began it
    replica TEXT,
    title INTEGER,
    status TEXT NOT NULL,
    history TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    forked_from TEXT,
    forked_at INTEGER NOT NULL DEFAULT 0, -- position of the last message that is the origin's
    position INTEGER NOT NULL DEFAULT 0,  -- of the newest message
    last_message_at INTEGER
) WITHOUT ROWID;
CREATE INDEX conversation_news ON conversation (status, last_message_at);

-- Who takes part, and from which message to which.
CREATE TABLE participant (
    id TEXT PRIMARY KEY,
    conversation TEXT NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    n INTEGER NOT NULL,
    replica TEXT,
    session TEXT,                   -- the one that an agent answers in
    added_by TEXT NOT NULL,
    added_at INTEGER NOT NULL,
    since INTEGER NOT NULL,         -- position of the newest message when they came
    seen INTEGER NOT NULL,          -- position up to which an agent was sent the conversation
    removed_by TEXT,
    removed_at INTEGER,
    removed_n INTEGER,
    until INTEGER                   -- position of the newest message when they left
) WITHOUT ROWID;
CREATE INDEX participant_conversation ON participant (conversation, node);
CREATE INDEX participant_node ON participant (node, conversation);
CREATE INDEX participant_session ON participant (session) WHERE session IS NOT NULL;

-- What was said in a conversation.
CREATE TABLE room_message (
    conversation TEXT NOT NULL,
    position INTEGER NOT NULL,
    id TEXT NOT NULL,
    n INTEGER NOT NULL,
    replica TEXT,
    kind TEXT NOT NULL,
    author TEXT,                    -- the participant
    node TEXT,                      -- the person or agent behind it
    notice TEXT,
    root TEXT NOT NULL,             -- the person's message that it goes back to; its own id where it is one
    hops INTEGER NOT NULL,
    answers TEXT,
    turn TEXT,
    posted_at INTEGER NOT NULL,
    PRIMARY KEY (conversation, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX room_message_id ON room_message (id);
CREATE INDEX room_message_node ON room_message (node, posted_at) WHERE node IS NOT NULL;
CREATE INDEX room_message_author ON room_message (author, position) WHERE author IS NOT NULL;

-- Whom messages mention.
CREATE TABLE mention (
    conversation TEXT NOT NULL,
    position INTEGER NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    PRIMARY KEY (node, conversation, position)
) WITHOUT ROWID;
CREATE INDEX mention_message ON mention (conversation, position);

-- People who were mentioned and take no part.
CREATE TABLE invitation (
    conversation TEXT NOT NULL,
    node TEXT NOT NULL,
    n INTEGER NOT NULL,
    replica TEXT,
    message TEXT,
    state TEXT NOT NULL,
    invited_by TEXT NOT NULL,
    invited_at INTEGER NOT NULL,
    PRIMARY KEY (conversation, node)
) WITHOUT ROWID;
CREATE INDEX invitation_node ON invitation (node, state);

-- Which messages of conversations reached which agents: each of them once.
CREATE TABLE room_delivery (
    posted TEXT NOT NULL,           -- the message of the conversation
    session TEXT NOT NULL,          -- the agent's session there
    message TEXT NOT NULL,          -- the message of its inbox
    root TEXT NOT NULL,
    PRIMARY KEY (posted, session)
) WITHOUT ROWID;
CREATE INDEX room_delivery_root ON room_delivery (root);
CREATE INDEX room_delivery_session ON room_delivery (session);
CREATE UNIQUE INDEX room_delivery_message ON room_delivery (message);

-- Up to where people have read a conversation. Local state.
CREATE TABLE room_read (
    conversation TEXT NOT NULL,
    node TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (conversation, node)
) WITHOUT ROWID;

-- What a system agent is for.
ALTER TABLE program ADD COLUMN system_kind TEXT;
