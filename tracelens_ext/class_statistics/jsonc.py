"""JSON as people write it: with `//` and `/* */` comments, and commas after the last element."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tracelens_ext.errors import ConfigurationError

_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


def read_commented_json(path: str | os.PathLike[str]) -> object:
    """Decode a JSON file that may hold comments and trailing commas.

    Of a key that occurs twice in an object the last value counts, at the place of the first.

    Raises:
        ConfigurationError: the file cannot be read or is no JSON.
    """
    source = os.fspath(path)
    try:
        return json.loads(plain_json(Path(source).read_text(encoding="utf-8-sig")))
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error}); check the path"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text (byte {error.start}); save it as UTF-8"
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON: {error}"
    except ValueError:  # Python refuses integers of thousands of digits
        problem = "holds a number that is too long"
    except RecursionError:
        problem = "is not valid JSON: nested too deeply"
    except MemoryError:
        problem = "takes more memory than there is"
    raise ConfigurationError(f"{source}: {problem}")


def plain_json(text: str) -> str:
    """A text without comments and trailing commas; every character stays in its line and column."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(_blanked, text)
    return text


def _blanked(found: re.Match[str]) -> str:
    text = found.group()
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)
