-- Local state of a ledger that is served: who signs in with a password, links that count once, browsers that are signed
-- in, the keys of their cookies, and credentials that count no longer. Of links and cookies there are digests alone.
CREATE TABLE account (
    program TEXT PRIMARY KEY,       -- a person
    password TEXT NOT NULL,         -- its argon2id, with salt and costs
    changed_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE sign_in_link (
    digest TEXT PRIMARY KEY,
    program TEXT,                   -- whose password it sets; null: it signs the ledger's owner in
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE cookie_key (
    n INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    made_at INTEGER NOT NULL
);
CREATE TABLE browser_session (
    digest TEXT PRIMARY KEY,
    program TEXT,                   -- null: the ledger's owner
    cookie_key INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE credential_revoked (
    id TEXT PRIMARY KEY,
    revoked_at INTEGER NOT NULL
) WITHOUT ROWID;
