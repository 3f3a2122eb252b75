# SPDX-License-Identifier: GPL-2.0-or-later
"""Frames of two real connections, captured on the proxy host: Linux 6.18 at both ends, MPTCP version 1.

A client with two interfaces opens a connection over the first interface (veth pair ``v0``) and joins it over the second
interface (``v1``). The client sends five bytes and closes the connection. ``tcpdump -s 0`` captured the frames with the
throttler's capture filter, which omits further acknowledgments and data. The constants at the end are the kernel's
values for these connections (``ip mptcp monitor`` and ``ss -tie`` on the proxy host).
"""

from __future__ import annotations

IPV4: list[tuple[float, str, bytes]] = [
    (
        0.000000,
        "v0",
        bytes.fromhex(
            "b24b217e00e83ee75e548b8a080045000040f3d24000400632490a4d00010a4d0002bebe0c38e426cb4800000000b002faf014cf"
            "0000020405b40402080a2eae5a45000000000103030a1e040101"
        ),
    ),
    (
        0.000015,
        "v0",
        bytes.fromhex(
            "3ee75e548b8ab24b217e00e808004500004800004000400626140a4d00020a4d00010c38bebed9c87a16e426cb49d012fe8814d7"
            "0000020405b40402080aa193421a2eae5a450103030a1e0c010161b8618f4f646954"
        ),
    ),
    (
        0.000032,
        "v0",
        bytes.fromhex(
            "b24b217e00e83ee75e548b8a080045000048f3d34000400632400a4d00010a4d0002bebe0c38e426cb49d9c87a17d010003f14d7"
            "00000101080a2eae5a45a193421a1e1401017e1fb05b4d38059261b8618f4f646954"
        ),
    ),
    (
        0.000092,
        "v0",
        bytes.fromhex(
            "b24b217e00e83ee75e548b8a080045000051f3d44000400632360a4d00010a4d0002bebe0c38e426cb49d9c87a17e018003f14e0"
            "00000101080a2eae5a45a193421a1e1601017e1fb05b4d38059261b8618f4f6469540005010168656c6c6f"
        ),
    ),
    (
        0.000294,
        "v1",
        bytes.fromhex(
            "7659e8d6f2492efbc168fbd5080045000048b3474000400671cc0a4d01010a4d00028c650c384ae4513700000000d002faf015d7"
            "0000020405b40402080a3f5618b0000000000103030a1e0c1105d1ecc642a3063463"
        ),
    ),
    (
        0.000301,
        "v1",
        bytes.fromhex(
            "2efbc168fbd57659e8d6f24908004500004c00004000400625100a4d00020a4d01010c388c651d10f5dc4ae45138e012fe8815db"
            "0000020405b40402080aaf3866863f5618b00103030a1e101000e73aac80c8bf0294cb10c0a4"
        ),
    ),
    (
        0.000312,
        "v1",
        bytes.fromhex(
            "7659e8d6f2492efbc168fbd508004500004cb3484000400671c70a4d01010a4d00028c650c384ae451381d10f5dde010003f15db"
            "00000101080a3f5618b0af3866861e1810009c9808bb67e1ab68f8b526119a9170612e7f56b9"
        ),
    ),
    (
        0.412834,
        "v0",
        bytes.fromhex(
            "b24b217e00e83ee75e548b8a080045000040f3d74000400632440a4d00010a4d0002bebe0c38e426cb4ed9c87a1cb011003f14cf"
            "00000101080a2eae5be2a19343b61e0c20034fd5675aa89b84e1"
        ),
    ),
    (
        0.412842,
        "v1",
        bytes.fromhex(
            "7659e8d6f2492efbc168fbd5080045000040b34a4000400671d10a4d01010a4d00028c650c384ae451381d10f5ddb011003f15cf"
            "00000101080a3f561a4daf3868221e0c20034fd5675aa89b84e1"
        ),
    ),
    (
        0.412874,
        "v0",
        bytes.fromhex(
            "3ee75e548b8ab24b217e00e8080045000040816a40004006a4b10a4d00020a4d00010c38bebed9c87a1ce426cb4fb011003f14cf"
            "00000101080aa19343b72eae5be21e0c2003e86251c9b64c2ec1"
        ),
    ),
    (
        0.412898,
        "v1",
        bytes.fromhex(
            "2efbc168fbd57659e8d6f249080045000040c6aa400040065e710a4d00020a4d01010c388c651d10f5dd4ae45139b011003f15cf"
            "00000101080aaf3868233f561a4d1e0c2003e86251c9b64c2ec1"
        ),
    ),
]
IPV6: list[tuple[float, str, bytes]] = [
    (
        0.000000,
        "v0",
        bytes.fromhex(
            "b24b217e00e83ee75e548b8a86dd600b8397002c0640fd770000000000000000000000000001fd77000000000000000000000000"
            "00028e840c386d8ed82600000000b002fd20fb240000020405a00402080a8710b41b000000000103030a1e040101"
        ),
    ),
    (
        0.000020,
        "v0",
        bytes.fromhex(
            "3ee75e548b8ab24b217e00e886dd6005b5eb00340640fd770000000000000000000000000002fd77000000000000000000000000"
            "00010c388e840a8b35a26d8ed827d012fb04fb2c0000020405a00402080acdbedf608710b41b0103030a1e0c01012d05c66addf6"
            "6898"
        ),
    ),
    (
        0.000049,
        "v0",
        bytes.fromhex(
            "b24b217e00e83ee75e548b8a86dd600b839700340640fd770000000000000000000000000001fd77000000000000000000000000"
            "00028e840c386d8ed8270a8b35a3d0100040fb2c00000101080a8710b41ccdbedf601e14010199ca23b3b1ab7cc22d05c66addf6"
            "6898"
        ),
    ),
    (
        0.000310,
        "v0",
        bytes.fromhex(
            "b24b217e00e83ee75e548b8a86dd600b8397003d0640fd770000000000000000000000000001fd77000000000000000000000000"
            "00028e840c386d8ed8270a8b35a3e0180040fb3500000101080a8710b41ccdbedf601e16010199ca23b3b1ab7cc22d05c66addf6"
            "68980005010168656c6c6f"
        ),
    ),
    (
        0.000543,
        "v1",
        bytes.fromhex(
            "7659e8d6f2492efbc168fbd586dd60002a9c00340640fd770001000000000000000000000001fd77000000000000000000000000"
            "000293570c387670278100000000d002fd20fb2d0000020405a00402080abe4a46eb000000000103030a1e0c10061643c9ed212f"
            "899e"
        ),
    ),
    (
        0.000553,
        "v1",
        bytes.fromhex(
            "2efbc168fbd57659e8d6f24986dd60018aa600380640fd770000000000000000000000000002fd77000100000000000000000000"
            "00010c3893574c46030976702782e012fb04fb310000020405a00402080af994b788be4a46eb0103030a1e101000e165815e139d"
            "50b1fbcfe61c"
        ),
    ),
    (
        0.000568,
        "v1",
        bytes.fromhex(
            "7659e8d6f2492efbc168fbd586dd60002a9c00380640fd770001000000000000000000000001fd77000000000000000000000000"
            "000293570c38767027824c46030ae0100040fb3100000101080abe4a46ebf994b7881e181000f8515cbbf59f6cb41db57150dcb8"
            "4f158ad23008"
        ),
    ),
    (
        0.414667,
        "v0",
        bytes.fromhex(
            "b24b217e00e83ee75e548b8a86dd600b8397002c0640fd770000000000000000000000000001fd77000000000000000000000000"
            "00028e840c386d8ed82c0a8b35a8b011003ffb2400000101080a8710b5bacdbee0ff1e0c2003ee31d3700a77a335"
        ),
    ),
    (
        0.414675,
        "v1",
        bytes.fromhex(
            "7659e8d6f2492efbc168fbd586dd60002a9c002c0640fd770001000000000000000000000001fd77000000000000000000000000"
            "000293570c38767027824c46030ab011003ffb2500000101080abe4a4889f994b9261e0c2003ee31d3700a77a335"
        ),
    ),
    (
        0.414748,
        "v0",
        bytes.fromhex(
            "3ee75e548b8ab24b217e00e886dd6005b5eb002c0640fd770000000000000000000000000002fd77000000000000000000000000"
            "00010c388e840a8b35a86d8ed82db011003ffb2400000101080acdbee0ff8710b5ba1e0c2003d9c86a2f70e124a2"
        ),
    ),
    (
        0.414764,
        "v1",
        bytes.fromhex(
            "2efbc168fbd57659e8d6f24986dd60018aa6002c0640fd770000000000000000000000000002fd77000100000000000000000000"
            "00010c3893574c46030a76702783b011003ffb2500000101080af994b926be4a48891e0c2003d9c86a2f70e124a2"
        ),
    ),
]
"""Each entry: seconds since the first frame, interface, frame."""

IPV4_TOKEN, IPV6_TOKEN = 0xD1ECC642, 0x1643C9ED
IPV4_KEYS = bytes.fromhex("7e1fb05b4d380592"), bytes.fromhex("61b8618f4f646954")
"""The keys of client and proxy."""
IPV4_NONCES = bytes.fromhex("a3063463"), bytes.fromhex("cb10c0a4")
IPV4_HMACS = bytes.fromhex("e73aac80c8bf0294"), bytes.fromhex("9c9808bb67e1ab68f8b526119a9170612e7f56b9")
"""The HMACs of the SYN/ACK and of the third ACK."""
IPV4_FIRST_DATA = 0xE86251C9B64C2EBB, 0x4FD5675AA89B84DB
"""Data sequence number of the first byte from the client, and of the first byte from the proxy: the IDSN plus 1."""
