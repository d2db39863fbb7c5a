"""Variables that a model may set for a command, and those that it may not: they change what is run.

`PYTHONPATH=src pytest` may be written in the command, where permissions and whoever approves see it as part of that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from weft.runtime.tools.calls import ToolFailure

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_BYTES = 32 * 1024
_PLAIN_LOCALES = frozenset({"C", "POSIX", "C.UTF-8", "C.utf8", "en_US.UTF-8"})
_CHANGES_WHAT_RUNS = tuple(
    """
    LD_* DYLD_* GLIBC_* MALLOC_* GCONV_PATH LOCPATH NLSPATH HOSTALIASES RES_OPTIONS TZDIR PATH HOME PWD OLDPWD USER
    LOGNAME SHELL TMPDIR ENV BASH_* SHELLOPTS BASHOPTS IFS CDPATH GLOBIGNORE FPATH ZDOTDIR PS? PROMPT_COMMAND
    INPUTRC TERMINFO* TERMCAP LANGUAGE XDG_* WEFT_* SUDO_* SYSTEMD_* DBUS_* GIT_* SSH_* HG* SVN_* GPG_* RSYNC_*
    *ASKPASS* *EDITOR VISUAL *PAGER BROWSER LESS* MAN_* *_COMMAND *_WRAPPER *_PRELOAD PYTHON* PIP_* UV_* VIRTUAL_ENV
    CONDA_* POETRY_* PYTEST_* TOX_* NOX_* PERL* RUBY* GEM_* BUNDLE_* LUA_* PHP* R_* NODE_* NPM_* YARN_* PNPM_* BUN_*
    DENO_* ELECTRON_* PUPPETEER_* PLAYWRIGHT_* CHROME_* JAVA_* _JAVA_* JDK_* CLASSPATH MAVEN_* GRADLE_* ANT_*
    DOTNET_* COR_* CORECLR_* CARGO_* RUST* GOFLAGS GOPATH GOROOT GOENV GOBIN GOPROXY GOTOOLCHAIN GOEXPERIMENT CGO_*
    MAKEFLAGS MAKEFILES MAKE_* MFLAGS GNUMAKEFLAGS CMAKE_* PKG_CONFIG* CC CXX CPP LD AR AS NM FC CFLAGS CXXFLAGS
    CPPFLAGS LDFLAGS LIBRARY_PATH CPATH *_INCLUDE_PATH GCC_* COMPILER_PATH GDB* *_PROXY SSL_* OPENSSL_* CURL_*
    WGETRC REQUESTS_* AWS_* GOOGLE_* AZURE_* DOCKER_* KUBECONFIG *_OPTIONS *_OPTS
    """.split()
)
"""Names with `*` and `?`, compared without regard to case."""


def checked_environment(variables: Mapping[str, Any]) -> dict[str, str]:
    """The variables, sorted by name. Raises ToolFailure with those that are refused."""
    refused = [name for name, value in variables.items() if not _is_taken(name, value)]
    if refused:
        raise ToolFailure(
            "environment_refused",
            f"these variables change what is run, or are none: {', '.join(sorted(refused))[:400]}",
            {"names": sorted(refused)[:100]},
        )
    if sum(len(name) + len(value.encode()) for name, value in variables.items()) > _LONGEST_BYTES:
        raise ToolFailure("too_large", f"the environment has more than {_LONGEST_BYTES} bytes")
    return dict(sorted(variables.items()))


def _is_taken(name: str, value: Any) -> bool:
    if not isinstance(value, str) or "\0" in value or not _NAME.fullmatch(name):
        return False
    if name == "LANG" or name.startswith("LC_"):
        return value in _PLAIN_LOCALES
    return not any(fnmatchcase(name.upper(), pattern) for pattern in _CHANGES_WHAT_RUNS)
