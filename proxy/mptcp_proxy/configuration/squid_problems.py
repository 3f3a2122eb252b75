# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns the remarks of ``squid -k parse`` into problems, each with its place in the operator's own file.

At a fatal mistake, Squid stops. At other mistakes (an unknown directive, ``http_access permit``), it prints a remark,
continues, and exits with status 0. So this module reads every remark. After a fatal remark, it removes the statement
and runs Squid again with the rest, so that all mistakes are reported together.

Only some remarks name a line. But before Squid acts on a statement, it prints the statement after "Processing:", which
shows the statement to which a remark belongs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence

from ..problem import Problem
from .access import OVERRIDE, as_warnings
from .parse_differences import differences
from .source import PhysicalLine, Statement, all_statements

Parse = Callable[[Sequence[PhysicalLine]], str]
"""Function that lets Squid parse the lines and returns Squid's output."""

MAX_ROUNDS = 50
"""Maximum number of runs of Squid. A file with more fatal mistakes than this is not a squid.conf."""
NO_TIME = (
    "stopped looking for more mistakes, because Squid needs too much time for this file, for example because the file"
    " contains host names and no name server answers"
)
_NO_ANSWER = "(-3) Temporary failure in name resolution"
"""EAI_AGAIN of getaddrinfo(3), in Squid's words. A name that does not exist is EAI_NONAME."""

_STAMP = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: kid\d+)?\| ?")
_PROCESSING = re.compile(r"Processing: (?P<text>.*)")
_BUNGLED = re.compile(r"FATAL: Bungled ")
_FATAL = re.compile(r"FATAL: (?P<text>.*)")
_UNKNOWN = re.compile(r"unrecognized: '(?P<directive>\S+)")
_MISSING_ACL = re.compile(r"ACL not found: (?P<name>\S+)")
_USUAL_OUTPUT = re.compile(
    r"\s*(?:Processing Configuration File|Startup: |(?:Starting|Disabling) Authentication"
    # Addresses of an IP version that this host lacks match no client, which is correct.
    r"|aclIpParseIpData: IPv6 has not been enabled|Initializing |Using certificate|Finished\.|Took |CPU Usage|Maximum "
    r"|Page faults|Not currently OK|storeDirWriteCleanLogs|Squid Cache|exception location|Set Current|$)"
)
_ERROR = re.compile(r"ERROR|FATAL|unrecognized|expecting|not found|configuration error", re.IGNORECASE)
# The feature is not compiled in, so the statement has no effect.
_NOT_BUILT_IN = re.compile(r"requires? --(enable|with)")
# configuration.check reports this, with the line.
_UNKNOWN_USER = re.compile(r"getpwnam failed")
# Squid ignores the statement and continues.
_IGNORED = re.compile(r"does not support the '\w+' cache type\. Ignoring\.")
_REMEDIES = (
    (
        re.compile(r"ACL not found: to_linklocal"),
        "Squid 6 and later define this list; for this Squid: acl to_linklocal dst 169.254.0.0/16 fe80::/10",
    ),
    (
        re.compile(r"Unknown http_port option '(?:ssl-bump|generate-host-certificates|dynamic_cert_mem_cache_size)"),
        "this Squid was built without OpenSSL; install Debian's Squid with OpenSSL: apt install squid-openssl",
    ),
)
"""Squid's remarks about missing requirements, each with a remedy."""
_PREFIX = re.compile(r"^(?:ERROR: |FATAL: |WARNING: |Warning: |\w+: (?=expecting|unknown|Bad ))+")

_HINTS = {
    "acl": "acl NAME TYPE VALUE...; types are src, dst, port, dstdomain, method, time and others",
    "http_access": "http_access allow|deny [!]NAME..., each NAME defined by an acl line above it",
    "http_port": "[ADDRESS:]PORT [tproxy] [name=NAME], PORT from 1 to 65535",
    "https_port": "[ADDRESS:]PORT tls-cert=FILE",
    "cache_mem": "a number and a unit: KB, MB or GB",
    "via": "on or off",
    "logfile_rotate": "a whole number, 0 here",
    "max_filedescriptors": "a whole number",
    "visible_hostname": "a name",
}
_ALLOWED_TEXT = f"text that Squid and this check interpret in the same way; to accept this: {OVERRIDE}"
_DURATIONS = "a number and a unit: seconds, minutes, hours or days"
_KNOWN_DIRECTIVES = frozenset(
    """
acl http_access http_reply_access http_port https_port include cache cache_mem cache_dir cache_log access_log
cache_effective_user cache_effective_group pid_filename workers via forwarded_for visible_hostname unique_hostname
dns_nameservers dns_timeout connect_timeout read_timeout request_timeout shutdown_lifetime logfile_rotate
strip_query_terms max_filedescriptors icp_port pinger_enable coredump_dir refresh_pattern maximum_object_size
maximum_object_size_in_memory minimum_object_size quick_abort_min quick_abort_max tcp_outgoing_address
tcp_outgoing_mark url_rewrite_program url_rewrite_children external_acl_type auth_param request_header_access
reply_header_access httpd_suppress_version_string email_err_data cache_peer never_direct always_direct logformat
""".split()  # noqa: SIM905  saves a hundred quotation marks
)


def squid_problems(
    lines: Sequence[PhysicalLine],
    service_name: str,
    parse: Parse,
    *,
    allow_open: bool = False,
    in_time: Callable[[], bool] = lambda: True,
) -> Iterator[Problem]:
    """Yield the mistakes that Squid finds in *lines*, and the lines that Squid interprets differently from
    ``all_statements``. *allow_open*: only warn about such differences. *in_time*: return whether there is time for
    another run of Squid."""
    remaining = list(lines)
    reported: set[Problem] = set()
    removed_acls: set[str] = set()
    for _ in range(MAX_ROUNDS):
        read_statements = list(all_statements(remaining, service_name))
        output = parse(remaining)
        problems, fatal = interpret(output, read_statements, removed_acls)
        if fatal is None:
            found = differences([_STAMP.sub("", line) for line in output.split("\n")], read_statements, _ALLOWED_TEXT)
            problems.extend(as_warnings(found) if allow_open else found)
        yield from (problem for problem in problems if problem not in reported)
        reported.update(problems)
        if fatal is None:
            return
        if not in_time():
            yield Problem(NO_TIME, fatal.file, fatal.number, warning=True)
            return
        match fatal.words:
            case ("acl", name, *_):
                removed_acls.add(name)
        for index in range(fatal.first, fatal.last + 1):
            remaining[index] = PhysicalLine(remaining[index].file, remaining[index].number, "")


def waits_for_names(problem: Problem) -> bool:
    """Return whether *problem* is only that no name server answers, which is not a mistake in the file."""
    return _NO_ANSWER in problem.text


def fatal_remark(output: str) -> str:
    """Return the remark in the *output* of ``squid -k parse`` at which Squid would exit, without secrets; "" if there
    is none."""
    found = (_FATAL.match(_STAMP.sub("", line)) for line in output.split("\n"))
    return next((str(Problem(each["text"])) for each in found if each), "")


def interpret(
    output: str, read_statements: Sequence[Statement], removed_acls: set[str]
) -> tuple[list[Problem], Statement | None]:
    """Return the problems that one run of Squid found, and the statement at which it stopped."""
    problems: list[Problem] = []
    remarks: list[str] = []
    current: Statement | None = None
    position = 0
    # Only "\n" ends a line, because the output repeats statements, which may contain unusual characters.
    for line in output.split("\n"):
        text = _STAMP.sub("", line)
        if announced := _PROCESSING.match(text):
            problems.extend(_problems(current, remarks, removed_acls))
            remarks = []
            found = next(
                (i for i in range(position, len(read_statements)) if read_statements[i].text == announced["text"]), None
            )
            current = None if found is None else read_statements[found]
            position = position if found is None else found + 1
        elif _BUNGLED.match(text):
            problems.extend(_problems(current, [*remarks, "FATAL: not well formed"], removed_acls))
            return problems, current
        elif not _USUAL_OUTPUT.match(text):
            remarks.append(text)
    # A fatal remark after the last statement is not about a statement, but for example about an unknown user.
    about_file = [remark for remark in remarks if _FATAL.match(remark)]
    problems.extend(_problems(current, [r for r in remarks if r not in about_file], removed_acls))
    file = read_statements[0].file if read_statements else ""
    problems.extend(Problem(_PREFIX.sub("", r).strip(), file) for r in about_file if not _UNKNOWN_USER.search(r))
    return problems, None


def _problems(statement: Statement | None, remarks: Sequence[str], removed_acls: set[str]) -> Iterator[Problem]:
    if not remarks:
        return
    all_remarks = " ".join(remarks)
    missing = _MISSING_ACL.search(all_remarks)
    # This list is missing only because its definition has a mistake, which is already reported.
    if missing and missing["name"] in removed_acls:
        return
    file, number = (statement.file, statement.number) if statement else ("", None)
    warning = not _ERROR.search(all_remarks) or bool(_NOT_BUILT_IN.search(all_remarks) or _IGNORED.search(all_remarks))
    if unknown := _UNKNOWN.search(all_remarks):
        similar = difflib.get_close_matches(unknown["directive"].rstrip("'"), _KNOWN_DIRECTIVES, n=1)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        yield Problem(f"{unknown['directive'].rstrip(chr(39))}: there is no such directive{hint}", file, number)
        return
    details = list(dict.fromkeys(_PREFIX.sub("", remark).strip() for remark in remarks))
    # Omit remarks that only repeat the statement or an earlier remark.
    echo = statement.text if statement else "\0"
    informative = [d for d in details if not d.endswith(echo) and not d.startswith(("empty ACL", "not well formed"))]
    yield Problem(
        f"{_shorten(statement)}{'; '.join(informative or details[:1])}",
        file,
        number,
        allowed=""
        if warning
        else next((remedy for remark, remedy in _REMEDIES if remark.search(all_remarks)), _allowed_values(statement)),
        warning=warning,
    )


def _shorten(statement: Statement | None) -> str:
    if statement is None:
        return ""
    text = " ".join(statement.words)
    return f"{text if len(text) <= 100 else text[:97] + '...'}: "


def _allowed_values(statement: Statement | None) -> str:
    directive = statement.directive if statement else ""
    if directive.endswith(("_timeout", "_lifetime", "_ttl")):
        return _DURATIONS
    return _HINTS.get(directive, "")
