"""Ways out: connections and the credentials that may go along."""
