"""Which class a kernel belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tracelens_ext.categorize.maps import NCCL_CLASS, OTHERS_CLASS, substring_pack
from tracelens_ext.errors import RuleError
from tracelens_ext.text import encodable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Classifier(Protocol):
    """Gives each kernel a class, by its name."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """All classes but `others` in the order to show; None: those that occur, by time."""

    def classify(self, names: Sequence[str]) -> list[str]:
        """The class of each kernel; `nccl` for those of NCCL, `others` for what is left."""


class ClassMap:
    """A map from parts of kernel names to classes.

    Case does not matter; the first key in the map's order that a name contains wins; kernels of
    NCCL are `nccl` whatever the map says.

    Args:
        mapping: part of a kernel name → class. Classes are shown in lower case.
        name: what messages call the map.

    Raises:
        RuleError: a key or class is no text, a key contains another, or a class is `others`.
    """

    def __init__(self, mapping: Mapping[str, str], name: str = "class map") -> None:
        from tracelens_ext.categorize.categorizer import KernelCategorizer
        from tracelens_ext.categorize.matcher import BoundPack

        pack = substring_pack(mapping, name)
        for key, category in mapping.items():
            if category.strip().lower() == OTHERS_CLASS:
                raise RuleError(
                    f"{name}: {key!r}: the class {category!r} is that of all kernels without a"
                    " key; leave the key out, or name its class otherwise"
                )
        lower = (encodable(category).lower() for category in mapping.values())
        self._classes = tuple(c for c in dict.fromkeys(lower) if c != NCCL_CLASS)
        self._categorizer = KernelCategorizer([BoundPack(pack, "categorizer", limited=False)])

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in the map's order, in lower case."""
        return self._classes

    def classify(self, names: Sequence[str]) -> list[str]:
        """The class of each kernel."""
        return [category.lower() for category in self._categorizer.categorize(names).category]


class BuiltinClasses:
    """The categories of the built-in rule packs as classes, for those who have no map."""

    @property
    def classes(self) -> None:
        """The classes that occur."""
        return

    def classify(self, names: Sequence[str]) -> list[str]:
        """The class of each kernel."""
        from tracelens_ext.categorize import builtin_categorizer

        decisions = builtin_categorizer().categorize(names)
        return [
            NCCL_CLASS
            if NCCL_CLASS in name.lower()
            else category.lower()
            if known
            else OTHERS_CLASS
            for name, category, known in zip(
                names, decisions.category, decisions.known, strict=True
            )
        ]


def classifier_of(mapping: Mapping[str, str] | None, name: str) -> Classifier:
    """The classes of a map; without one, the built-in categories."""
    return BuiltinClasses() if mapping is None else ClassMap(mapping, name)
