"""Classes of kernels, and collectives of NCCL, by kernel name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.categorize.maps import NCCL_CLASS, OTHERS_CLASS, substring_pack
from tracelens_ext.errors import RuleError
from tracelens_ext.text import encodable


class Classifier:
    """Gives each kernel a class by its name.

    Kernels of NCCL have the class `nccl`, and kernels without any other class have `others`.

    Args:
        mapping: part of a kernel name → class. Case does not matter. If a name contains several
            keys, the first one counts. Without a mapping, the built-in categories are the classes.
        name: the name of the mapping, for messages.

    Attributes:
        classes: the classes of the mapping in its order, without `others` and `nccl`; None without
            a mapping.
    """

    def __init__(
        self, mapping: Mapping[str, str] | None, name: str = "class map"
    ) -> None:
        from tracelens_ext.categorize import KernelCategorizer, builtin_categorizer
        from tracelens_ext.categorize.matcher import BoundPack

        self.classes: tuple[str, ...] | None = None
        if mapping is None:
            self._categorizer = builtin_categorizer()
            return
        pack = substring_pack(mapping, name)
        for key, category in mapping.items():
            if category.strip().lower() == OTHERS_CLASS:
                raise RuleError(
                    f"{name}: {key!r}: the class {category!r} is reserved for kernels "
                    "without a key; leave the key out, or rename its class"
                )
        classes = dict.fromkeys(
            encodable(category).lower() for category in mapping.values()
        )
        self.classes = tuple(
            kernel_class for kernel_class in classes if kernel_class != NCCL_CLASS
        )
        self._categorizer = KernelCategorizer(
            [BoundPack(pack, "categorizer", limited=False)]
        )

    def classify(self, names: Sequence[str]) -> list[str]:
        """Return the class of each of the kernel names."""
        decisions = self._categorizer.categorize(names)
        classes = [category.lower() for category in decisions.category]
        if self.classes is not None:
            return classes
        for index, name in enumerate(names):
            if NCCL_CLASS in name.lower():
                classes[index] = NCCL_CLASS
            elif not decisions.known[index]:
                classes[index] = OTHERS_CLASS
        return classes


#: Names of NCCL's kernels; the group is the collective. `ncclKernel_AllReduce_…` is of newer
#: versions, `ncclAllReduceRingLLKernel_…` of older ones.
_COLLECTIVE_PATTERNS = (
    r"nccl(?:Symk?)?(?:Dev)?Kernel_([A-Z][A-Za-z]*)",
    r"nccl([A-Z][A-Za-z]*?)(?:Ring|Tree|CollNet)?(?:LL128|LL|Simple)?Kernel(?![A-Za-z])",
)


def collective_of(name: str) -> str:
    """Return the collective of a kernel, such as `AllGather`, or the kernel's short name."""
    for pattern in _COLLECTIVE_PATTERNS:
        match = re.search(pattern, name)
        if match is not None:
            return match[1]
    return short_name(name)
