# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the counters of the preload libraries: the file, and the counters' names."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from mptcp_common.library_counters import COUNTERS, NONE, counts_of_all, read

HEADER = Path(__file__).parents[3] / "proxy/mptcp_proxy/shim/both/both.h"


def test_counters_are_read_by_name(tmp_path: Path) -> None:
    file = tmp_path / "counters"
    assert read(file) == {}
    file.write_bytes(NONE)
    assert read(file) == dict.fromkeys(COUNTERS, 0)
    file.write_bytes(b"".join(struct.pack("=Q", number) for number in range(len(COUNTERS))))
    assert list(read(file).values()) == list(range(len(COUNTERS)))
    two_files = counts_of_all({"a": file, "b": tmp_path / "none"})
    assert [(name, values) for name, (_, values) in two_files.items()] == [
        (name, {"a": number}) for number, name in enumerate(COUNTERS)
    ]
    # The file of another version of the library has another length.
    file.write_bytes(NONE[8:])
    assert read(file) == {}


def test_c_header_has_the_same_names_in_the_same_order() -> None:
    found = re.search(r"enum counter \{([^}]*)\}", HEADER.read_text())
    assert found
    # The last enumerator is the number of counters.
    assert re.findall(r"\w+", found[1].lower()) == [*COUNTERS, "counters"]
