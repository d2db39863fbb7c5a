"""Credentials of many kinds that open nothing: put together when tests run, so that no file holds one."""

import os
import random
import string
from functools import cache
from pathlib import Path
from tempfile import gettempdir

from weft.ledger.secrets import load_scanner
from weft.ledger.secrets.scan import Kingfisher

WORDS = string.ascii_letters + string.digits
BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
CACHE = Path(gettempdir()) / f"weft-test-rules-{os.getuid()}"
"""Where users keep what can be made again. Compiling the rules takes seconds: once for all tests."""


@cache
def scanner() -> Kingfisher:
    return load_scanner(CACHE / "weft")


class Maker:
    """Makes the same credentials each time it is given the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def some(self, count: int, letters: str = WORDS) -> str:
        return "".join(self._random.choice(letters) for _ in range(count))

    def github(self) -> str:
        return "_".join(("ghp", self.some(36)))

    def pem(self, newline: str = "\n") -> str:
        lines = [self.some(64) for _ in range(12)]
        dashes, what = "-" * 5, "RSA PRIVATE " + "KEY"
        return newline.join((f"{dashes}BEGIN {what}{dashes}", *lines, f"{dashes}END {what}{dashes}"))

    def kinds(self) -> dict[str, tuple[str, str]]:
        """By rule: the words that hold a credential, and the credential."""
        secret, uri = self.some(40), self.some(16)
        made = {
            "betterleaks.github-pat": self.github(),
            "betterleaks.github-fine-grained-pat": "_".join(("github", "pat", self.some(22), self.some(59))),
            "betterleaks.slack-bot-token": "-".join(
                ("xoxb", self.some(12, string.digits), self.some(12, string.digits), self.some(24))
            ),
            "betterleaks.stripe-access-token": "_".join(("sk", "live", self.some(24))),
            "betterleaks.openai-api-key": "sk-" + "proj-" + self.some(20) + "T3Blbk" + "FJ" + self.some(20),
            "betterleaks.anthropic-api-key": "-".join(("sk", "ant", "api03", self.some(93) + "AA")),
            "betterleaks.gcp-api-key": "AI" + "za" + self.some(35),
            "betterleaks.gitlab-pat": "-".join(("glpat", self.some(20))),
            "betterleaks.huggingface-access-token": "_".join(("hf", self.some(34, string.ascii_letters))),
            "betterleaks.twilio-api-key": "S" + "K" + self.some(32, "0123456789abcdef"),
            "betterleaks.pypi-upload-token": "-".join(("pypi", "AgEIcHlwaS5v" + "cmc" + self.some(80))),
            "betterleaks.private-key": self.pem(),
            "veles.secrets/npmjsaccesstoken": "_".join(("npm", self.some(36))),
            "veles.secrets/sendgrid": ".".join(("SG", self.some(22), self.some(43))),
        }
        found = {rule: (value, value) for rule, value in made.items()}
        found["betterleaks.aws-secret-access-key"] = (f'aws_secret_access_key = "{secret}"', secret)
        found["betterleaks.generic-credential-uri"] = (f"postgres://admin:{uri}@db.acme.io:5432/x", uri)
        return found
