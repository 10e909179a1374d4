"""Stores the schemas of PyTorch's operations, so that scripts can be written without PyTorch.

`python -m tracelens_ext.reproduce.store_schemas`, in an environment with PyTorch, writes the file
that `schemas.py` reads: PyTorch's version, then a line for each overload of each `aten::` operation
that the dispatcher knows. Results and aliases, which only PyTorch needs, are left out.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tracelens_ext.reproduce.schemas import SCHEMA_FILE

if TYPE_CHECKING:
    from torch import FunctionSchema

_NAMESPACE: Final = "aten::"
#: The alias of an argument, which tells the memory that it shares: `(a!)`, `(a -> *)`.
_ALIAS: Final = re.compile(r"\([a-z|]*!?( -> [^)]*)?\)(?=[\[? ])")


def main() -> None:
    """Write the file."""
    import torch

    lines = sorted(_lines(torch._C._jit_get_all_schemas()))
    lines.insert(0, f"# PyTorch {torch.__version__.partition('+')[0]}")
    text = "\n".join(lines) + "\n"
    # Without a time stamp, the same schemas always give the same bytes.
    SCHEMA_FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _lines(schemas: list[FunctionSchema]) -> Iterator[str]:
    """Yield `mm(Tensor self, Tensor mat2)` for each operation that kernels are registered for."""
    import torch

    dispatched = set(torch._C._dispatch_get_all_op_names())
    for schema in schemas:
        full_name = schema.name
        if schema.overload_name:
            full_name += f".{schema.overload_name}"
        if schema.name.startswith(_NAMESPACE) and full_name in dispatched:
            arguments, _, _ = str(schema).rpartition(" -> ")
            yield _ALIAS.sub("", arguments).removeprefix(_NAMESPACE)


if __name__ == "__main__":
    main()
