"""Removes what a killed daemon left in the kernel. Works from names alone: no memory of the daemon is needed."""

from __future__ import annotations

from .daemon import locked
from .kernel.netfilter import available_backends, open_netfilter
from .kernel.tc import HtbTrafficControl
from .settings import Settings


async def cleanup(settings: Settings) -> list[str]:
    """Remove sets, rules and tables of every backend, then put back root qdiscs; return what was done, for people.

    Raises AlreadyRunning while a daemon is at work, KernelError where the kernel refuses.
    """
    done = []
    with locked(settings.state_directory):
        for backend, missing in available_backends().items():
            if missing is None:
                _, netfilter = open_netfilter(backend, settings.ownership)
                try:
                    await netfilter.remove()
                finally:
                    netfilter.close()
                done.append(f"{backend}: nothing of ours is left")
        tc = HtbTrafficControl(settings.interfaces, settings.ownership, settings.state_directory)
        async with tc.opened():
            await tc.restore()
        done.append(f"{', '.join(settings.interfaces)}: root qdisc as before")
    return done
