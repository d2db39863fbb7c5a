"""Going on elsewhere: session files that another tool can resume, written from any thread of a ledger."""

from weft.exchange.resuming.formats import FORMATS, Format, load_format
from weft.exchange.resuming.session_files import Resume, prepare_resume, write_resume

__all__ = ["FORMATS", "Format", "Resume", "load_format", "prepare_resume", "write_resume"]
