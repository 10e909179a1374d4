"""JSON as people write it: with `//` and `/* */` comments, and commas after the last element."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tracelens_ext.categorize.maps import without_repetition
from tracelens_ext.errors import ConfigurationError

_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


def read_commented_json(path: str | os.PathLike[str]) -> object:
    """Decode a JSON file that may hold comments and trailing commas.

    Raises:
        ConfigurationError: the file cannot be read, is no JSON, or has a key twice in an object.
    """
    source = os.fspath(path)
    try:
        text = plain_json(Path(source).read_text(encoding="utf-8-sig"))
        return json.loads(text, object_pairs_hook=without_repetition)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error}); check the path"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text (byte {error.start}); save it as UTF-8"
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON: {error}"
    except RecursionError:
        problem = "is not valid JSON: it is nested too deeply"
    except ValueError as error:
        problem = str(error)
    raise ConfigurationError(f"{source}: {problem}")


def plain_json(text: str) -> str:
    """A text without comments and trailing commas; every character stays in its line and column."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(_blanked, text)
    return text


def _blanked(found: re.Match[str]) -> str:
    text = found.group()
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)
