"""The commands that ask the running daemon: status."""

from __future__ import annotations

import argparse
import json
import sys

from mptcp_common.exit_status import DONE, FAILED, USAGE
from mptcp_throttler.cli.common import complain, no_answer, status_socket


def status(options: argparse.Namespace) -> int:
    if options.brief and not options.json:
        complain("--brief is for --json")
        return USAGE
    from mptcp_throttler.views.ask import ask_head, ask_text

    path = options.socket or status_socket(options)
    try:
        if options.brief:
            print(json.dumps(ask_head(path)))
            return DONE
        text = ask_text(path)
    except OSError as error:
        complain(no_answer(path, error))
        return FAILED
    if options.json:
        # As it came: laying out ten thousand connections takes longer than all else.
        sys.stdout.buffer.write(text + b"\n")
    else:
        from mptcp_throttler.views.status_table import print_status

        print_status(json.loads(text))
    return DONE
