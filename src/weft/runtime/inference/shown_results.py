"""What a model is shown of the result of a tool: shortened where it is long, and its images as images.

`for_model` shortens a result to a number of characters; each place where something was left out says how much, and how
the tool `read_result` reads on there. Images stand in a recorded result as `data:` URLs, in its list `images`. All of
it is pure: the same result gives the same words at every request, so a provider's cache of them holds.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

SHOWN_CHARACTERS = 50_000
"""Of one result, as the model sees it."""
FIRST_SHARE = 0.8
"""Of what is shown of a long text, so much is its beginning; the rest is its end."""
SHORTEST_DATA_CHARACTERS = 1000
"""A `data:` URL of fewer is left as it is."""
LEAST_CHARACTERS = 500
"""That are shown of each long text in a structured result; with less room for each, it is shown as one text."""
IMAGES = "images"
RESULT = "result"
_IMAGE_URL = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/=]+)")


class ResultImage(Struct, frozen=True):
    """An image that a tool gave."""

    media_type: str
    data: bytes


def with_images(result: Any, urls: Sequence[str]) -> Any:
    """A result with the `data:` URLs of its images, as it is recorded."""
    if not urls:
        return result
    fields = result if isinstance(result, dict) and IMAGES not in result else {RESULT: result}
    return {**fields, IMAGES: list(urls)}


def count_result_images(output: Any) -> int:
    """How many images a recorded result has: none where one of its list is no image."""
    urls = output.get(IMAGES) if isinstance(output, dict) else None
    if not isinstance(urls, list) or not all(isinstance(url, str) and _IMAGE_URL.fullmatch(url) for url in urls):
        return 0
    return len(urls)


def split_images(output: Any) -> tuple[Any, tuple[ResultImage, ...]]:
    """A recorded result without its images, and these. A list that holds something else is a part of the result."""
    if not count_result_images(output):
        return output, ()
    matches = [_IMAGE_URL.fullmatch(url) for url in output[IMAGES]]
    try:
        images = tuple(ResultImage(one[1], base64.b64decode(one[2], validate=True)) for one in matches if one)
    except binascii.Error:
        return output, ()
    rest = {name: value for name, value in output.items() if name != IMAGES}
    return rest.get(RESULT) if set(rest) == {RESULT} else rest, images


def for_model(result: Any, call: str, limit: int = SHOWN_CHARACTERS) -> Any:
    """A recordable result as the model sees it: as it is where it is short, else with marks. Its form stays where a few
    texts in it are long; else it is shown as one text of JSON. `call` is the id that the model knows the call by."""
    if isinstance(result, str):
        return _shortened(result, limit, call, "")
    whole = result_text(result)
    if len(whole) <= limit:
        return result
    places = dict(_texts(result, ""))
    others = len(whole) - sum(len(msgspec.json.encode(text).decode()) for text in places.values())
    share = _share(list(places.values()), limit - others)
    if share < LEAST_CHARACTERS:
        return _shortened(whole, limit, call, "")
    return _replaced(result, "", {at: _shortened(text, share, call, at) for at, text in places.items()})


def result_text(result: Any) -> str:
    """What `read_result` reads: a text itself, anything else as JSON."""
    return result if isinstance(result, str) else msgspec.json.format(msgspec.json.encode(result), indent=1).decode()


def _texts(value: Any, at: str) -> list[tuple[str, str]]:
    """Each text in a result, by its place as RFC 6901 writes it."""
    if isinstance(value, str):
        return [(at, value)]
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _texts(item, f"{at}/{_escaped(key)}")]
    if isinstance(value, list):
        return [pair for index, item in enumerate(value) for pair in _texts(item, f"{at}/{index}")]
    return []


def _replaced(value: Any, at: str, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return texts[at]
    if isinstance(value, dict):
        return {key: _replaced(item, f"{at}/{_escaped(key)}", texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, f"{at}/{index}", texts) for index, item in enumerate(value)]
    return value


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _share(texts: Sequence[str], room: int) -> int:
    """How many characters each text may have so that together they fit: short ones leave more to long ones."""
    sizes = sorted(len(text) for text in texts)
    for index, size in enumerate(sizes):
        rest = len(sizes) - index
        if size * rest > room:
            return room // rest
        room -= size
    return room


def _shortened(text: str, limit: int, call: str, at: str) -> str:
    if text.startswith("data:") and len(text) > max(limit, SHORTEST_DATA_CHARACTERS):
        kind = text[5:100].partition(",")[0].partition(";")[0]
        return f"[{kind or 'data'} of {len(text)} characters, left out]"
    if len(text) <= limit:
        return text
    first = int(limit * FIRST_SHARE)
    last = limit - first
    place = {"call": call, **({"at": at} if at else {}), "offset": first + 1}
    left_out = len(text) - limit
    mark = f"[{left_out} of {len(text)} characters left out; read_result {json.dumps(place)} reads on]"
    return f"{text[:first]}\n{mark}\n{text[-last:]}"
