"""The assembler of BPF: words as the kernel's instruction set has them."""

from __future__ import annotations

import pytest

from mptcp_throttler.kernel.bpf_code import Register, assemble, call, jump, jump_if, leave, load_32, number, number_64
from mptcp_throttler.kernel.sockets.pacing import UNLIMITED, _value
from mptcp_throttler.kernel.sockets.sock_ops import Calls, program
from mptcp_throttler.shaping.model import SocketLimit

R = Register
MOST = 8 << 20


def test_instructions() -> None:
    code = assemble([load_32(R.R7, R.R6, 68), number(R.R0, -1), call(46), leave()])
    assert code.hex(" ", 8) == "6167440000000000 b7000000ffffffff 850000002e000000 9500000000000000"


def test_a_64_bit_number_takes_two_words_and_jumps_count_them() -> None:
    code = assemble([jump_if(R.R1, 5, "end"), number_64(R.R2, 0xFEDCBA9876543210), "end", leave()])
    words = [code[start : start + 8].hex() for start in range(0, len(code), 8)]
    assert words == ["1501020005000000", "1802000010325476", "0000000098badcfe", "9500000000000000"]


def test_a_jump_to_nowhere() -> None:
    with pytest.raises(KeyError):
        assemble([jump("nowhere")])


def test_every_listening_port_is_asked_for() -> None:
    code = assemble(program(Calls(8, 12), [], 0x1234, [3128, 8080]))
    for port in (3128, 8080):
        assert port.to_bytes(4, "little") in code


def test_what_the_map_has_for_a_socket() -> None:
    assert _value(SocketLimit(), MOST) == (UNLIMITED, 0, 0)
    assert _value(SocketLimit(8_000_000, 1000, 2 << 20), MOST) == (1_000_000, 1000, 1 << 20)
    assert _value(SocketLimit(send_buffer=16 << 20), MOST)[2] == MOST // 2
    assert _value(SocketLimit(send_buffer=1 << 20), 2 * 212_992)[2] == 0, "too little to help"
