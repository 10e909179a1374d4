"""What every command does with its arguments beyond what typer does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Sequence


class Command(TyperCommand):
    """A command whose options do not swallow the option that follows.

    In `report TRACE --html --output x.xlsx` the value of `--html` was forgotten; typer takes
    `--output` for it. A value that begins like an option is given as `--html=--output`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # click's, or typer's own copy of it
        """Refuse an option whose value is the name of another, then parse as usual."""
        if found := _without_value(self.get_params(ctx), args):
            ctx.fail(f"Option {found!r} requires an argument.")
        return super().parse_args(ctx, args)


def _without_value(parameters: Sequence[Any], args: Sequence[str]) -> str | None:
    """The first option that takes a value and is followed by an option or nothing, or None."""
    values: dict[str, int] = {}  # name of an option → how many values it takes
    for each in parameters:
        if each.param_type_name == "option":
            takes_none = each.is_flag or each.count
            for name in (*each.opts, *each.secondary_opts):
                values[name] = 0 if takes_none else each.nargs
    left = list(args[::-1])
    while left:
        arg = left.pop()
        if arg == "--":
            break
        name, awaited = _awaited(arg, values)
        if len(left) < awaited:
            return name
        for _ in range(awaited):
            value = left.pop()
            if value in values or value.startswith("--"):
                return name
    return None


def _awaited(arg: str, values: dict[str, int]) -> tuple[str, int]:
    """The option that the next arguments are values of, and how many of them."""
    if arg in values or arg.startswith("--"):
        return arg, values.get(arg, 0)
    if arg.startswith("-"):  # flags in one word, perhaps an option at its end: -vt
        for at, letter in enumerate(arg[1:], start=2):
            name = f"-{letter}"
            if values.get(name):
                return name, values[name] if at == len(arg) else values[name] - 1
    return arg, 0
