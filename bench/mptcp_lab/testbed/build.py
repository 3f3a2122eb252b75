# SPDX-License-Identifier: GPL-2.0-or-later
"""Build a topology in network namespaces, and remove it in every case.

Deleting a namespace deletes its devices, addresses, routes, qdiscs and sysctls. So a testbed is removed namespace by
namespace, the last one first, after the processes in the namespace have ended.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import groupby
from pathlib import Path
from typing import Self

from ..agent.processes import end_of
from . import congestion, hops
from .commands import TestbedError, run, undo_after, undone
from .host import ClientPath, Lab
from .model import Topology
from .node import LiveNode
from .ownership import Run, claimed_run, delete_namespace
from .plan import Step, steps

PATH_NAMES = {"eth0": "ethernet", "wlan0": "wifi"}
"""Names of the paths over the client's devices, as in conf/policy.yaml."""


class Testbed(AbstractContextManager["Testbed"]):
    """A built topology: ``with Testbed(TWO_PATHS) as testbed: testbed["client"].run([...])``."""

    __test__ = False  # pytest would take the name for a test class
    claimed: Run
    """The run that owns the namespaces."""
    directory: Path
    """A temporary directory, which is removed with the testbed."""
    scope: ExitStack
    """Callbacks that are added here run before the namespaces are deleted."""

    def __init__(self, topology: Topology, *, seed: int = 1) -> None:
        """Prepare the testbed. *seed* is the seed of the emulated paths."""
        self.topology = topology
        self.emulation = hops.Emulation(seed)
        self.scope = ExitStack()
        self._nodes: dict[str, LiveNode] = {}

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException as error:
            undo_after(error, self.scope.close)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with undone(lambda: undo_after(error, self.scope.close)):
            if error is None:
                self.check_emulation()

    def _build(self) -> None:
        topology = self.topology
        self.claimed = self.scope.enter_context(claimed_run())
        self.directory = self.claimed.directory
        namespaces = {node.name: self.claimed.namespace(node.name) for node in topology.nodes}
        for namespace in namespaces.values():
            # Register the deletion first, so that a signal cannot leave a namespace that was just created.
            self.scope.callback(delete_namespace, namespace)
            run(["ip", "netns", "add", namespace], attempt=f"create namespace {namespace}")
        congestion.select("cubic", namespaces.values())
        for node, node_steps in groupby(steps(topology, namespaces), key=lambda step: step.node):
            _run_steps(tuple(node_steps), namespaces[node], f"build {topology.name}")
        for name, namespace in namespaces.items():
            self._nodes[name] = LiveNode(topology, name, namespace, self.directory, self.scope)
        self.emulation.start(topology, self._nodes, self.directory)

    def check_emulation(self) -> None:
        """Raise EmulationError if a path was not as configured. A testbed's end without an error checks this, too."""
        self.emulation.check()

    def __getitem__(self, name: str) -> LiveNode:
        return self._nodes[name]


def _run_steps(steps: Sequence[Step], namespace: str, attempt: str) -> None:
    """Run the *steps* of one node in *namespace*, in one shell. TestbedError names the step that failed."""
    lines = (f"{shlex.join(step.argv)} || {{ code=$?; echo {n}; exit $code; }}" for n, step in enumerate(steps))
    done = run(["ip", "netns", "exec", namespace, "sh", "-c", "\n".join(lines)], attempt=attempt, check=False)
    if done.returncode != 0:
        *output, number = done.stdout.splitlines() or [""]
        # A killed shell prints no number.
        failed = steps[int(number)] if number.isdigit() else "its shell"
        raise TestbedError(f"{attempt}: {failed}: exit code {done.returncode}{end_of(*output, done.stderr)}")


def lab_of(testbed: Testbed) -> Lab:
    """Return client, proxy and origin of *testbed*, with paths named as in conf/policy.yaml."""
    topology = testbed.topology
    devices = topology.devices("client")
    names = PATH_NAMES | {hop.client_device: hop.path.name for hop in topology.hops}
    return Lab(
        client=testbed["client"],
        proxy=testbed["proxy"],
        origin=testbed["origin"],
        paths=tuple(ClientPath(names.get(device, device), device) for device in devices),
        proxy_devices=topology.devices("proxy"),
    )
