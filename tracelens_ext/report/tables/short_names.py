"""Names cut to a width, so that different names never look alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os.path import commonprefix

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.lazy import pd

LABEL_WIDTH = 60  # characters of a kernel's short name in a table
_WORD_BEFORE = 12  # characters before a difference that help to read it


def cut_middle(text: str, width: int, mark: str = "…") -> str:
    """Cut a text without control characters in its middle, as its end tells as much as its start.

    `width`: cells of the terminal that it may take; a wide character takes two.
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
    """Cut texts as `cut_middle` does; where different ones would look alike, show the difference.

    Those that no difference tells apart in so little room end in a number.
    """
    labels = {text: cut_middle(text, width, mark) for text in texts}
    open_groups = _alike(labels, labels)
    while open_groups:
        group = open_groups.pop()
        differ_at = len(commonprefix(group))  # noqa: RUF071  # of texts, not of paths
        for text in group:
            labels[text] = _with_difference(
                text=text, differ_at=differ_at, width=width, mark=mark
            )
        for still_alike in _alike(labels, group):
            if len(still_alike) < len(group):
                open_groups.append(still_alike)
    for group in _alike(labels, labels):
        for number, text in enumerate(group, 1):
            suffix = f"#{number}"
            room = max(width - len(suffix), 0)
            labels[text] = cut_middle(text, room, mark) + suffix
    return [labels[text] for text in texts]


def kernel_labels(names: Sequence[str], width: int = LABEL_WIDTH) -> list[str]:
    """Return short names of kernels, a text each; different kernels get different ones."""
    short_names = {name: short_name(name) for name in names}
    # namespaces or parameters tell these apart
    for group in _alike(short_names, short_names):
        for name in group:
            short_names[name] = name.removeprefix("void ")
    return told_apart([short_names[name] for name in names], width)


def with_short_names(table: pd.DataFrame, column: str = "kernel_name") -> pd.DataFrame:
    """A table that begins with the short names of its kernels, `kernel`, and ends with the full."""
    others = table.drop(columns=column)
    others.insert(0, "kernel", kernel_labels(table[column].tolist()))
    return others.assign(**{column: table[column]})


def _alike(labels: dict[str, str], texts: Iterable[str]) -> list[list[str]]:
    """Return the groups of several texts that have one label."""
    texts_of_label: dict[str, list[str]] = {}
    for text in texts:
        texts_of_label.setdefault(labels[text], []).append(text)
    return [group for group in texts_of_label.values() if len(group) > 1]


def _with_difference(text: str, differ_at: int, width: int, mark: str) -> str:
    """The beginning of a text, and what stands where it begins to differ from others."""
    if differ_at < width - len(mark):
        return cut_end(text, width, mark)
    room = width - 2 * len(mark)
    head_width = room // 2
    words_before = min(_WORD_BEFORE, room // 4)
    start = max(differ_at - words_before, head_width)
    tail_width = width - head_width - len(mark)
    return _head(text, head_width) + mark + cut_end(text[start:], tail_width, mark)


def cut_end(text: str, width: int, mark: str = "…") -> str:
    """Cut the end of a text."""
    if cells_of(text) <= width:
        return text
    return _head(text, max(width - len(mark), 0)) + mark


def _head(text: str, width: int) -> str:
    head = text[: max(width, 0)]
    while head and cells_of(head) > width:
        head = head[:-1]
    return head


def cells_of(text: str) -> int:
    """How many cells of a terminal a text without control characters takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
