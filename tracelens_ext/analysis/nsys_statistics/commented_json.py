"""JSON with comments and trailing commas."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tracelens_ext.categorize.maps import without_repetition
from tracelens_ext.errors import ConfigurationError

_STRING = r'"(?:[^"\\]|\\.)*"'
#: Matches a string or a comment, so that `//` within a string is not taken for a comment.
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
#: Matches a string, or a comma before a closing bracket.
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


def read_commented_json(path: str | os.PathLike[str]) -> object:
    """Decode a JSON file that may contain comments and trailing commas.

    Raises:
        ConfigurationError: the file cannot be read or decoded.
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
    except KeyError as error:
        problem = str(error.args[0])
    except ValueError:  # Python refuses integers of thousands of digits
        problem = "contains a number that is too long"
    except RecursionError:
        problem = "is not valid JSON: it is nested too deeply"
    except MemoryError:
        problem = "needs more memory than is available"
    raise ConfigurationError(f"{source}: {problem}")


def plain_json(text: str) -> str:
    """Replace comments and trailing commas by spaces.

    All other characters keep their line and column, so that errors name the right place.
    """
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(_blanked_unless_string, text)
    return text


def _blanked_unless_string(match: re.Match[str]) -> str:
    if match[0].startswith('"'):
        return match[0]
    return re.sub(r"[^\n]", " ", match[0])
