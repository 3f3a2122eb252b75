# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for invalid policies: each yields exact, complete error lines and no policy.

test_yaml_document tests errors of YAML itself.
"""

from __future__ import annotations

from textwrap import dedent

import pytest

from mptcp_common.problems import DocumentError, Severity
from mptcp_throttler.policy.load import check_policy, load_policy

PATHS = """\
version: 1
paths:
  ethernet:
    clients: [10.77.1.0/24]
"""
"""Four lines, so that text added to them starts on line 5."""

RATE_ADVICE = 'write a number and one of bit/s, kbit/s, Mbit/s, Gbit/s (e.g. "5 Mbit/s")'
SIZE_ADVICE = 'write a number and one of B, KB, MB, KiB, MiB (e.g. "15 KB")'
PREFIX_ADVICE = 'write an address or a prefix (e.g. "10.77.1.0/24" or "fd77:1::/64")'
DAY_ADVICE = 'write mon, tue, wed, thu, fri, sat, sun, or a range such as "mon-fri"'
NAME_ADVICE = "write 1 to 32 letters, digits, dots, dashes and underscores, the first a letter or digit"
RULE_KEYS = "allowed here: name, paths, when, throttle, always, plain_tcp, lift_last, direction, guard, steer, budget"
PATH_KEYS = "clients, interfaces, remote_ids, subflow, backup"


def problems(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        load_policy(text, "policy.yaml")
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


WHOLE_FILES = {
    "two colons": (
        "version: 1\nrules: name: a\n",
        ['policy.yaml:2: not valid YAML: a second ": " on the line, or a line with wrong indentation'],
    ),
    "no version": ("rules: []\n", ['policy.yaml:1: version: is required, as in "version: 1"']),
    "unknown later version": (
        "version: 2\nrules: []\n",
        ["policy.yaml:1: version: 2 is not a version this release reads; write 1"],
    ),
    "version as text": (
        'version: "1"\nrules: []\n',
        ['policy.yaml:1: version: "1" is not a version this release reads; write 1'],
    ),
    "version true": (
        "version: true\nrules: []\n",
        ["policy.yaml:1: version: true is not a version this release reads; write 1"],
    ),
    "no rules": (
        "version: 1\n",
        [
            "policy.yaml:1: rules: is required, as in "
            '"rules: [{name: spare-ethernet, paths: [ethernet], throttle: {rate: 5 Mbit/s}}]"'
        ],
    ),
    "rules without a value": ("version: 1\nrules:\n", ["policy.yaml:2: rules: has no value; write one"]),
    "rules as a mapping": (
        "version: 1\nrules: {name: a}\n",
        ['policy.yaml:2: rules: a mapping is not a list; start each item with "- "'],
    ),
    "paths as a list": (
        "version: 1\npaths: []\nrules: []\n",
        ['policy.yaml:2: paths: a list is not a mapping; write "key: value" lines'],
    ),
    "dry_run in YAML 1.1": (
        "version: 1\ndry_run: yes\nrules: []\n",
        ['policy.yaml:2: dry_run: "yes" is not allowed; write true or false'],
    ),
    "unknown time zone": (
        "version: 1\ntime_zone: Europe/Atens\nrules: []\n",
        [
            'policy.yaml:2: time_zone: "Europe/Atens" is not a time zone (did you mean "Europe/Athens"?); '
            'write Region/City as in the IANA database (e.g. "Europe/Athens"), or UTC'
        ],
    ),
    "longest_retry below retry": (
        "version: 1\nguard: {retry: 600, longest_retry: 300}\nrules: []\n",
        ["policy.yaml:2: guard.longest_retry: 300 is below retry, which is 600"],
    ),
    "time zone outside the database": (
        "version: 1\ntime_zone: ../../../etc/passwd\nrules: []\n",
        [
            'policy.yaml:2: time_zone: "../../../etc/passwd" is not a time zone; '
            'write Region/City as in the IANA database (e.g. "Europe/Athens"), or UTC'
        ],
    ),
}


@pytest.mark.parametrize("case", WHOLE_FILES)
def test_invalid_file(case: str) -> None:
    text, expected = WHOLE_FILES[case]
    assert problems(text) == expected


IN_PATHS = {
    "no conditions": (
        "  wifi: {}",
        f"5: paths.wifi: has no key that selects subflows; give at least one of {PATH_KEYS}",
    ),
    "no value": ("  wifi:", "5: paths.wifi: has no value; write one, or remove the line"),
    "a prefix instead of a mapping": (
        "  wifi: 10.77.2.0/24",
        '5: paths.wifi: "10.77.2.0/24" is not a mapping; write "key: value" lines',
    ),
    "host bits": (
        "  wifi: {clients: [10.77.2.9/24]}",
        '5: paths.wifi.clients[0]: "10.77.2.9/24" has bits set after its prefix; '
        'write "10.77.2.0/24" for the network or "10.77.2.9" for the single address',
    ),
    "wildcard instead of a prefix": (
        '  wifi: {clients: ["10.77.2.*"]}',
        f'5: paths.wifi.clients[0]: "10.77.2.*" is not a prefix; {PREFIX_ADVICE}',
    ),
    "prefix too long": (
        "  wifi: {clients: [10.77.2.0/33]}",
        f'5: paths.wifi.clients[0]: "10.77.2.0/33" is not a prefix; {PREFIX_ADVICE}',
    ),
    "number as prefix": (
        "  wifi: {clients: [10]}",
        f"5: paths.wifi.clients[0]: 10 is not a prefix; {PREFIX_ADVICE}",
    ),
    "mapped prefix": (
        '  wifi: {clients: ["::ffff:10.77.2.0/120"]}',
        '5: paths.wifi.clients[0]: "::ffff:10.77.2.0/120" is an IPv4 prefix in IPv6 form; write "10.77.2.0/24"',
    ),
    "not a list": (
        "  wifi: {clients: 10.77.2.0/24}",
        '5: paths.wifi.clients: "10.77.2.0/24" is not a list; write ["10.77.2.0/24"]',
    ),
    "empty list": (
        "  wifi: {clients: []}",
        "5: paths.wifi.clients: the list is empty; write at least one item, or leave the key out",
    ),
    "interface too long": (
        "  wifi: {interfaces: [a-very-long-name]}",
        '5: paths.wifi.interfaces[0]: "a-very-long-name" is too long for an interface; Linux allows 15 characters',
    ),
    "interface with a slash": (
        "  wifi: {interfaces: [wlan/0]}",
        '5: paths.wifi.interfaces[0]: "wlan/0" is not the name of an interface; '
        "names have no spaces, slashes or colons (see: ip link)",
    ),
    "remote id too large": (
        "  wifi: {remote_ids: [256]}",
        "5: paths.wifi.remote_ids[0]: 256 is out of range; 0 to 255 is allowed",
    ),
    "boolean as remote id": (
        "  wifi: {remote_ids: [true]}",
        "5: paths.wifi.remote_ids[0]: true is not a whole number; 0 to 255 is allowed",
    ),
    "misspelt subflow": (
        "  wifi: {subflow: intial}",
        '5: paths.wifi.subflow: "intial" is not allowed (did you mean "initial"?); write initial or joined',
    ),
    "number as backup": ("  wifi: {backup: 1}", "5: paths.wifi.backup: 1 is not allowed; write true or false"),
    "misspelt key": (
        "  wifi: {client: [10.77.2.0/24]}",
        f'5: paths.wifi.client: unknown key (did you mean "clients"?); allowed here: {PATH_KEYS}',
    ),
    "name with a space": (
        "  wi fi: {backup: true}",
        f'5: paths."wi fi": "wi fi" is not a name; {NAME_ADVICE}',
    ),
}


@pytest.mark.parametrize("case", IN_PATHS)
def test_invalid_path(case: str) -> None:
    text, expected = IN_PATHS[case]
    assert problems(f"{PATHS}{text}\nrules: []\n") == [f"policy.yaml:{expected}"]


IN_RULES = {
    "no throttle": ("- name: a", "6: rules[0].throttle: is required, unless the rule has steer or budget"),
    "no name": ("- throttle: none", '6: rules[0].name: is required, as in "name: spare-ethernet"'),
    "a word instead of a mapping": ("- none", '6: rules[0]: "none" is not a mapping; write "key: value" lines'),
    "name with a space": (
        "- {name: a b, throttle: none}",
        f'6: rules[0].name: "a b" is not a name; {NAME_ADVICE}',
    ),
    "number as name": (
        "- {name: 5, throttle: none}",
        "6: rules[0].name: 5 is not text; put it in quotes",
    ),
    "misspelt throttle": (
        "- {name: a, throtle: none}",
        f'6: rules[0].throtle: unknown key (did you mean "throttle"?); {RULE_KEYS}',
    ),
    "key in the wrong place": (
        "- {name: a, throttle: none, min_subflows: 3}",
        f"6: rules[0].min_subflows: unknown key; it belongs under when; {RULE_KEYS}",
    ),
    "unknown path": (
        "- {name: a, paths: [ethrnet], throttle: none}",
        '6: rules[0].paths[0]: "ethrnet" is not a path (did you mean "ethernet"?); the paths are ethernet',
    ),
    "paths empty": (
        "- {name: a, paths: [], throttle: none}",
        "6: rules[0].paths: the list is empty; write at least one item, or leave the key out",
    ),
    "throttle off": (
        "- {name: a, throttle: off}",
        '6: rules[0].throttle: "off" is not allowed; write none, or a mapping with at least "rate"',
    ),
    "throttle empty": (
        "- {name: a, throttle: }",
        "6: rules[0].throttle: has no value; write one, or leave the key out",
    ),
    "throttle without a rate": (
        "- {name: a, throttle: {ceil: 5 Mbit/s}}",
        '6: rules[0].throttle.rate: is required, as in "rate: 5 Mbit/s"',
    ),
    "ambiguous unit": (
        "- {name: a, throttle: {rate: 5 Mbps}}",
        '6: rules[0].throttle.rate: "5 Mbps" is not a rate: "bps" is bytes to tc(8) and bits to most people '
        f'(did you mean "5 Mbit/s"?); {RATE_ADVICE}',
    ),
    "boolean as rate": (
        "- {name: a, throttle: {rate: true}}",
        f"6: rules[0].throttle.rate: true is not a rate; {RATE_ADVICE}",
    ),
    "float as rate": (
        "- {name: a, throttle: {rate: 5.5}}",
        f"6: rules[0].throttle.rate: 5.5 is not a rate; {RATE_ADVICE}",
    ),
    "rate 0": (
        "- {name: a, throttle: {rate: 0}}",
        "6: rules[0].throttle.rate: 0 is out of range; a rate is from 8 kbit/s to 1000 Gbit/s",
    ),
    "rate negative": (
        "- {name: a, throttle: {rate: -5 Mbit/s}}",
        '6: rules[0].throttle.rate: "-5 Mbit/s" is out of range; a rate is from 8 kbit/s to 1000 Gbit/s',
    ),
    "rate without a unit": (
        "- {name: a, throttle: {rate: 5}}",
        "6: rules[0].throttle.rate: 5 is out of range; a rate is from 8 kbit/s to 1000 Gbit/s; "
        'without a unit a number is bits per second (did you mean "5 Mbit/s"?)',
    ),
    "rate of a fraction of a bit": (
        "- {name: a, throttle: {rate: 8.00001 kbit/s}}",
        '6: rules[0].throttle.rate: "8.00001 kbit/s" is not a whole number of bits per second',
    ),
    "ceil below rate": (
        "- {name: a, throttle: {rate: 5 Mbit/s, ceil: 4 Mbit/s}}",
        "6: rules[0].throttle.ceil: 4 Mbit/s is below the rate, 5 Mbit/s; write the rate or more, or leave ceil out",
    ),
    "burst in bits": (
        "- {name: a, throttle: {rate: 5 Mbit/s, burst: 15 kb}}",
        f'6: rules[0].throttle.burst: "15 kb" is not a size (did you mean "15 KB"?); {SIZE_ADVICE}',
    ),
    "burst below a packet": (
        "- {name: a, throttle: {rate: 5 Mbit/s, burst: 100 B}}",
        '6: rules[0].throttle.burst: "100 B" is out of range; from 1.6 KB to 64 MiB is allowed',
    ),
    "burst of minutes": (
        "- {name: a, throttle: {rate: 8 kbit/s, burst: 64 MB}}",
        "6: rules[0].throttle.burst: 64 MB takes more than 60 seconds at 8 kbit/s; write 60 KB or less",
    ),
    "unknown share": (
        "- {name: a, throttle: {rate: 5 Mbit/s, share: host}}",
        '6: rules[0].throttle.share: "host" is not allowed; write path, client or connection',
    ),
    "lift_last in YAML 1.1": (
        "- {name: a, throttle: none, lift_last: on}",
        '6: rules[0].lift_last: "on" is not allowed; write true or false',
    ),
    "min_subflows above max_subflows": (
        "- {name: a, throttle: none, when: {min_subflows: 4, max_subflows: 2}}",
        "6: rules[0].when.max_subflows: 2 is below min_subflows, which is 4",
    ),
    "min_subflows 0": (
        "- {name: a, throttle: none, when: {min_subflows: 0}}",
        "6: rules[0].when.min_subflows: 0 is out of range; 1 to 255 is allowed",
    ),
    "unknown day": (
        "- {name: a, throttle: none, when: {days: [mon, sonday]}}",
        f'6: rules[0].when.days[1]: "sonday" is not a day (did you mean "sun"?); {DAY_ADVICE}',
    ),
    "range of days without an end": (
        "- {name: a, throttle: none, when: {days: [mon-]}}",
        f'6: rules[0].when.days[0]: "mon-" is not a day; {DAY_ADVICE}',
    ),
    "hours without minutes": (
        "- {name: a, throttle: none, when: {hours: [8-18]}}",
        '6: rules[0].when.hours[0]: "8-18" is not a range of hours; write HH:MM-HH:MM (e.g. "08:00-18:00")',
    ),
    "a single time of day": (
        "- {name: a, throttle: none, when: {hours: [12:30]}}",
        '6: rules[0].when.hours[0]: "12:30" is not a range of hours; write HH:MM-HH:MM (e.g. "08:00-18:00")',
    ),
    "hour that does not exist": (
        "- {name: a, throttle: none, when: {hours: [22:00-26:00]}}",
        '6: rules[0].when.hours[0]: "22:00-26:00" has a time of day that does not exist; '
        "00:00 to 23:59, or 24:00 as the end",
    ),
    "range without a duration": (
        "- {name: a, throttle: none, when: {hours: [08:00-08:00]}}",
        '6: rules[0].when.hours[0]: "08:00-08:00" has equal ends; for the whole day write "00:00-24:00"',
    ),
}


@pytest.mark.parametrize("case", IN_RULES)
def test_invalid_rule(case: str) -> None:
    text, expected = IN_RULES[case]
    assert problems(f"{PATHS}rules:\n{text}\n") == [f"policy.yaml:{expected}"]


def test_error_about_a_duplicate_rule_name_has_the_line_of_the_first() -> None:
    text = (
        f"{PATHS}rules:\n- {{name: a, throttle: none}}\n- {{name: b, throttle: none}}\n- {{name: a, throttle: none}}\n"
    )
    assert problems(text) == [
        'policy.yaml:8: rules[2].name: "a" is already the name of the rule on line 6; choose another name'
    ]


def test_all_errors_are_reported_in_the_order_of_lines() -> None:
    text = dedent("""\
        version: 1
        time_zone: Mars/Olympus
        paths:
          ethernet:
            clients: [10.77.1.5/24]
            speed: fast
        rules:
          - name: spare ethernet
            paths: [ethernet, lte]
            when:
              min_subflows: 3
              max_subflows: 2
              hours: [all]
            throttle:
              rate: 5 Mbit/s
              ceil: 1 Mbit/s
              ceil: 2 Mbit/s
              burst: 15 kb
          - throttle: never
        """)
    assert [(line.split(":")[1], line.split(": ")[1]) for line in problems(text)] == [
        ("2", "time_zone"),
        ("5", "paths.ethernet.clients[0]"),
        ("6", "paths.ethernet.speed"),
        ("8", "rules[0].name"),
        ("9", "rules[0].paths[1]"),
        ("12", "rules[0].when.max_subflows"),
        ("13", "rules[0].when.hours[0]"),
        ("16", "rules[0].throttle.ceil"),
        ("17", "rules[0].throttle.ceil"),
        ("18", "rules[0].throttle.burst"),
        ("19", "rules[1].name"),
        ("19", "rules[1].throttle"),
    ]


def test_problem_has_its_line_column_key_and_value() -> None:
    (problem,) = check_policy(f"{PATHS}rules:\n  - name: a\n    throttle: {{rate: 5 Mbps}}\n", "p.yaml").problems
    assert (problem.source, problem.line, problem.column) == ("p.yaml", 7, 22)
    assert (problem.key, problem.value) == ("rules[0].throttle.rate", '"5 Mbps"')
    assert problem.severity is Severity.ERROR


def test_error_in_an_anchor_is_reported_at_the_anchor() -> None:
    text = f"{PATHS}rules:\n- name: a\n  throttle: &slow\n    rate: 5 Mbps\n- {{name: b, throttle: *slow}}\n"
    assert [line.split(" ")[0:2] for line in problems(text)] == [
        ["policy.yaml:8:", "rules[0].throttle.rate:"],
        ["policy.yaml:8:", "rules[1].throttle.rate:"],
    ]


BIG_NUMBERS = ["9" * 200, "0x" + "f" * 20_000, "1e400", "-.inf", ".nan", "9" * 5000]


@pytest.mark.parametrize(
    "number", BIG_NUMBERS, ids=["200 digits", "hexadecimal", "1e400", "-inf", "nan", "5000 digits"]
)
def test_huge_number_causes_one_short_error_line(number: str) -> None:
    (line,) = problems(f"{PATHS}rules: [{{name: a, throttle: {{rate: {number}}}}}]\n")
    assert line.startswith("policy.yaml:5: rules[0].throttle.rate: ")
    assert len(line) < 250


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ("budget: 20 GB", "{after: 20 GB, throttle"),
        ("budget: 20gb", "{after: 20GB, throttle"),
        ("budget: {period: month, steps: [{after: 20 gb, throttle: none}]}", '"20 GB"'),
        ("throttle: {rate: 5000}", '"5000 kbit/s"'),
        ("throttle: {rate: 5 MB/s}", '"40 Mbit/s"'),
        ("throttle: {rate: 1 Mbit/s, burst: 15 kb}", '"15 KB"'),
        ("throttle: {rate: 1 Mbit/s}, always: true, guard: true", "guard"),
        ("throttle: {rate: 1 Mbit/s}, always: true, when: {min_paths: 2}", "when.min_paths"),
        ("throttle: none, always: true", "throttle"),
        ("throttle: 1 Mbit/s", "{rate: 1 Mbit/s}"),
        ("steer: waterfall", "{mode: waterfall}"),
        ("throttle: {rate: 1 Mbit/s}, plain_tcp: cap", "always"),
        ("throttle: {rate: 1 Mbit/s, share: client}, always: true, plain_tcp: cap", "share: path"),
        ('throttle: {rate: 1 Mbit/s}, always: true, plain_tcp: cap, when: {hours: ["08:00-18:00"]}', "hours"),
        ("throttle: {rate: 1 Mbit/s}, always: true, plain_tcp: cap, direction: both", "downloads"),
        ("throttle: {rate: 1 Mbit/s}, always: true, plain_tcp: cap", "paths"),
    ],
)
def test_message_suggests_the_probably_intended_text(rule: str, hint: str) -> None:
    (problem,) = check_policy(f"version: 1\nrules:\n  - {{name: x, {rule}}}\n", "policy.yaml").problems
    assert hint in problem.message
    assert problem.line == 3


def test_plain_tcp_cannot_use_a_path_with_subflow_conditions() -> None:
    text = (
        "version: 1\npaths: {lte: {clients: [10.3.0.0/16], subflow: joined}}\nrules:\n"
        "  - {name: x, paths: [lte], throttle: {rate: 1 Mbit/s}, always: true, plain_tcp: cap}\n"
    )
    (problem,) = check_policy(text, "policy.yaml").problems
    assert (problem.line, problem.severity) == (4, Severity.ERROR)
    assert "subflow" in problem.message
