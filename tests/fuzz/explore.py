# SPDX-License-Identifier: GPL-2.0-or-later
"""Fuzzes one target with coverage guidance (atheris, which uses libFuzzer): ``explore.py TARGET SECONDS [FINDS]``.

The directory FINDS receives new inputs that reach more code, and, as ``crash-...``, inputs that make the target fail.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent


def main(name: str, seconds: str, finds: str) -> None:
    import atheris

    sys.path[:0] = [str(HERE), str(HERE.parent)]
    with atheris.instrument_imports(include=["mptcp_common", "mptcp_proxy", "mptcp_throttler", "mptcp_tunnel"]):
        from targets import TARGETS

    directory = Path(finds)
    directory.mkdir(parents=True, exist_ok=True)
    dictionary = HERE / "dictionaries" / f"{name}.dict"
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={seconds}",
            "-timeout=20",
            "-max_len=2048",
            "-print_final_stats=1",
            f"-artifact_prefix={directory}/",
            *([f"-dict={dictionary}"] if dictionary.exists() else []),
            str(directory),
            str(HERE / "corpora" / name),
        ],
        TARGETS[name],
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else f"/tmp/fuzz-{sys.argv[1]}")
