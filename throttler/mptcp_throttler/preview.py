"""What ``plan`` prints: verdicts with their reasons, then the kernel objects that they need, as commands. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .mptcp.model import Connection
from .policy.evaluate import evaluate
from .policy.model import Direction, Policy
from .settings import Settings
from .shaping import words
from .shaping.plan import Planner, gso_limit


def preview(settings: Settings, policy: Policy, connections: Iterable[Connection], now: float) -> Iterator[str]:
    """Yield the lines: comments start with '#', the rest could be typed into a shell."""
    planner, upload = (Planner(settings.ownership, direction) for direction in Direction)
    for each in (planner, upload):
        each.set_policy(policy)
    for connection in connections:
        verdicts = evaluate(policy, connection, now)
        for each in (planner, upload):
            each.set_verdicts(connection.token, verdicts, now)
        yield f"# connection {connection.token:08x}"
        for verdict in verdicts:
            yield f"#   {verdict.four_tuple}  path {verdict.path or 'none'}: {verdict.reason}"
    for each in (planner, upload):
        each.prepare_path_classes(now)
    if policy.dry_run:
        yield "# dry run: nothing would be done to the kernel"
        return
    classes, entries, ownership = planner.classes.desired, planner.entries.desired, settings.ownership
    if settings.gso_max_size != "keep":
        wanted = settings.gso_max_size
        size = gso_limit(policy, 65536) if wanted == "auto" else int(wanted)
        for interface in settings.interfaces:
            yield f"ip link set dev {interface} gso_max_size {size}"
    yield from words.traffic_control(settings.interfaces, classes, ownership)
    if settings.netfilter == "nftables":
        yield from (f"nft '{command}'" for command in words.NftTable.download(ownership).commands(entries))
    else:
        yield from words.iptables(entries, ownership)
    if policy.acts_on_upload:
        yield from words.upload_device(upload.classes.desired, ownership)
        table = words.NftTable.upload(ownership, settings.interfaces)
        yield from (f"nft '{command}'" for command in table.commands(upload.entries.desired))
