"""The exporters' contract, for every exporter that is registered."""

import json
from html import unescape

import weft
from weft.exchange.exporters.anthropic import Anthropic
from weft.exchange.exporters.html import Html
from weft.exchange.exporters.jsonl import JsonLines
from weft.exchange.exporters.markdown import Markdown
from weft.exchange.exporters.openai import OpenAi
from weft.exchange.exporters.port import exporter_names, load_exporter
from weft.exchange.exporters.testing import ExporterContract


class TestMarkdown(ExporterContract):
    exporter = Markdown()
    open = staticmethod(weft.open)


class TestHtml(ExporterContract):
    exporter = Html()
    open = staticmethod(weft.open)

    def words(self, data: bytes) -> str:
        return unescape(data.decode())


class TestJsonLines(ExporterContract):
    exporter = JsonLines()
    open = staticmethod(weft.open)


class TestOpenAi(ExporterContract):
    exporter = OpenAi()
    open = staticmethod(weft.open)


class TestAnthropic(ExporterContract):
    exporter = Anthropic()
    open = staticmethod(weft.open)

    def words(self, data: bytes) -> str:
        json.loads(data)
        return data.decode()


def test_every_registered_exporter_is_held_to_the_contract() -> None:
    held = {contract.exporter.form: type(contract.exporter) for contract in ExporterContract.__subclasses__()}
    assert set(exporter_names()) == set(held)
    assert {form: type(load_exporter(form)) for form in held} == held
