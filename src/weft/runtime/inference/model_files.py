"""Small models that can be fetched once and then run here: which files they are, and the folder that holds them.

Each is its maker's own file at a fixed revision, pinned by size and SHA-256. Whatever else lies there is not run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from weft.kernel.errors import Action, NotApplicable, Unsupported

Variable = Callable[[str], str | None]
_HUB = "https://huggingface.co"
_CHUNK_BYTES = 1024 * 1024


class ModelFile(Struct, frozen=True, kw_only=True):
    """A file of weights in the GGUF format, which also says how the model is spoken to."""

    name: str
    url: str
    size_bytes: int
    sha256: str
    license: str

    @property
    def file_name(self) -> str:
        return f"{self.name}.gguf"


MODEL_FILES = (
    ModelFile(
        name="smollm2-360m-instruct",
        url=f"{_HUB}/HuggingFaceTB/SmolLM2-360M-Instruct-GGUF/resolve/593b5a2e04c8f3e4ee880263f93e0bd2901ad47f/smollm2-360m-instruct-q8_0.gguf",
        size_bytes=386_404_992,
        sha256="48ab3034d0dd401fbc721eb1df3217902fee7dab9078992d66431f09b7750201",
        license="Apache-2.0",
    ),
    ModelFile(
        name="qwen2.5-0.5b-instruct",
        url=f"{_HUB}/Qwen/Qwen2.5-0.5B-Instruct-GGUF/resolve/9217f5db79a29953eb74d5343926648285ec7e67/qwen2.5-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_032,
        sha256="74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
        license="Apache-2.0",
    ),
    ModelFile(
        name="smollm2-1.7b-instruct",
        url=f"{_HUB}/HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF/resolve/2d4a76a30b4af41ecd395c35725ac11688d4cfe4/smollm2-1.7b-instruct-q4_k_m.gguf",
        size_bytes=1_055_609_536,
        sha256="decd2598bc2c8ed08c19adc3c8fdd461ee19ed5708679d1c54ef54a5a30d4f33",
        license="Apache-2.0",
    ),
    ModelFile(
        name="qwen2.5-1.5b-instruct",
        url=f"{_HUB}/Qwen/Qwen2.5-1.5B-Instruct-GGUF/resolve/91cad51170dc346986eccefdc2dd33a9da36ead9/qwen2.5-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_736,
        sha256="6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e",
        license="Apache-2.0",
    ),
)
"""From the smallest to the largest."""
_SUFFIX = "-instruct"


def find_model_file(name: str) -> ModelFile | None:
    """The known file of this name, in any case, with or without `-instruct` at its end."""
    wanted = name.lower()
    return next((file for file in MODEL_FILES if wanted in (file.name, file.name.removesuffix(_SUFFIX))), None)


def known_model_file(name: str) -> ModelFile:
    file = find_model_file(name)
    if file is None:
        names = ", ".join(file.name for file in MODEL_FILES)
        raise NotApplicable(f"no model {name!r} is known that could be fetched", f"there are: {names}")
    return file


class ModelFolder:
    """Where fetched models lie."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        if self._path is None:
            raise Unsupported("there is no folder for models", "set HOME or XDG_DATA_HOME")
        return self._path

    def place_of(self, file: ModelFile) -> Path:
        return self.path / file.file_name

    def has(self, file: ModelFile) -> bool:
        return self._path is not None and self.place_of(file).is_file()

    def fetched(self) -> list[ModelFile]:
        return [file for file in MODEL_FILES if self.has(file)]

    def weights(self, file: ModelFile) -> Path:
        if not self.has(file):
            advice = Action.FETCH_MODEL.of(model=file.name)
            raise Unsupported(f"the model {file.name} is not on this machine", advice)
        return self.place_of(file)


def model_folder(variable: Variable) -> ModelFolder:
    """`weft/models` in the user's data folder. Where no variable says whose that is, there are no fetched models."""
    data, home = variable("XDG_DATA_HOME") or "", variable("HOME") or ""
    if data.startswith("/"):
        return ModelFolder(Path(data) / "weft" / "models")
    return ModelFolder(Path(home) / ".local" / "share" / "weft" / "models" if home else None)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
