"""Answers about programs, vectors and the command line itself."""

from __future__ import annotations

from msgspec import Struct


class EmbeddedNodes(Struct, frozen=True, kw_only=True):
    """`embed --all`: how many nodes of a kind have a vector now."""

    embedded: int
    kind: str


class ForgottenVectors(Struct, frozen=True, kw_only=True):
    """`embed --forget`: how many vectors were taken away."""

    forgotten: int


class FetchableModel(Struct, frozen=True, kw_only=True):
    """`model get`: a model that can be fetched, and where it lies on this machine, if it does."""

    name: str
    url: str
    size_bytes: int
    sha256: str
    license: str
    path: str | None


class ShellScript(Struct, frozen=True, kw_only=True):
    """`completion`: what a shell runs to complete commands."""

    shell: str
    script: str


class HelpText(Struct, frozen=True, kw_only=True):
    """`help`: the text of a topic or a command."""

    topic: str | None
    text: str


class ProgramVersion(Struct, frozen=True, kw_only=True):
    """`--version`: the program's version, and the version of these forms."""

    version: str
    wire_version: int
