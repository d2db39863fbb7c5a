"""Protocols that models are asked in: each has one module, with the body of a request and the reading of an answer."""
