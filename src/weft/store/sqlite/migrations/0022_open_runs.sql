-- Whether a session has an open run is asked for every waiting session.
CREATE INDEX open_run_session ON open_run (session);
