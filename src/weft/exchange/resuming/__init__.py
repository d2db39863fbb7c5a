"""Going on elsewhere: session files that another tool can resume, written from any thread of a ledger."""

from weft.exchange.resuming.session_files import Resume, prepare_resume, write_resume
from weft.exchange.resuming.session_records import FORMATS, Format, load_format

__all__ = ["FORMATS", "Format", "Resume", "load_format", "prepare_resume", "write_resume"]
