"""The class of all commands: it parses options more strictly than typer, and has readable help."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from typer.core import TyperCommand

from tracelens_ext.cli.options import READING_NAMES
from tracelens_ext.cli.screen import screen_width, tell
from tracelens_ext.compatibility.renamed_names import Kind, new_names

#: Help texts are at most this many columns wide.
_WIDEST = 120
#: The only option that accepts an empty value.
_MAY_BE_EMPTY = "--title"
#: Name of a type in typer → the placeholder for its values in help texts.
_PLACEHOLDERS = {
    "int": "N",
    "int range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
    "path": "FILE",
    "file": "FILE",
    "directory": "FOLDER",
    "list[Path]": "FILE",
    "str": "NAME",
    "list[str]": "NAME",
}
#: The type of a value, as typer shows it after the name of an option.
_TYPE = re.compile(r"<([^<>]*)>")

#: Sections at the end of a help text: title → rows with a name and its meaning.
HelpSections = Mapping[str, Sequence[tuple[str, str]]]


def help_record(parameter: Any, ctx: Any) -> tuple[str, str] | None:  # noqa: ANN401  # of click, or of typer's copy
    """Return the row of a parameter in a help text, with a placeholder for its type.

    None if the parameter is hidden.
    """
    record = parameter.get_help_record(ctx)
    if not record:
        return None
    usage, description = record
    if parameter.param_type_name == "argument":
        return usage.partition(" <")[0].upper(), description
    usage = _TYPE.sub(lambda match: _PLACEHOLDERS.get(match[1], match[1]), usage)
    return usage, description


@dataclass(frozen=True)
class _OptionWord:
    """A word of the command line that may be an option."""

    name: str  #: the option, without a value that is attached to it
    values: int  #: how many of the next words are its values


class CarefulCommand(TyperCommand):
    """A command whose options do not swallow the option that follows.

    In `report TRACE --html --output x.xlsx`, the value of `--html` was forgotten, and typer would
    take `--output` as the value. A value that does begin like an option is written
    `--html=--output`.
    """

    #: returns the sections at the end of the help text; None if there are none
    help_sections: Callable[[], HelpSections] | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # of click, or of typer's copy
        """Parse the arguments, and refuse an option whose value is missing or empty.

        The value of an option is missing where another option follows. It is empty where it comes
        from a shell variable that is not set.
        """
        value_counts = self._value_counts(ctx)
        runs_program = not self.allow_interspersed_args
        if not runs_program:
            args = _with_current_names(args, ctx.info_name, value_counts)
        words = iter(args)
        for word in words:
            begins_program = runs_program and not word.startswith("-")
            if word == "--" or begins_program:
                break
            option = _option_word(word, value_counts)
            values = list(islice(words, option.values))
            if word.endswith("=") and word[:-1] in value_counts:
                option = _OptionWord(word[:-1], values=1)
                values = [""]
            _check_values(
                ctx=ctx, option=option, values=values, value_counts=value_counts
            )
        return super().parse_args(ctx, args)

    def _value_counts(self, ctx: Any) -> dict[str, int]:  # noqa: ANN401  # of click, or of typer's copy
        """Return how many values each option takes, by each of its names."""
        parameters: Iterable[Any] = self.get_params(ctx)
        counts = {}
        for parameter in parameters:
            if parameter.param_type_name != "option":
                continue
            count = parameter.nargs
            if parameter.is_flag or parameter.count:
                count = 0
            for name in parameter.opts + parameter.secondary_opts:
                counts[name] = count
        return counts

    def get_help(self, ctx: Any) -> str:  # noqa: ANN401  # of click, or of typer's copy
        """Return the help text, as wide as the terminal."""
        ctx.terminal_width = min(screen_width(), _WIDEST) - 2
        return super().get_help(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401  # of click, or of typer's copy
        """Return the parts of the usage line without braces, which would carry no information."""
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"[{}]", "", piece).upper() for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # of click, or of typer's copy
        """Write the arguments, the options, and only the names of the options for reading."""
        arguments = []
        options = []
        reading_options = []
        for parameter in self.get_params(ctx):
            record = help_record(parameter, ctx)
            if record is None:
                continue
            if parameter.name in READING_NAMES:
                reading_options.append(record)
            elif parameter.param_type_name == "argument":
                arguments.append(record)
            else:
                options.append(record)
        for title, records in (("Arguments", arguments), ("Options", options)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if reading_options:
            title = "Options for reading traces (described in 'tracelens-ext --help')"
            with formatter.section(title):
                names = ", ".join(name for name, _ in reading_options)
                formatter.write(_indented(names, formatter))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # of click, or of typer's copy
        """Write the sections that only this command has, then its examples."""
        if self.help_sections is not None:
            for title, rows in self.help_sections().items():
                with formatter.section(title):
                    formatter.write_dl(rows)
        super().format_epilog(ctx, formatter)


def _indented(names: str, formatter: Any) -> str:  # noqa: ANN401  # of a private module of typer
    """Return names of options as indented lines that break only between names."""
    indent = " " * formatter.current_indent
    lines = textwrap.fill(
        names,
        formatter.width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return f"{lines}\n"


def _with_current_names(
    words: Sequence[str], command: str, current_options: Collection[str]
) -> list[str]:
    """Replace earlier names of options by the current ones, with a warning for each.

    Args:
        words: the arguments of the command.
        command: the name of the command.
        current_options: the options that the command has.
    """
    new_of_old = new_names(Kind.OPTION, command)
    new_words: list[str] = []
    for position, word in enumerate(words):
        if word == "--":
            new_words.extend(words[position:])
            break
        option, equals, value = word.partition("=")
        new = new_of_old.get(option)
        is_current = new is None or option in current_options
        if is_current or new not in current_options:
            new_words.append(word)
            continue
        tell(f"{option} is now {new}; the old name will be removed in the next release")
        new_words.append(f"{new}{equals}{value}")
    return new_words


def _option_word(word: str, value_counts: Mapping[str, int]) -> _OptionWord:
    """Return the option in a word that takes values; the whole word if there is no such option.

    In `-vt`, the option is `-t` if that takes a value; in `-t5`, the value is attached.
    """
    is_flags_in_one_word = word not in value_counts and re.match("-[^-]", word)
    if not is_flags_in_one_word:
        return _OptionWord(word, value_counts.get(word, 0))
    for position, letter in enumerate(word[1:], start=2):
        count = value_counts.get(f"-{letter}", 0)
        if count:
            value_is_attached = position < len(word)
            return _OptionWord(name=f"-{letter}", values=count - value_is_attached)
    return _OptionWord(word, 0)


def _check_values(
    ctx: Any,  # noqa: ANN401  # of click, or of typer's copy
    option: _OptionWord,
    values: Sequence[str],
    value_counts: Mapping[str, int],
) -> None:
    """Refuse values that are missing or empty, or that are options themselves."""
    is_an_option = [value in value_counts or value.startswith("--") for value in values]
    if len(values) < option.values or any(is_an_option):
        ctx.fail(f"Option {option.name!r} requires an argument.")
    if "" in values and option.name != _MAY_BE_EMPTY:
        ctx.fail(
            f"Option {option.name!r} has an empty value; give a value, or leave out "
            "the option."
        )
