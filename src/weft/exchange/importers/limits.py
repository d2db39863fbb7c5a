"""How much importers read of one source, of one file beside it, and of one statement on a database."""

from __future__ import annotations

from weft.kernel.foreign_input import GIB, KIB, MIB, ReadLimits

SOURCE_LIMITS = ReadLimits(
    bytes=64 * GIB,
    free_bytes=256 * MIB,
    ratio=200,
    held_bytes=256 * MIB,
    values=4 * MIB,
    entries=1 * MIB,
    seconds=120,
    bytes_a_second=128 * KIB,
    advice="look at where it comes from; what is to be imported can be unpacked or split, and the parts imported",
)
"""Of one file, archive or database, and of the files that one session is spread over."""

PACKED_MEMBER_LIMITS = ReadLimits(bytes=4 * GIB, free_bytes=256 * KIB, ratio=200, advice=SOURCE_LIMITS.advice)
"""Of a compressed file in an archive, measured against what it takes there."""

STATEMENT_LIMITS = ReadLimits(
    bytes=64 * GIB, free_bytes=16 * MIB, ratio=16, advice="look at where it comes from; its tables repeat themselves"
)
"""Of one statement, measured against the size of the database: no table holds more than its file."""

SIDECAR_BYTES = 64 * MIB
"""Of one file beside a source."""
SESSION_BYTES = 1 * GIB
"""Of all files together that one session is spread over: they are in memory at the same time."""
