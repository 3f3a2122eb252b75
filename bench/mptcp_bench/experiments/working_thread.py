# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread that works beside a measurement, during a ``with`` statement."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Self

from mptcp_lab.testbed import LiveNode


class WorkingThread:
    """Run :meth:`work` in its own thread, in the namespace of *node* if given.

    When the ``with`` statement ends, it raises the error of the work, unless it has itself failed.
    """

    def __init__(self, name: str, node: LiveNode | None = None) -> None:
        self._node = node
        self._error: Exception | None = None
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            with self._node.entered() if self._node is not None else nullcontext():
                self.work()
        except Exception as error:
            self._error = error

    def work(self) -> None:
        """Work until :attr:`stop` is set."""
        raise NotImplementedError
