"""`weft room`: conversations of people and agents on the command line."""
