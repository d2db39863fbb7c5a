"""Programs: everything that acts or is acted with, each with a lifecycle, a configuration and an address."""

from weft.programs.program_records import Program
from weft.programs.programs import Programs

__all__ = ["Program", "Programs"]
