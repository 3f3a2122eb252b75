# SPDX-License-Identifier: GPL-2.0-or-later
"""The behaviours of middleboxes, with the names used in ``native/middlebox/behaviours.c``.

The behaviours are from Hesmans et al., "Are TCP Extensions Middlebox-proof?", HotMiddlebox 2013, Table 1 and 4.2. Two
behaviours are added: they duplicate and reorder segments.
"""

from __future__ import annotations

BEHAVIOURS = {
    "nothing": "passes everything on, by the same way as the others",
    "nat": "another source address and port",
    "remove-syn": "MPTCP options removed from SYNs",
    "remove-data": "MPTCP options removed from segments with data",
    "nop-syn": "MPTCP options of SYNs replaced by NOPs",
    "nop-data": "MPTCP options of segments with data replaced by NOPs",
    "sequence": "sequence numbers rewritten",
    "split-both": "segments split, options on both parts",
    "split-first": "segments split, options on the first part",
    "split-second": "segments split, options on the second part",
    "split-second-later": "only the second segment with data split, options on its second part",
    "coalesce": "two segments become one, with the options of the first",
    "alg-longer": "an address in the payload is translated, and becomes longer",
    "alg-shorter": "an address in the payload is translated, and becomes shorter",
    "duplicate": "every segment comes twice",
    "reorder": "one of ten segments is overtaken by three",
}
SHORT_ADDRESS, LONG_ADDRESS = "10,77,1,2,", "192,168,100,200,"
"""Addresses in the payload. The ALGs translate one into the other."""
COALESCED_MTU = 3200
"""MTU in bytes that a path needs towards the receiver, so that two full segments can be combined to one segment."""
