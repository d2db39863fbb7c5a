"""Home folders with version managers in them, as the tests of toolchains make them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weft.runtime.sandbox.profiles import MountKind
from weft.runtime.sandbox.toolchains import PersonalHome, Toolchains, find_toolchains


def program(place: Path, text: str = "#!/bin/sh\necho started\n") -> Path:
    """An executable file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)
    return place


def link(place: Path, target: Path | str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    return place


class ProjectAndHome:
    """An empty home folder beside an empty project."""

    def __init__(self, folder: Path) -> None:
        self.home, self.project = folder / "home" / "ada", folder / "project"
        self.home.mkdir(parents=True)
        self.project.mkdir()

    def search(self, folder: Path | None = None, variables: Mapping[str, str] | None = None) -> Toolchains:
        home = PersonalHome(folder=str(self.home), variables=variables or {})
        return find_toolchains(home, str(self.project), None if folder is None else str(folder))

    def shown(self, toolchains: Toolchains) -> set[str]:
        """What is shown of the home folder, as paths from there."""
        return {
            str(Path(mount.place).relative_to(self.home))
            for mount in toolchains.mounts
            if mount.kind is MountKind.READ_ONLY
        }

    def hidden(self, toolchains: Toolchains) -> set[str]:
        """What of that is covered."""
        return {str(Path(mount.place).relative_to(self.home)) for mount in toolchains.mounts if mount.is_cover}

    def looked_in(self, toolchains: Toolchains) -> list[str]:
        """Where programs are looked for before the system's."""
        return [str(Path(folder).relative_to(self.home)) for folder in toolchains.first_folders]

    def python(self, version: str = "3.11.4", manager: str = ".pyenv/versions") -> Path:
        """A file that stands for an installed interpreter."""
        return program(self.home / manager / version / "bin" / "python3.11")
