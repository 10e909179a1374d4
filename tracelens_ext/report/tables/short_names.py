"""Shorten names to a width so that different names never look alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os.path import commonprefix

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.lazy import pd

KERNEL_NAME_WIDTH = 60  # width of a kernel's short name in a table, terminal cells
_CONTEXT = 12  # most characters that are shown before a difference


def cut_middle(text: str, width: int, mark: str = "…") -> str:
    """Shorten a text by cutting out its middle, because its end tells as much as its start.

    Args:
        text: the text, without control characters.
        width: the most terminal cells of the result; a wide character takes two.
        mark: the text that stands for what was cut.
    """
    if cell_count(text) <= width:
        return text
    width_of_text = width - len(mark)
    if width_of_text <= 0:
        return mark[:width]
    end_width = width_of_text // 3
    start = _start_of_width(text, width_of_text - end_width)
    reversed_end = _start_of_width(text[::-1], end_width)
    return start + mark + reversed_end[::-1]


def distinct_short_texts(
    texts: Sequence[str], width: int, mark: str = "…"
) -> list[str]:
    """Shorten texts as `cut_middle` does, but so that different texts stay different.

    Texts that would look the same show the part in which they differ. If the width is too small
    for that part, the texts end in a number.

    Args:
        texts: the texts, without control characters.
        width: the most terminal cells of a result; a number that is wider is not cut.
        mark: the text that stands for what was cut.
    """
    shortened = {text: cut_middle(text, width, mark) for text in texts}
    unresolved_groups = _groups_that_look_the_same(shortened, texts=shortened)
    while unresolved_groups:
        group = unresolved_groups.pop()
        differ_at = len(commonprefix(group))  # noqa: RUF071  # texts, not paths
        for text in group:
            shortened[text] = _with_difference(
                text=text, differ_at=differ_at, width=width, mark=mark
            )
        # Only smaller groups go back on the list, so that the loop ends. The texts of a group that
        # did not become smaller get numbers below.
        for smaller_group in _groups_that_look_the_same(shortened, texts=group):
            if len(smaller_group) < len(group):
                unresolved_groups.append(smaller_group)
    for group in _groups_that_look_the_same(shortened, texts=shortened):
        for number, text in enumerate(group, 1):
            suffix = f"#{number}"
            width_before_suffix = max(width - cell_count(suffix), 0)
            shortened[text] = cut_middle(text, width_before_suffix, mark) + suffix
    return [shortened[text] for text in texts]


def distinct_kernel_names(
    names: Sequence[str], width: int = KERNEL_NAME_WIDTH
) -> list[str]:
    """Return the short names of kernels; different kernels get different short names."""
    short_names = {name: short_name(name) for name in names}
    # Kernels with the same short name differ in namespaces or parameters, so use their full names.
    for group in _groups_that_look_the_same(short_names, texts=short_names):
        for name in group:
            short_names[name] = name.removeprefix("void ")
    return distinct_short_texts([short_names[name] for name in names], width)


def with_short_names(table: pd.DataFrame, column: str = "kernel_name") -> pd.DataFrame:
    """Return a table whose first column has short names of kernels, and the last the full names."""
    result = table.drop(columns=column)
    result.insert(0, "kernel", distinct_kernel_names(table[column].tolist()))
    return result.assign(**{column: table[column]})


def _groups_that_look_the_same(
    shortened: dict[str, str], texts: Iterable[str]
) -> list[list[str]]:
    """Return the groups of two or more of the texts that were shortened to the same text.

    `shortened` has the shortened text of each text.
    """
    texts_by_look: dict[str, list[str]] = {}
    for text in texts:
        texts_by_look.setdefault(shortened[text], []).append(text)
    return [group for group in texts_by_look.values() if len(group) > 1]


def _with_difference(text: str, differ_at: int, width: int, mark: str) -> str:
    """Return the start of a text, and the part where it begins to differ from other texts.

    Args:
        text: the text.
        differ_at: the position at which the text begins to differ from the other texts.
        width: the most terminal cells of the result.
        mark: the text that stands for what was cut.
    """
    if differ_at < width - len(mark):
        return cut_end(text, width, mark)
    width_of_text = width - 2 * len(mark)
    start_width = width_of_text // 2
    context = min(_CONTEXT, width_of_text // 4)
    shown_from = max(differ_at - context, start_width)
    start = _start_of_width(text, start_width)
    difference_width = width - start_width - len(mark)
    return start + mark + cut_end(text[shown_from:], difference_width, mark)


def cut_end(text: str, width: int, mark: str = "…") -> str:
    """Shorten a text by cutting off its end."""
    if cell_count(text) <= width:
        return text
    return _start_of_width(text, max(width - len(mark), 0)) + mark


def _start_of_width(text: str, width: int) -> str:
    """Return a start of a text that fits a number of terminal cells."""
    # Nearly every character takes one or two cells, so more characters than cells do not fit.
    start = text[: max(width, 0)]
    while start and cell_count(start) > width:
        start = start[:-1]
    return start


def cell_count(text: str) -> int:
    """Return the number of terminal cells of a text without control characters."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
