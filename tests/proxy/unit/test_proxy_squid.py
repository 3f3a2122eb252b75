"""What the installed Squid says of a configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

STATEMENT = b"auth_param basic realm M\xc3\xbcller \xff"
ASK = """
import locale, sys
from pathlib import Path
from mptcp_proxy.squid import Squid
print(locale.getpreferredencoding())
print(ascii(Squid(sys.argv[1], "5.7", "proxy").parse(Path("squid.conf"), "one")))
"""


def test_what_it_repeats_is_read_as_the_file_is_whatever_the_locale(tmp_path: Path) -> None:
    """Defect: with a locale of another encoding "Müller" was not what the file has, and the start was refused."""
    program = tmp_path / "squid"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.buffer.write({STATEMENT!r})\n")
    program.chmod(0o755)
    # Latin-1 is not installed everywhere, ASCII is; Python takes UTF-8 in its place unless it is told not to.
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    argv = [sys.executable, "-c", ASK, str(program)]
    answer = subprocess.run(argv, env=environment, capture_output=True, encoding="ascii", check=True)
    encoding, said = answer.stdout.splitlines()
    assert encoding not in ("UTF-8", "utf-8")
    assert said == ascii(STATEMENT.decode("utf-8", "surrogateescape"))
