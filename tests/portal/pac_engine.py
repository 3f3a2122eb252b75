# SPDX-License-Identifier: GPL-2.0-or-later
"""Evaluates a proxy.pac with pacparser (Debian's libpacparser1): a JavaScript engine with Netscape's functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mptcp_lab.testbed.features import fails_when_missing

LIBRARY = "libpacparser.so.1"


@contextmanager
def pac_engine(script: str) -> Iterator[Callable[[str, str], str]]:
    """Yield a function that evaluates *script* for a URL and a host."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        if fails_when_missing():
            pytest.fail(f"needs {LIBRARY}, and CI may not skip: {error}", pytrace=False)
        pytest.skip(f"NOT TESTED, needs {LIBRARY}: apt install libpacparser1")
    library.pacparser_find_proxy.restype = ctypes.c_char_p
    # 1 means success here, contrary to the usual convention in C.
    assert library.pacparser_init() == 1
    try:
        assert library.pacparser_parse_pac_string(script.encode()) == 1

        def find(url: str, host: str) -> str:
            found = library.pacparser_find_proxy(url.encode(), host.encode())
            assert found is not None, f"the script failed for {host}"
            return str(found.decode())

        yield find
    finally:
        library.pacparser_cleanup()
