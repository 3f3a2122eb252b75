# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for lists in files: Squid gets the checked content, and messages contain the operator's file names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mptcp_proxy import installation
from mptcp_proxy.configuration.check import CheckedConfiguration, check
from mptcp_proxy.configuration.lists import CopiedConfiguration, copy_lists, space_problems
from mptcp_proxy.configuration.source import PhysicalLine, all_statements
from mptcp_proxy.places import Places
from mptcp_proxy.squid import Squid

OWN_ADDRESSES = "/run/n/own-addresses"
COPIES = Path("/run/n/lists")


def lines(*texts: str) -> list[PhysicalLine]:
    return [PhysicalLine("squid.conf", number, text) for number, text in enumerate(texts, 1)]


def copy_lists_of(*texts: str) -> CopiedConfiguration:
    return copy_lists(lines(*texts), "n", COPIES, (OWN_ADDRESSES,))


def texts(found: CopiedConfiguration) -> list[str]:
    return [line.text for line in found.lines]


@dataclass(frozen=True)
class Space:
    """Free space of a file system, as os.statvfs() returns it."""

    f_bavail: int
    f_frsize: int = 1


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    path = tmp_path / "our-clients.txt"
    path.write_text("10.0.0.0/8\n")
    return path


def test_names_of_files_are_replaced_by_those_of_copies(clients: Path) -> None:
    found = copy_lists_of(
        f'acl a src "{clients}" 192.168.0.0/16 # "{clients}"',
        f"acl b src '{clients}'",
        f'acl own dst -n "{OWN_ADDRESSES}"',
        'acl own dst "/run/${service_name}/own-addresses"',
        f'request_header_add X "{clients}" a',
    )
    (list_copy,) = found.lists
    assert (list_copy.name, list_copy.content) == (str(clients), b"10.0.0.0/8\n")
    assert list_copy.copy.parent == COPIES
    assert list_copy.copy.name.endswith("-our-clients.txt")
    new_texts = texts(found)
    assert new_texts[0].startswith(f'acl a src "{list_copy.copy}" 192.168.0.0/16 #')
    assert new_texts[1] == f'acl b src "{list_copy.copy}"'
    assert new_texts[2:] == [
        f'acl own dst -n "{OWN_ADDRESSES}"',
        'acl own dst "/run/${service_name}/own-addresses"',
        f'request_header_add X "{clients}" a',
    ]
    assert found.problems == ()


def test_name_on_several_lines_is_replaced_and_an_unused_name_is_not(clients: Path) -> None:
    first_part, last_part = str(clients)[:5], str(clients)[5:]
    found = copy_lists_of(
        "acl a \\", f'   src "{first_part}\\', f'{last_part}"', "if false", f'acl b src "{clients}"', "endif"
    )
    (list_copy,) = found.lists
    assert texts(found) == ["", "", f'acl a src "{list_copy.copy}"', "if false", f'acl b src "{clients}"', "endif"]


def test_long_statement_with_a_list_is_accepted(clients: Path) -> None:
    """Defect: Squid reads a statement of any length, but the check refused this statement as a line that is too
    long."""
    values = [f"10.{second}.{third}.0/24" for second in range(4) for third in range(256)]
    found = copy_lists_of("acl a src \\", *(f"{value} \\" for value in values), f'"{clients}"', "via on")
    assert found.problems == ()
    assert len(found.lines) == len(values) + 3
    assert max(map(len, texts(found))) <= 8190
    joined, other = (each.text for each in all_statements(found.lines, "n"))
    assert joined == f'acl a src {" ".join(values)} "{found.lists[0].copy}"'
    assert other == "via on"


def test_each_name_and_each_content_has_its_own_copy(clients: Path) -> None:
    other = clients.with_name("other")
    other.write_bytes(clients.read_bytes())
    before = copy_lists_of(f'acl a src "{clients}" "{other}"').lists
    assert len({each.copy for each in before}) == 2
    clients.write_text("0.0.0.0/1\n")
    after = copy_lists_of(f'acl a src "{clients}" "{other}"').lists
    assert [old.copy == new.copy for old, new in zip(before, after, strict=True)] == [False, True]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("configuration_includes_quoted_values on", "differently from this check (allowed: off)"),
        ("configuration_includes_quoted_values ${process_number}", "differently from this check (allowed: off)"),
        ('http_access allow "/etc/names"', "names of lists from a file are not checked"),
        ("cache deny '/etc/names'", "names of lists from a file are not checked"),
        ("no_cache deny '/etc/names'", "names of lists from a file are not checked"),
        ('http_access2 allow "/etc/names"', "names of lists from a file are not checked"),
        ('acl a any-of "/etc/names"', "names of lists from a file are not checked"),
        ('follow_x_forwarded_for allow "/etc/names"', "names of lists from a file are not checked"),
        # Defect: the next list, for example of clients, got the second line of this file instead of its own values.
        ('acl a random "/etc/values"', "one value for random, and takes the rest of the file as values of the next"),
        ('acl a max_user_ip -s "/etc/values"', "one value for max_user_ip, and takes the rest of the file"),
        ("acl a connections_encrypted '/etc/values'", "one value for connections_encrypted, and takes the rest of"),
        ('note key parameters("/etc/values")', "the file of parameters(...) is not checked"),
        ('auth_param basic realm=parameters("/etc/values")', "the file of parameters(...) is not checked"),
        ('acl a src "/etc/half', "write the file's name in quotation marks, without blanks"),
        ('acl a src "/etc/two words"', "write the file's name in quotation marks, without blanks"),
        ('acl a url_regex "/etc/a\\ b"', "write the file's name in quotation marks, without blanks"),
    ],
)
def test_file_that_squid_would_read_unchecked_is_refused(text: str, reason: str) -> None:
    (problem, *_) = copy_lists_of(text).problems
    assert reason in str(problem)
    assert not problem.warning


@pytest.mark.parametrize(
    "text",
    [
        "configuration_includes_quoted_values off",
        'request_header_access User-Agent deny all # "x"',
        "acl a url_regex parameters\\(",
        'logformat x "%>a"',
    ],
)
def test_statement_that_reads_no_file_is_unchanged(text: str) -> None:
    found = copy_lists_of(text)
    assert (texts(found), found.lists, found.problems) == ([text], (), ())


def test_missing_list_never_becomes_active_later(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    found = copy_lists_of(f'acl a src "{missing}"', "if ${process_number} = 1", f'acl b src "{missing}"', "endif")
    (list_copy,) = found.lists
    assert list_copy.content is None
    assert not [text for text in texts(found) if str(missing) in text]
    # Squid itself reports the first statement.
    (problem,) = found.problems
    assert str(problem).startswith(f'squid.conf:3: acl b src "{missing}": {missing} cannot be read')


def test_list_that_is_not_a_regular_file_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (problem,) = copy_lists_of(f'acl a src "{pipe}"').problems
    assert f"{pipe}: not a regular file" in str(problem)
    assert copy_lists_of('acl a src "/dev/null"').lists[0].content == b""


@dataclass(frozen=True, slots=True)
class PrintingSquid(Squid):
    """A fake Squid that prints the content of each ACL's list."""

    def parse(self, configuration: Path, service_name: str, is_cancelled: Callable[[], bool] = bool) -> str:
        output = []
        for line in configuration.read_text().splitlines():
            output.append(f"2026/11/24 05:00:00| Processing: {line}")
            for word in line.split()[3:]:
                if word.startswith('"') and "own-addresses" not in word:
                    content = Path(word.strip('"')).read_text().strip()
                    output.append(f"2026/11/24 05:00:00| ERROR: {word}: it has {content}")
        return "\n".join(output)


def problems_about(checked: CheckedConfiguration, words: str) -> Sequence[str]:
    return [str(problem) for problem in checked.problems if words in problem.text]


def test_problem_names_the_original_file_and_not_the_copy(tmp_path: Path, clients: Path) -> None:
    file = tmp_path / "squid.conf"
    file.write_text(f'http_port 3128\nacl a src "{clients}"\nhttp_access allow a\nhttp_access deny all\n')
    checked = check(file, "n", PrintingSquid("/usr/sbin/squid", "5.7", "proxy"))
    (problem,) = problems_about(checked, "it has")
    assert problem.startswith(f'{file}:2: acl a src "{clients}": "{clients}": it has 10.0.0.0/8')
    assert checked.lists[0].content == b"10.0.0.0/8\n"
    assert f'acl a src "{checked.lists[0].copy}"' in [line.text for line in checked.lines]


def test_list_that_changes_during_the_check_is_judged_as_copied(
    tmp_path: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the check judged its own copy of a list, but Squid read the file again, also at each reload."""
    from mptcp_proxy.configuration import lists

    read = lists._read_list

    def read_and_change(name: str, directory: Path) -> lists.CopiedList:
        found = read(name, directory)
        clients.write_text("10.0.0.0/8\n")
        return found

    monkeypatch.setattr(lists, "_read_list", read_and_change)
    clients.write_text("0.0.0.0/1\n")
    file = tmp_path / "squid.conf"
    file.write_text(f'http_port 3128\nacl a src "{clients}"\nhttp_access allow a\nhttp_access deny all\n')
    checked = check(file, "n", None)
    assert len(problems_about(checked, "an open proxy")) == 1
    assert checked.lists[0].content == b"0.0.0.0/1\n"


class TemporaryPlaces(Places):
    """Places below a directory of the test."""

    directory: Path

    @property
    def runtime(self) -> Path:
        return self.directory / "run"

    @property
    def logs(self) -> Path:
        return self.directory / "log"


def test_copies_are_installed_and_unused_copies_are_removed(
    tmp_path: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(TemporaryPlaces, "directory", tmp_path, raising=False)
    monkeypatch.setattr("mptcp_proxy.configuration.check.Places", TemporaryPlaces)
    places = TemporaryPlaces("n")
    file = tmp_path / "squid.conf"
    file.write_text(f'http_port 3128\nacl a src "{clients}"\nhttp_access allow a\nhttp_access deny all\n')
    generations = []
    for content in ("10.0.0.0/8\n", "10.0.0.0/9\n", "10.0.0.0/10\n", "10.0.0.0/10\n"):
        clients.write_text(content)
        checked = check(file, "n", None)
        installation.make_directories(places, checked)
        installation.install(places, checked, [], 1)
        # A later unfinished edit has no effect.
        clients.write_text("0.0.0.0/1\n")
        (copy,) = [each.copy for each in checked.lists]
        assert copy.read_text() == content
        assert copy.stat().st_mode & 0o777 == 0o640
        assert f'"{copy}"' in places.configuration_in_force.read_text()
        generations.append(copy)
        # A worker that starts now may still read the previous configuration.
        assert set(places.lists.iterdir()) == set(generations[-2:])


def test_copies_without_space_are_refused_before_any_is_written(
    clients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of tens of megabytes may take half of the memory that a small host has for /run."""
    size = len(clients.read_bytes())
    found = copy_lists(lines(f'acl a src "{clients}"'), "n", tmp_path / "run/lists", (OWN_ADDRESSES,))
    monkeypatch.setattr(os, "statvfs", lambda _: Space(size))
    assert list(space_problems(found.lists, tmp_path / "run/lists")) == []
    monkeypatch.setattr(os, "statvfs", lambda _: Space(size - 1))
    (problem,) = space_problems(found.lists, tmp_path / "run/lists")
    assert str(problem) == (
        f"Squid's copies of the lists need 11 B, but only 10 B is free on {tmp_path}"
        " (allowed: shorter lists, or more free space)"
    )
    # Existing copies need no more space.
    (copy,) = [each.copy for each in found.lists]
    copy.parent.mkdir(parents=True)
    copy.write_bytes(clients.read_bytes())
    assert list(space_problems(found.lists, tmp_path / "run/lists")) == []
