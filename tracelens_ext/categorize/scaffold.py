"""Writing the skeleton of a plugin: an installable distribution, with its test."""

from __future__ import annotations

import keyword
import os
import re
from pathlib import Path
from typing import Final

from tracelens_ext.errors import OutputError, UsageError

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_.][A-Za-z0-9]+)*")
#: The files, by their paths.
_FILES: Final = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=69"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "Kernel categories for tracelens-ext"
requires-python = ">=3.11"
dependencies = ["tracelens-ext"]

[project.optional-dependencies]
test = ["pytest"]

# This line makes it a plugin: tracelens-ext loads every entry point of this group.
[project.entry-points.tracelens_ext]
{name} = "{module}"

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
{module} = ["*.toml"]
""",
    "README.md": """\
# {name}

Kernel categories for tracelens-ext.

```console
$ pip install -e '.[test]'      # install it where tracelens-ext is installed
$ pytest                        # the rules take their examples
$ tracelens-ext plugins         # it is listed
$ tracelens-ext explain 'void my_company::fused_bias_gelu<float>(float*)'
```

Edit `src/{module}/rules.toml`; `tracelens-ext rules check` tells what is wrong with it.
""",
    "src/{module}/__init__.py": '''\
"""Kernel categories for tracelens-ext."""

from __future__ import annotations

from pathlib import Path

from tracelens_ext import hookimpl


@hookimpl
def tracelens_rule_packs() -> list[Path]:
    """The rules of this plugin."""
    return [Path(__file__).with_name("rules.toml")]
''',
    "src/{module}/rules.toml": """\
# One [[rule]] a kind of kernel. `pattern` is a regular expression that is searched in the kernel
# name; the first rule that matches wins, before all built-in rules.

[pack]
name = "{name}"

[[rule]]
category = "My Fused Op"
pattern = 'my_company::fused_'
vendor = "nvidia"
library = "my_company"
examples = [
    'void my_company::fused_bias_gelu<float>(float*)',
]
not_examples = [
    'void my_company::copy<float>(float*)',
]
""",
    "tests/test_rules.py": '''\
"""The rules do what they say, alone and in a run."""

from __future__ import annotations

from pathlib import Path

import {module}
from tracelens_ext import categorize_kernels
from tracelens_ext.categorize import check_pack, load_pack


def test_every_rule_takes_its_examples_and_leaves_its_not_examples() -> None:
    pack = load_pack(Path({module}.__file__).with_name("rules.toml"))
    assert check_pack(pack) == []


def test_installed_plugin_is_found() -> None:
    answer = categorize_kernels(["void my_company::fused_bias_gelu<float>(float*)"])
    assert answer["kernel_category"].tolist() == ["My Fused Op"]
''',
}


def write_plugin(name: str, parent: str | os.PathLike[str] = ".") -> list[Path]:
    """Write the skeleton of a plugin distribution below a folder; the files written."""
    module = re.sub(r"[-.]", "_", name).lower()
    if not _NAME.fullmatch(name) or keyword.iskeyword(module) or module == "tracelens_ext":
        raise UsageError(
            f"{name!r} cannot be the name of a plugin; use letters, digits and '-', starting with "
            "a letter, such as my-company-kernels"
        )
    folder = Path(parent) / name
    texts = {
        folder / path.format(module=module): text.format(name=name, module=module)
        for path, text in _FILES.items()
    }
    try:
        folder.mkdir(parents=True)
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise OutputError(f"{folder} exists already; choose another name or folder") from None
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror or error}") from None
    return [*texts]
