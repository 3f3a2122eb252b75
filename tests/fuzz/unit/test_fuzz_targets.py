# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that runs each fuzz target on its corpus and on damaged inputs."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from examples import examples
from targets import TARGETS

HERE = Path(__file__).parents[1]
DAMAGED = {
    "options": examples(120_000),
    "packets": examples(4_000),
    "policy": examples(1_200),
    "squid_configuration": examples(400),
    "tunnel_messages": examples(4_000),
}
"""Number of damaged inputs for each target. They take about three seconds per target."""
MAX_BYTES = 2048
SEED = 8684


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((HERE / "corpora" / name).iterdir())]


def words(name: str) -> list[bytes]:
    """Return the words of the target's dictionary, which is a libFuzzer dictionary."""
    path = HERE / "dictionaries" / f"{name}.dict"
    text = path.read_text() if path.exists() else ""
    return [each.encode().decode("unicode_escape").encode("latin-1") for each in re.findall(r'^"(.*)"$', text, re.M)]


def damage(rng: random.Random, seeds: list[bytes], dictionary_words: list[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 1] = rng.randbytes(1)
            case 2:
                del data[at : at + rng.randrange(1, 12)]
            case 3:
                data[at:at] = rng.choice(dictionary_words) if dictionary_words else rng.randbytes(4)
            case 4:
                other = rng.choice(seeds)
                begin = rng.randrange(len(other) + 1)
                data[at:at] = other[begin : begin + rng.randrange(1, 200)]
            case _:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
    return bytes(data[:MAX_BYTES])


@pytest.mark.parametrize("name", TARGETS)
def test_target_handles_corpus_and_damaged_inputs(name: str) -> None:
    rng, seeds, dictionary_words = random.Random(SEED), corpus(name), words(name)
    assert len(seeds) > 5
    for data in seeds:
        TARGETS[name](data)
    for _ in range(DAMAGED[name]):
        data = damage(rng, seeds, dictionary_words)
        try:
            TARGETS[name](data)
        except Exception as error:
            error.add_note(f"input: {data!r}")
            raise
