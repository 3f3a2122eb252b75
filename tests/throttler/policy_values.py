# SPDX-License-Identifier: GPL-2.0-or-later
"""Functions that create parts of a policy, for tests without a policy file."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from mptcp_throttler.policy.conditions import PathMatch, When
from mptcp_throttler.policy.model import Direction, Onset, Policy, Rule, Share, Throttle
from mptcp_throttler.policy.schedule import Window

T = TypeVar("T")


def a_throttle(
    rate: int,
    ceil: int | None = None,
    burst: int | None = None,
    share: Share = Share.PATH,
    onset: Onset = Onset.SOFT,
) -> Throttle:
    """Return a cap. It is not validated, and may have values that are invalid in a policy file."""
    return Throttle.model_construct(rate=rate, ceil=ceil or rate, burst=burst, share=share, landing=onset)


def _with_lists(keys: dict[str, Any]) -> dict[str, Any]:
    return {
        key: list(each) if isinstance(each, tuple | frozenset) else each
        for key, each in keys.items()
        if each is not None
    }


def a_path(name: str, **keys: Any) -> PathMatch:
    path = PathMatch.model_construct(**_with_lists(keys))
    path.__dict__["name"] = name
    return path


def a_rule(
    name: str,
    paths: Collection[str] | None = None,
    throttle: Throttle | None = None,
    *,
    direction: frozenset[Direction] = frozenset({Direction.DOWN}),
    windows: Iterable[Window] | None = None,
    exempts: bool = False,
    lift_last: bool = True,
    **when: Any,
) -> Rule:
    """Return a rule with the conditions *when*.

    *exempts*: give the rule *throttle* even if it is None (``throttle: none``).
    """
    conditions = When.model_construct(**_with_lists(when))
    if windows is not None:
        conditions.__dict__["windows"] = list(windows)
    answers: dict[str, Any] = {"throttle": throttle} if exempts or throttle is not None else {}
    path_names = None if paths is None else list(paths)
    return Rule(name=name, paths=path_names, when=conditions, direction=direction, lift_last=lift_last, **answers)


def a_policy(
    paths: Iterable[PathMatch] = (),
    rules: Iterable[Rule] = (),
    time_zone: ZoneInfo | None = None,
    dry_run: bool = False,
) -> Policy:
    zone = {} if time_zone is None else {"time_zone": time_zone}
    return Policy(version=1, paths={each.name: each for each in paths}, rules=list(rules), dry_run=dry_run, **zone)  # type: ignore[arg-type]


def replace(original: T, **changes: Any) -> T:
    """Return a copy of *original*, a section, a dataclass or a named tuple, with *changes*.

    For a rule, *changes* may also contain conditions.
    """
    if isinstance(original, tuple):
        return cast("T", cast("Any", original)._replace(**changes))
    if not isinstance(original, BaseModel):
        changed: T = dataclasses.replace(original, **changes)  # type: ignore[type-var]
        return changed
    if isinstance(original, Rule) and (
        when := {key: changes.pop(key) for key in [*changes] if key in When.model_fields}
    ):
        changes["when"] = When.model_construct(
            **{key: getattr(original.when, key) for key in original.when.model_fields_set} | _with_lists(when)
        )
    if isinstance(original, Policy) and "paths" in changes:
        changes["paths"] = {each.name: each for each in changes["paths"]}
    copy = cast("Any", original).model_copy(update=changes)
    for cached in [key for key in copy.__dict__ if isinstance(getattr(type(copy), key, None), cached_property)]:
        del copy.__dict__[cached]
    return cast("T", copy)
