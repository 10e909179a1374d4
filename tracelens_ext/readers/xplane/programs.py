"""Looks up the operands of operations, and their source lines, in the programs of a profile.

The plane `/host:metadata` of a profile has an `HloProto` for each compiled program: its
instructions with their shapes, after fusion. Programs are decoded only when they are needed.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final, NamedTuple

from tracelens_ext.readers.xplane.hlo import (
    instructions_of,
    operands_of,
    results_of,
    windows_of,
)
from tracelens_ext.readers.xplane.messages import Message, message_class
from tracelens_ext.trace import PROGRAM_SHIFT

#: Label of a program: its name and its id.
_LABEL: Final = re.compile(r"(.*)\((\d{1,18})\)$", re.DOTALL)
_DAMAGED_PROGRAMS_NAMED: Final = 3


class Arguments(NamedTuple):
    """The arguments of an operation. The first three are JSON lists, as in traces of PyTorch."""

    dims: bytes  #: the sizes of each operand
    types: bytes  #: the element type of each operand
    #: Texts `name=value`: `opcode`; `target` of a library call; `result`; `stride`, `padding` and
    #: `dilation` of a window; `source`, the file and line that the instruction comes from.
    concrete: bytes
    instruction: int  #: identifies the instruction, as in `Trace.instructions`


class _EncodedProgram(NamedTuple):
    """A program that is not decoded yet."""

    label: str
    content: bytes


class Programs:
    """The programs of a profile; each is decoded when it is first needed.

    Attributes:
        used: the encoded programs that were needed, as in `Trace.programs`.
    """

    def __init__(self) -> None:
        self.used: list[bytes] = []
        self._by_id: dict[int, _EncodedProgram] = {}
        self._ids_by_name: dict[str, set[int]] = {}
        self._damaged: list[str] = []
        self._decode = cache(self._decode_program)

    def add(self, label: str, content: bytes) -> None:
        """Add a program.

        Args:
            label: its name and id, such as `jit_f(15)`; older profiles have the name only.
            content: the encoded `HloProto`.
        """
        name = label
        program_id = -2 - len(self._by_id)  # a substitute that no event refers to
        name_and_id = _LABEL.match(label)
        if name_and_id:
            name = name_and_id[1]
            program_id = int(name_and_id[2])
        self._by_id[program_id] = _EncodedProgram(label, content)
        self._ids_by_name.setdefault(name, set()).add(program_id)

    def arguments(
        self, program_id: int, module: str, operation: str
    ) -> Arguments | None:
        """Return the arguments of an operation; None if they are unknown.

        Args:
            program_id: the id of its program. If no program has this id, the program is found by
                its name, provided that only one program has that name.
            module: the name of the program.
            operation: the name of the instruction.
        """
        if program_id not in self._by_id:
            ids_of_module = self._ids_by_name.get(module, set())
            if len(ids_of_module) != 1:
                return None
            (program_id,) = ids_of_module
        decoded = self._decode(program_id)
        if decoded is None:
            return None
        return decoded.arguments(operation)

    def notes(self) -> list[str]:
        """Return a sentence about the programs that could not be decoded, if there are any."""
        if not self._damaged:
            return []
        names = ", ".join(self._damaged[:_DAMAGED_PROGRAMS_NAMED])
        if len(self._damaged) > _DAMAGED_PROGRAMS_NAMED:
            names += " …"
        return [
            f"The HLO of {names} is damaged, so their operations have no arguments."
        ]

    def _decode_program(self, program_id: int) -> _Program | None:
        """Return a decoded program; None if it is damaged, which `notes` will report."""
        from google.protobuf.message import DecodeError

        program = self._by_id[program_id]
        try:
            module = message_class("HloProto").FromString(program.content).hlo_module
        except DecodeError:
            self._damaged.append(program.label)
            return None
        self.used.append(program.content)
        return _Program(module, index=len(self.used) - 1)


class _Program:
    """A decoded program.

    Args:
        module: the decoded `HloModule`.
        index: the index of the program in `Trace.programs`.
    """

    def __init__(self, module: Message, index: int) -> None:
        self._index = index
        self._frames = module.stack_frames
        self._instructions = instructions_of(module)
        self._index_of_name: dict[bytes, int] = {}
        self._instruction_by_id: dict[int, Message] = {}
        for instruction_index, instruction in enumerate(self._instructions):
            self._index_of_name[instruction.name] = instruction_index
            self._instruction_by_id[instruction.id] = instruction
        self.arguments = cache(self._find_arguments)

    def _find_arguments(self, operation: str) -> Arguments | None:
        """Return the arguments of an operation; None if no instruction has its name."""
        encoded_name = operation.encode("utf-8", "replace")
        instruction_index = self._index_of_name.get(encoded_name)
        if instruction_index is None:
            return None
        instruction = self._instructions[instruction_index]
        operands = operands_of(instruction, self._instruction_by_id)
        return Arguments(
            dims=_json([array.dims for array in operands]),
            types=_json([array.kind for array in operands]),
            concrete=_json(self._description(instruction)),
            instruction=self._index << PROGRAM_SHIFT | instruction_index,
        )

    def _description(self, instruction: Message) -> list[str]:
        """Return the texts of `Arguments.concrete`."""
        texts = [f"opcode={_text(instruction.opcode)}"]
        target = _text(instruction.custom_call_target)
        if target:
            texts.append(f"target={target}")
        texts += [f"result={array}" for array in results_of(instruction)]
        for name, sizes in windows_of(instruction).items():
            shown_sizes = "x".join(map(str, sizes))
            texts.append(f"{name}={shown_sizes}")
        source = self._source(instruction.metadata)
        if source:
            texts.append(f"source={source}")
        return texts

    def _source(self, metadata: Message) -> str:
        """Return `FILE:LINE` of an instruction, given its metadata; empty if it is unknown.

        Newer profiles have a stack of frames instead of a file; then the innermost frame counts.
        """
        if metadata.source_file:
            return f"{_text(metadata.source_file)}:{metadata.source_line}"
        frames = self._frames
        frame = _numbered_item(frames.stack_frames, metadata.stack_frame_id)
        if not frame:
            return ""
        location = _numbered_item(frames.file_locations, frame.file_location_id)
        if location is None:
            return ""
        file = _numbered_item(frames.file_names, location.file_name_id)
        if not file:
            return ""
        return f"{_text(file)}:{location.line}"


def _json(items: list[Any]) -> bytes:
    return json.dumps(items).encode()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _numbered_item(items: Message, number: int) -> Message | None:
    """Return an item by its number, which counts from 1; None if no item has this number."""
    if 0 < number <= len(items):
        return items[number - 1]
    return None
