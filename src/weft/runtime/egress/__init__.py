"""Ways out: in whose name something is done, connections, and the credentials that may go along."""
