"""Tables as plugins declared their answers before: with an argument for each field of the view.

    Table(..., answer="Top kernels", answer_columns=["kernel"])

is now

    Table(..., answer=AnswerView("Top kernels", columns=["kernel"]))
"""

from __future__ import annotations

import functools
from typing import Any, Final, TypeVar

from tracelens_ext.compatibility.earlier_arguments import warn_of_old_name
from tracelens_ext.report.tables.views import AnswerView

_Class = TypeVar("_Class")

#: Earlier argument of `Table` → the field of `AnswerView` that it is now.
_FIELD_OF_ARGUMENT: Final = {
    "answer_when": "condition",
    "answer_if_empty": "title_if_empty",
    "answer_columns": "columns",
    "answer_rows": "choose_rows",
    "answer_links": "link_column",
}


def takes_earlier_answer(table_class: type[_Class]) -> type[_Class]:
    """Let a class of tables also be made with the earlier arguments about its answer."""
    make = table_class.__init__

    @functools.wraps(make)
    def make_with_earlier_answer(self: _Class, *args: Any, **given: Any) -> None:  # noqa: ANN401
        make(self, *args, **_with_answer_view(given))

    table_class.__init__ = make_with_earlier_answer  # type: ignore[assignment]  # same signature
    return table_class


def _with_answer_view(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a table with its earlier answer, if it has one, as a view."""
    title = given.get("answer", "")
    has_earlier_arguments = not _FIELD_OF_ARGUMENT.keys().isdisjoint(given)
    if not isinstance(title, str) or not (title or has_earlier_arguments):
        return given
    arguments = {}
    fields_of_view = {}
    for name, value in given.items():
        if name in _FIELD_OF_ARGUMENT:
            fields_of_view[_FIELD_OF_ARGUMENT[name]] = value
        elif name != "answer":
            arguments[name] = value
    # The line that declares the table calls `keeps_old_names`, that the function above, that this.
    warn_of_old_name("the answer of a Table as text", "an AnswerView", stacklevel=4)
    arguments["answer"] = AnswerView(title, **fields_of_view)
    return arguments
