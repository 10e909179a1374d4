"""Shorten names to a width so that different names never look alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os.path import commonprefix

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.lazy import pd

LABEL_WIDTH = 60  # width of a kernel's short name in a table, in characters
_CONTEXT = 12  # number of characters that are shown before a difference


def cut_middle(text: str, width: int, mark: str = "…") -> str:
    """Shorten a text by cutting out its middle, because its end tells as much as its start.

    Args:
        text: the text, without control characters.
        width: the most terminal cells of the result; a wide character takes two.
        mark: the text that stands for what was cut.
    """
    if cells_of(text) <= width:
        return text
    room = width - len(mark)
    if room <= 0:
        return mark[:width]
    tail_width = room // 3
    head = _head(text, room - tail_width)
    reversed_tail = _head(text[::-1], tail_width)
    return head + mark + reversed_tail[::-1]


def told_apart(texts: Sequence[str], width: int, mark: str = "…") -> list[str]:
    """Shorten texts as `cut_middle` does, but so that different texts stay different.

    Texts that would look alike show the part in which they differ. If there is not enough room for
    that, they end in a number.
    """
    labels = {text: cut_middle(text, width, mark) for text in texts}
    groups_to_tell_apart = _alike(labels, labels)
    while groups_to_tell_apart:
        group = groups_to_tell_apart.pop()
        differ_at = len(commonprefix(group))  # noqa: RUF071  # texts, not paths
        for text in group:
            labels[text] = _with_difference(
                text=text, differ_at=differ_at, width=width, mark=mark
            )
        for still_alike in _alike(labels, group):
            if len(still_alike) < len(group):
                groups_to_tell_apart.append(still_alike)
    for group in _alike(labels, labels):
        for number, text in enumerate(group, 1):
            suffix = f"#{number}"
            room = max(width - len(suffix), 0)
            labels[text] = cut_middle(text, room, mark) + suffix
    return [labels[text] for text in texts]


def kernel_labels(names: Sequence[str], width: int = LABEL_WIDTH) -> list[str]:
    """Return the short names of kernels; different kernels get different short names."""
    short_names = {name: short_name(name) for name in names}
    # Kernels with the same short name differ in namespaces or parameters, so use their full names.
    for group in _alike(short_names, short_names):
        for name in group:
            short_names[name] = name.removeprefix("void ")
    return told_apart([short_names[name] for name in names], width)


def with_short_names(table: pd.DataFrame, column: str = "kernel_name") -> pd.DataFrame:
    """Return a table whose first column has short names of kernels, and the last the full names."""
    result = table.drop(columns=column)
    result.insert(0, "kernel", kernel_labels(table[column].tolist()))
    return result.assign(**{column: table[column]})


def _alike(labels: dict[str, str], texts: Iterable[str]) -> list[list[str]]:
    """Return the groups of two or more texts that have the same label."""
    texts_of_label: dict[str, list[str]] = {}
    for text in texts:
        texts_of_label.setdefault(labels[text], []).append(text)
    return [group for group in texts_of_label.values() if len(group) > 1]


def _with_difference(text: str, differ_at: int, width: int, mark: str) -> str:
    """Return the start of a text, and the part where it begins to differ from other texts."""
    if differ_at < width - len(mark):
        return cut_end(text, width, mark)
    room = width - 2 * len(mark)
    head_width = room // 2
    context = min(_CONTEXT, room // 4)
    start = max(differ_at - context, head_width)
    tail_width = width - head_width - len(mark)
    return _head(text, head_width) + mark + cut_end(text[start:], tail_width, mark)


def cut_end(text: str, width: int, mark: str = "…") -> str:
    """Shorten a text by cutting off its end."""
    if cells_of(text) <= width:
        return text
    return _head(text, max(width - len(mark), 0)) + mark


def _head(text: str, width: int) -> str:
    """Return the start of a text that fits a width."""
    head = text[: max(width, 0)]
    while head and cells_of(head) > width:
        head = head[:-1]
    return head


def cells_of(text: str) -> int:
    """Return the number of terminal cells of a text without control characters."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
