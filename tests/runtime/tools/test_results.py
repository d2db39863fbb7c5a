"""Results are recorded whole and shown shortened; each place that was cut can be read on."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from msgspec import UNSET

from tests.runtime.tools.conftest import CONTEXT, call
from weft.kernel.contents import dumps
from weft.runtime.inference.model_requests import for_model, result_text
from weft.runtime.tool.recorded_results import ReadResultTool, recordable
from weft.runtime.tool.tool_contract import ToolCallContext, ToolFailure

MARK = re.compile(r"\n\[(\d+) of (\d+) characters left out; read_result (\{.*\}) reads on\]\n")


def reader(results: dict[str, Any]) -> ReadResultTool:
    async def recorded(context: ToolCallContext, call: str) -> Any:
        assert context == CONTEXT
        return results.get(call, UNSET)

    return ReadResultTool(recorded)


def read_whole(result: Any, shown: str) -> str:
    """A text put together from what is shown and from what its mark says how to read."""
    mark = MARK.search(shown)
    assert mark is not None
    text, place = str(shown[: mark.start()]), json.loads(mark[3])
    while True:
        output = call(reader({"c1": result}), **{**place, "offset": len(text) + 1, "limit": 30_000}).result
        assert output["offset"] == len(text) + 1
        text += str(output["text"])
        if "more" not in output:
            assert int(mark[2]) == len(text) == output["characters"]
            return text


def test_a_short_result_is_shown_as_it_is() -> None:
    for result in ("text", {"rc": 0, "stdout": "x"}, [1, 2], None, True, 1.5, ""):
        assert for_model(result, "c1") == result


@pytest.mark.parametrize("text", ["abc" * 5000, "naïve 𝄞\n" * 2000])
def test_a_long_text_says_what_was_left_out_and_is_read_on(text: str) -> None:
    shown = for_model(text, "c1", 1000)
    assert len(shown) < 1200
    assert shown.startswith(text[:800])
    assert shown.endswith(text[-200:])
    assert read_whole(text, shown) == text


def test_a_structured_result_keeps_its_form_and_each_long_text_is_read_on_by_itself() -> None:
    result = {"rc": 1, "stdout": "o" * 5000, "stderr": "e" * 90, "more/~": ["x" * 7000]}
    shown = for_model(result, "c1", 3000)
    assert len(result_text(shown)) < 4000
    assert (shown["rc"], shown["stderr"]) == (1, "e" * 90)
    assert read_whole(result, shown["stdout"]) == result["stdout"]
    assert read_whole(result, shown["more/~"][0]) == "x" * 7000


@pytest.mark.parametrize(
    "result",
    [
        list(range(20_000)),
        {str(key): key for key in range(20_000)},
        [["x"] * 3] * 5000,
        ["ab"] * 30_000,
        ["x" * 400] * 90,
    ],
)
def test_a_result_of_many_small_values_is_shown_as_one_text(result: Any) -> None:
    shown = for_model(result, "c1", 2000)
    assert isinstance(shown, str)
    assert len(shown) < 2300
    assert json.loads(read_whole(result, shown)) == result


def test_an_image_in_a_result_is_left_out_with_its_size() -> None:
    url = "data:image/png;base64," + "A" * 90_000
    assert for_model({"image": url}, "c1") == {"image": f"[image/png of {len(url)} characters, left out]"}


def test_whatever_a_tool_gave_can_be_recorded() -> None:
    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    values = {
        "bytes": b"caf\xe9", "surrogate": "a\ud800b", 1: {2}, "large": 2**70, "nan": float("nan"),
        "deep": deep, "other": object, "tuple": (b"x",), "error": ValueError("\udcff"),
    }  # fmt: skip
    result = recordable(values)
    dumps(result)
    assert (result["bytes"], result["surrogate"], result["large"]) == ("caf\\xe9", "a\\ud800b", str(2**70))
    assert (result["1"], result["tuple"], result["nan"], result["error"]) == ([2], ["x"], "nan", "\\udcff")


@pytest.mark.parametrize(
    "arguments",
    [
        {"call": "c2"},
        {"call": "c1", "at": "/none"},
        {"call": "c1", "at": "stdout"},
        {"call": "c1", "at": "/list/-1"},
        {"call": "c1", "at": "/list/99999999999999999999"},
        {"call": "c1", "at": "/list/٣"},
        {"call": "c1", "offset": 10**9},
        {"call": "c1", "offset": 0},
        {"call": "../c1"},
        {"call": ""},
        {},
    ],
)
def test_what_is_not_there_is_told(arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolFailure) as failure:
        asyncio.run(reader({"c1": {"list": [1]}}).invoke(arguments, CONTEXT))
    assert failure.value.code in ("not_found", "invalid_arguments")
