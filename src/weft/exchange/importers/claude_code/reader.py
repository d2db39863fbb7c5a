"""Reading a file of Claude Code, and reading on in it when it has grown.

What costs is parsing lines and making turns of them. The index of the lines read so far is kept, so only new lines are
parsed; how lines fall into turns is worked out anew from the whole index, so that every reading sees what a first one
would; and of the turns given before, those that would be made of the same again are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.exchange.importers.claude_code.given import Given
from weft.exchange.importers.claude_code.index import Index, count_entries, index_file, index_more
from weft.exchange.importers.claude_code.layout import has_agent_file
from weft.exchange.importers.claude_code.sessions import main_session, transcripts
from weft.exchange.importers.claude_code.tree import grow
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.transcript import Transcript


class ClaudeCodeReader:
    """Of one file."""

    def __init__(self) -> None:
        self._index: Index | None = None
        self._given = Given()

    def read(self, source: Source, report: Report, taken: Mapping[str, int]) -> Iterator[Transcript]:
        index = self._indexed(source, report)
        session = main_session(index)
        beside = {agent for agent in index.mirrors if has_agent_file(source.path, session, agent)}
        plans = grow(index, beside)
        count_entries(index)
        yield from transcripts(index, plans, session, self._given, taken)

    def _indexed(self, source: Source, report: Report) -> Index:
        index, self._index = self._index, None
        if index is None or index.reached.is_torn:
            self._given = Given()
            index = index_file(source, report)
        else:
            index_more(index, source, report)
        self._index = index
        return index
