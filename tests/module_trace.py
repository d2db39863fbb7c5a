"""Which modules one call passes through: a reader who follows it has to open each of them."""

import sys
from types import FrameType


class ModuleTrace:
    """Collects the modules of weft of which a function is executed; loading a module does not count."""

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def __enter__(self) -> "ModuleTrace":
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and frame.f_code.co_name != "<module>" and name.partition(".")[0] == "weft":
            self.modules.add(name)
