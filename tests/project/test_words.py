"""Names and prose are in plain standard English: words whose meaning a reader has to guess stand in quotes alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SEARCHED = (
    "bench", "common", "conf", "console", "debian", "docs", "portal", "proxy", "systemd", "tests", "throttler",
    "README.md", "SECURITY.md", "pyproject.toml", "run",
)  # fmt: skip
PASSED_OVER = {"__pycache__", "corpora", "locks", "vendor", "results"}
"""Directories of what others wrote, or programs: results have the claims of the paper."""
BINARY = {".gz", ".ico", ".pcap", ".png", ".pyc"}
UNWANTED = re.compile(r"(?<![a-z])(ill|telling|mend(s|ed|ing)?|holding|remain(s|ed|ing)?)(?![a-z])", re.IGNORECASE)
ALLOWED = {
    "Wi-Fi remains almost fully underutilized": "the paper",
    "outperforms legacy TCP over the better remaining path": "the paper",
    "bytes-remaining": "a key of RFC 8908",
    "remains running": "a message of systemd",
    "holding the xtables lock": "a message of iptables",
    "TimeRemainingColumn": "a class of rich",
}
"""What is quoted, and from where."""


def files() -> Iterator[Path]:
    for each in SEARCHED:
        path = REPOSITORY / each
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            within = file.relative_to(REPOSITORY).parts
            if (
                file.is_file()
                and file.suffix not in BINARY
                and PASSED_OVER.isdisjoint(within)
                and file != Path(__file__)
            ):
                yield file


def unwanted(text: str) -> list[str]:
    """Return the words of *text* that are not wanted and not quoted, those too that are a part of a name."""
    for quoted in ALLOWED:
        text = re.sub(r"\s+".join(map(re.escape, quoted.split())), "", text)
    return [found[0] for found in UNWANTED.finditer(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text))]


def test_no_file_has_a_word_that_is_not_wanted() -> None:
    texts = {file: file.read_text(errors="replace") for file in files()}
    found = {str(file.relative_to(REPOSITORY)): words for file, text in texts.items() if (words := unwanted(text))}
    assert found == {}
    # What is nowhere quoted need not be allowed.
    everything = " ".join(" ".join(text.split()) for text in texts.values())
    assert [quoted for quoted in ALLOWED if quoted not in everything] == []


@pytest.mark.parametrize(
    "text", ["def _telling():", "What remains", "ill_paths", "HoldingTime", "is mended", "TELLING"]
)
def test_unwanted_words_are_found(text: str) -> None:
    assert unwanted(text)


@pytest.mark.parametrize(
    "text", ["I'll", "hold", "will", "still", "amended", "bytes-remaining", "remainder", "upholding"]
)
def test_other_words_are_not(text: str) -> None:
    assert unwanted(text) == []
