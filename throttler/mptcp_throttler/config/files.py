"""Read the operator's files; ``settings``, ``policy`` and ``connections_file`` check their contents."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from mptcp_common.problems import DocumentError, Problem, Severity
from mptcp_common.yaml_document import text_of
from mptcp_throttler.config.connections_file import load_connections
from mptcp_throttler.config.settings import Settings, check_together, load_settings
from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.policy.load import check_policy
from mptcp_throttler.policy.model import Policy


def read_settings(path: Path) -> Settings:
    """Return the settings of *path*. Raises DocumentError with every problem of the file."""
    return load_settings(text_of(path), str(path))


def news_of_settings(path: Path, running: Settings) -> list[str]:
    """Return in words the changes of the settings file at *path* for which the *running* daemon needs a restart."""
    try:
        now = read_settings(path)
    except DocumentError as error:
        return [*str(error).splitlines(), f"{path} was changed, and the next start would be refused"]
    keys = [key for key in _values(now) if _values(now)[key] != _values(running)[key]]
    return [f"{path}: {', '.join(keys)} changed; restart the throttler for that"] if keys else []


def _values(settings: Settings) -> dict[str, object]:
    ownership = {each.name: getattr(settings.ownership, each.name) for each in fields(settings.ownership)}
    ours = {each.name: getattr(settings, each.name) for each in fields(settings) if each.compare}
    del ours["ownership"]
    return ours | ownership


def read_policy(path: Path, settings: Settings | None = None) -> tuple[Policy, tuple[Problem, ...]]:
    """Return the policy of *path*, checked with *settings*, and its warnings. Raises DocumentError with all errors."""
    return accept_policy(text_of(path), str(path), settings)


def accept_policy(text: str, source: str, settings: Settings | None) -> tuple[Policy, tuple[Problem, ...]]:
    """Do what :func:`read_policy` does for a *text*; *source* names it in messages."""
    checked = check_policy(text, source)
    if checked.policy is None:
        raise DocumentError(checked.problems)
    problems = checked.problems
    if settings is not None:
        problems += check_together(settings, checked.policy)
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise DocumentError(errors)
    return checked.policy, problems


def read_notes(path: Path, settings: Settings | None = None) -> tuple[Problem, ...]:
    """Return the notes of ``check`` about the policy of *path*."""
    return check_policy(text_of(path), str(path), None if settings is None else settings.interfaces).notes


def read_connections(path: Path, settings: Settings, now: float) -> list[Connection]:
    """Return the connections written in *path*. Raises DocumentError with every problem of the file."""
    return load_connections(text_of(path), str(path), settings.interfaces[0], settings.ownership.listen_ports, now)
