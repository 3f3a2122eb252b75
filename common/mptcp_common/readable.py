"""Which files a daemon's user cannot read: what a check that root runs would not find out by reading them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_TEST_SECONDS = 10


def unreadable(paths: Iterable[Path], uid: int, gid: int, groups: Sequence[int]) -> Iterator[Path]:
    """Yield those of *paths* that a process of this user, group and further groups cannot read. Only root can ask.

    The kernel itself is asked, as that user: modes of all directories, groups and access lists count. Raises OSError
    where this process may not become that user, TimeoutError where the file system does not answer.
    """
    for path in paths:
        try:
            readable = subprocess.run(
                ["/usr/bin/test", "-r", str(path.absolute())],
                user=uid,
                group=gid,
                extra_groups=groups,
                cwd="/",
                timeout=_TEST_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{path}: its file system does not answer within {_TEST_SECONDS} s") from None
        if readable != 0:
            yield path
