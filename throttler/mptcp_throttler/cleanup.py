"""Removes what a killed daemon left in the kernel. Works from names alone: no memory of the daemon is needed."""

from __future__ import annotations

from .daemon import locked
from .kernel.netfilter import available_backends, open_netfilter
from .kernel.ports import KernelError
from .kernel.sysctl import OwnedSysctls
from .kernel.tc import HtbTrafficControl
from .settings import Settings
from .upload import UploadLane


async def cleanup(settings: Settings) -> list[str]:
    """Remove sets, rules and tables of every backend, then put back root qdiscs; return what was done, for people.

    Raises AlreadyRunning while a daemon is at work, KernelError with all that failed, which keeps nothing else
    from being removed.
    """
    done: list[str] = []
    failures: list[str] = []
    with locked(settings.state_directory):
        for backend, missing in available_backends().items():
            if missing is None:
                _, netfilter = open_netfilter(backend, settings.ownership)
                try:
                    await netfilter.remove()
                    done.append(f"{backend}: nothing of ours is left")
                except KernelError as error:
                    failures.append(str(error))
                finally:
                    netfilter.close()
        async with UploadLane(settings, lambda _: None).opened() as upload:
            if upload.reconciler is not None:
                try:
                    await upload.reconciler.close()
                    done.append("uploads: nothing of ours is left")
                except KernelError as error:
                    failures.append(str(error))
        try:
            OwnedSysctls(settings.state_directory).restore()
        except KernelError as error:
            failures.append(str(error))
        tc = HtbTrafficControl(settings.interfaces, settings.ownership, settings.state_directory)
        async with tc.opened():
            try:
                await tc.restore()
                done.append(f"{', '.join(settings.interfaces)}: root qdisc as before")
            except KernelError as error:
                failures.append(str(error))
    if failures:
        raise KernelError("; ".join([*done, *failures]))
    return done
