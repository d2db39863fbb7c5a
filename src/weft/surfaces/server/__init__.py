"""The ledger as an HTTP server: routes made of declared verbs, callers known by credentials, and nothing else.

`route_table` lists every route with the right that it needs. `callers` says who asks. `application` puts them together
as an ASGI application. `verb_requests` calls a verb for a request. `problems` are errors as problem+json. `openapi` is
the description of it all. `guards` refuses requests before anything is read of them. `serving` runs it.
"""
