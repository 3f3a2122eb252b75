"""Instructions of eBPF, and their assembler. Documentation/bpf/instruction-set of the kernel.

Our programs are some hundred instructions, so they are assembled here: a compiler for BPF would weigh more than all
else that is installed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

_INSTRUCTION = struct.Struct("<BBhi")
INSTRUCTION_BYTES = _INSTRUCTION.size


class Register(IntEnum):
    """R0 holds results, R1 to R5 arguments, R6 to R9 survive calls, R10 is the frame."""

    R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; a jump names its label."""

    code: int
    destination: int = 0
    source: int = 0
    offset: int = 0
    immediate: int = 0
    label: str | None = None

    @property
    def slots(self) -> int:
        """64-bit words that it takes: two with a 64-bit immediate."""
        return 2 if self.code == _LOAD_IMMEDIATE_64 else 1


_LOAD_IMMEDIATE_64 = 0x18
_FROM_MAP = 1
"""Source of a 64-bit immediate that is the descriptor of a map."""


def copy(destination: Register, source: Register) -> Instruction:
    return Instruction(0xBF, destination, source)


def number(destination: Register, value: int) -> Instruction:
    return Instruction(0xB7, destination, immediate=value)


def number_64(destination: Register, value: int) -> Instruction:
    return Instruction(_LOAD_IMMEDIATE_64, destination, immediate=value)


def map_address(destination: Register, descriptor: int) -> Instruction:
    return Instruction(_LOAD_IMMEDIATE_64, destination, _FROM_MAP, immediate=descriptor)


def add(destination: Register, value: int) -> Instruction:
    return Instruction(0x07, destination, immediate=value)


def add_register(destination: Register, source: Register) -> Instruction:
    return Instruction(0x0F, destination, source)


def bits_or(destination: Register, value: int) -> Instruction:
    return Instruction(0x47, destination, immediate=value)


def load_32(destination: Register, source: Register, offset: int) -> Instruction:
    return Instruction(0x61, destination, source, offset)


def load_8(destination: Register, source: Register, offset: int) -> Instruction:
    return Instruction(0x71, destination, source, offset)


def load_64(destination: Register, source: Register, offset: int) -> Instruction:
    return Instruction(0x79, destination, source, offset)


def store_32(destination: Register, offset: int, source: Register) -> Instruction:
    return Instruction(0x63, destination, source, offset)


def store_64(destination: Register, offset: int, source: Register) -> Instruction:
    return Instruction(0x7B, destination, source, offset)


def call(function: int) -> Instruction:
    return Instruction(0x85, immediate=function)


def jump(label: str) -> Instruction:
    return Instruction(0x05, label=label)


def jump_if(register: Register, value: int, label: str) -> Instruction:
    return Instruction(0x15, register, immediate=value, label=label)


def jump_unless(register: Register, value: int, label: str) -> Instruction:
    return Instruction(0x55, register, immediate=value, label=label)


def jump_unless_same(register: Register, other: Register, label: str) -> Instruction:
    return Instruction(0x5D, register, other, label=label)


def jump_unless_less(register: Register, other: Register, label: str) -> Instruction:
    """Jump unless *register* is below *other*, both without sign."""
    return Instruction(0x3D, register, other, label=label)


def leave() -> Instruction:
    return Instruction(0x95)


def assemble(lines: Iterable[Instruction | str]) -> bytes:
    """Return the machine code of *lines*; a string is a label for what follows. Raises KeyError for an unknown one."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    position = 0
    for line in lines:
        if isinstance(line, str):
            labels[line] = position
        else:
            code.append(line)
            position += line.slots
    return b"".join(_encoded(code, labels))


def _encoded(code: Iterable[Instruction], labels: dict[str, int]) -> Iterator[bytes]:
    position = 0
    for each in code:
        position += each.slots
        offset = each.offset if each.label is None else labels[each.label] - position
        low = each.immediate & 0xFFFFFFFF
        signed = low - (1 << 32) if low >> 31 else low
        yield _INSTRUCTION.pack(each.code, each.source << 4 | each.destination, offset, signed)
        if each.slots == 2:
            high = each.immediate >> 32 & 0xFFFFFFFF
            yield _INSTRUCTION.pack(0, 0, 0, high - (1 << 32) if high >> 31 else high)
