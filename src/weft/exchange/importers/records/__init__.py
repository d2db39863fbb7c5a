"""The skeleton of importers whose sources are records, one JSON object each, mostly one on a line.

An importer goes over a source twice. The first pass (`jsonl.records`) gives each record a role (`roles`) and decides
which records make which turn (`planned_turns`); it keeps their ids and places, not what they say. The second pass
(`walk.walk_turns`) reads the records of one turn again and hands them to a builder (`builder`), which makes the turn
that the ledger takes. `values` takes fields of foreign JSON as what they should be. What the records of an origin mean
is decided in that origin's own folder.
"""
