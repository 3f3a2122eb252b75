# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the open-proxy check: helper programs, and headers in which other hosts tell Squid a client's address."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_squid_conf import parse

from mptcp_proxy.configuration.access import open_proxy_problems

OWN_NETWORK_AND_HELPER = ["acl own src 10.0.0.0/8", "acl ok all-of own us"]
OPEN = [
    # A client can claim any address. The rules allow the client because of the claimed address's AS number or name, or
    # because a helper accepts the address.
    *(
        [*trusting, *acl_lines, "http_access allow ok", "http_access deny all"]
        for trusting in (
            ["follow_x_forwarded_for allow all"],
            ["http_port 3128 require-proxy-header", "proxy_protocol_access allow all"],
        )
        for acl_lines in (
            ["acl ok src_as 64496"],
            ["acl ok srcdomain .office.example.com"],
            ["external_acl_type who %DST %SRC /bin/helper", "acl ok external who"],
            ["external_acl_type who %>A /bin/helper", "acl ok external who"],
        )
    ),
    # Helpers always get the logged address, even if the rules use the other address.
    [
        "acl_uses_indirect_client off",
        "follow_x_forwarded_for allow all",
        "external_acl_type who %>a /bin/helper",
        "acl ok external who",
        "http_access allow ok",
        "http_access deny all",
    ],
    [
        "log_uses_indirect_client off",
        "log_uses_indirect_client on",
        "acl_uses_indirect_client off",
        "follow_x_forwarded_for allow all",
        "external_acl_type who %SRC /bin/helper",
        "acl ok external who",
        "acl named ext_user REQUIRED",
        "http_access deny !ok",
        "http_access allow named",
        "http_access deny all",
    ],
    # This helper gets only the destination, not the client.
    ["external_acl_type where ttl=60 %DST /bin/helper", "acl ok external where", "http_access allow ok"],
    ["external_acl_type where %DST /bin/helper", "acl ok external -- where", "http_access allow ok"],
    *(
        [f"external_acl_type where {format_codes}", "acl ok external where", "http_access allow ok"]
        for format_codes in (
            # Codes after the helper's path are its arguments, not its input.
            "%DST /bin/helper %SRC",
            "ttl=60 ipv4 /bin/helper %SRC",
            "%#ru /bin/helper",
            "%SRCPORT /bin/helper",
            "%>p %http::ru /bin/helper",
            "%IDENT %ui /bin/helper",
            "/bin/helper",
            # A code must be a separate word: Squid exits with an error if a word contains two codes, or at "%" before a
            # code.
            "%DST:%SRC /bin/helper",
            "%%SRC /bin/helper",
            # This helper gets only the first digit of the address.
            "%.1SRC /bin/helper",
            # Any client can set these headers to any value.
            "%>ha{Host} /bin/helper",
            "%>{Referer} /bin/helper",
            "%{Accept-Language:;en}>h /bin/helper",
            "%>ha{user-agent} /bin/helper",
            "%>ha{X-Forwarded-For} /bin/helper",
            *(
                f"%>ha{{{name}}} /bin/helper"
                for name in (
                    "X-Real-IP",
                    "X-Client-IP",
                    "Client-IP",
                    "True-Client-IP",
                    "CF-Connecting-IP",
                    "Remote-Addr",
                )
            ),
            # The value of these codes is the result of another helper, or empty.
            "%EXT_USER /bin/helper",
            "%EXT_TAG %ea /bin/helper",
            "%un /bin/helper",
            "%{user}note /bin/helper",
        )
    ),
    # These rules use the result of a helper that gets only the destination, not the client.
    [
        "external_acl_type where %DST /bin/helper",
        "acl ok external where",
        "acl named ext_user REQUIRED",
        "http_access allow ok named",
        "http_access deny all",
    ],
    [
        "external_acl_type where %DST /bin/helper",
        "external_acl_type who %SRC /bin/helper",
        "acl ok external where",
        "acl named ext_user_regex .",
        "http_access deny !ok",
        "http_access allow named",
        "http_access deny all",
    ],
    *(
        [
            *sources,
            "external_acl_type where %DST /bin/helper",
            f"external_acl_type second {format_codes} /bin/helper",
            "acl ok external where",
            "acl fine external second",
            "http_access allow ok fine",
            "http_access deny all",
        ]
        for format_codes in (
            "%EXT_USER",
            "%EXT_LOG",
            "%EXT_TAG",
            "%ue",
            "%ea",
            "%et",
            "%un",
            "%note{user}",
            "%{user}note",
        )
        for sources in (
            [],
            ["auth_param basic program /bin/passwords", "external_acl_type who %SRC /bin/helper"],
        )
    ),
    # Each helper gets only the other helper's result.
    [
        "external_acl_type one %EXT_USER /bin/helper",
        "external_acl_type other %EXT_TAG /bin/helper",
        "acl ok external one",
        "acl fine external other",
        "http_access allow ok fine",
        "http_access deny all",
    ],
    # A client without login supplies its name itself (identd); notes may have any source.
    *(
        [
            "auth_param basic program /bin/passwords",
            f"external_acl_type named {format_codes} /bin/helper",
            setting,
            "acl ok external named",
            "http_access allow ok",
            "http_access deny all",
        ]
        for format_codes, setting in (
            ("%un", "acl me ident REQUIRED"),
            ("%un", "acl me ident_regex ."),
            ("%un", "ident_lookup_access allow all"),
            ("%note{user}", "note user yes all"),
            ("%note{user}", "acl mark annotate_transaction user=yes"),
            ("%note{user}", "acl mark annotate_client user=yes"),
            ("%note{clt_conn_tag}", "url_rewrite_program /bin/rewriter"),
        )
    ),
    # These helpers accept any password, or any address.
    *(
        [f"auth_param {program}", "acl users proxy_auth REQUIRED", "http_access allow users", "http_access deny all"]
        for program in (
            "basic program /usr/lib/squid/basic_fake_auth",
            "ntlm program /usr/lib/squid/ntlm_fake_auth -v",
            "negotiate program /bin/negotiate_wrapper_auth --ntlm /bin/ntlm_fake_auth --kerberos /bin/helper",
            "basic PROGRAM /usr/bin/perl /lib/squid/basic_fake_auth.pl",
        )
    ),
    [
        "acl users proxy_auth_regex .",
        "auth_param basic program /usr/lib/squid/basic_fake_auth",
        "http_access deny !users",
        "http_access allow all",
    ],
    [
        "auth_param basic program /usr/lib/squid/basic_fake_auth",
        "external_acl_type group %LOGIN /bin/helper",
        "acl staff external group staff",
        "http_access allow staff",
        "http_access deny all",
    ],
    *(
        [
            f"external_acl_type known ttl=60 {program}",
            "acl ok external known",
            "http_access deny !ok",
            "http_access allow all",
        ]
        for program in (
            "concurrency=200 %SRC /usr/lib/squid/ext_session_acl -t 7200",
            "%SRC /usr/lib/squid/ext_time_quota_acl /etc/squid/time_quota",
            "%>a /usr/bin/perl /usr/lib/squid/ext_delayer_acl.pl",
            "%un /usr/lib/squid/ext_session_acl -t 7200",
        )
    ),
]
CLOSED = [
    [
        "auth_param basic program /usr/lib/squid/basic_ncsa_auth /etc/squid/fake_auth",
        "acl users proxy_auth REQUIRED",
        "http_access allow users",
    ],
    [
        "auth_param basic program /usr/lib/squid/basic_fake_auth",
        "external_acl_type who %SRC /bin/helper",
        "acl ok external who",
        "http_access allow ok",
        "http_access deny all",
    ],
    # This helper gets the login, so Squid first requests a password.
    [
        "external_acl_type session concurrency=200 %LOGIN /usr/lib/squid/ext_session_acl -t 7200",
        "acl session external session",
        "http_access deny !session",
        "http_access allow all",
    ],
    [
        "external_acl_type who ttl=60 %SRC %DST /bin/helper",
        "acl ok external who",
        "http_access allow ok",
        "http_access deny all",
    ],
    *(
        [
            f"external_acl_type who {format_codes} /bin/helper",
            "acl ok external who",
            "http_access allow ok",
            "http_access deny all",
        ]
        for format_codes in (
            "%>{Authorization}",
            "%{Authorization}>ha",
            "%>ha{Authorization}",
            "%{Authorization}http::>h",
            "children-max=5 ipv4 quote=shell %DST %>a",
            "%-10>a",
            "%LOGIN",
            "%DST %'SRC",
            "%>A",
            "%>h",
            "%>ha{Cookie:;session}",
            "%ssl::>cert_subject",
            "%USER_CERT_CN",
            "%SRCEUI64",
        )
    ),
    # Each result in the input comes from a helper that gets the client's address or credentials.
    *(
        [
            f"external_acl_type who {first_input} /bin/helper",
            f"external_acl_type group {format_codes} /bin/helper",
            "acl known external who",
            "acl ok external group",
            "http_access allow ok",
            "http_access deny all",
        ]
        for first_input in ("%SRC", "%DST %>ha{Authorization}")
        for format_codes in ("%EXT_USER", "%EXT_TAG", "%ue", "%un", "%{user}note", "%note{user}")
    ),
    *(
        [
            "auth_param basic program /bin/passwords",
            f"external_acl_type group {format_codes} /bin/helper",
            "acl ok external group",
            "acl named ext_user REQUIRED",
            "http_access allow ok",
            "http_access allow named",
            "http_access deny all",
        ]
        for format_codes in ("%LOGIN", "%un", "%credentials", "%note{user}")
    ),
    [
        "external_acl_type who %SRC /bin/helper",
        "acl ok external who",
        "acl named ext_user REQUIRED",
        "http_access deny !ok",
        "http_access allow named",
    ],
    # No helper supplies a user name, so this rule matches no client.
    ["acl named ext_user REQUIRED", "http_access allow named", "http_access deny all"],
    *(
        [*settings, "follow_x_forwarded_for allow all", *acl_lines, "http_access allow ok", "http_access deny all"]
        for settings, acl_lines in (
            (["acl_uses_indirect_client off"], ["acl ok src_as 64496"]),
            (["acl_uses_indirect_client off"], ["acl ok srcdomain .office.example.com"]),
            (["log_uses_indirect_client off"], ["external_acl_type who %SRC /bin/helper", "acl ok external who"]),
            ([], ["acl ok arp 00:11:22:33:44:55"]),
            ([], ["external_acl_type who %SRC %>ha{Authorization} /bin/helper", "acl ok external who"]),
            (
                ["acl_uses_indirect_client off"],
                ["external_acl_type who %SRC /bin/helper", "acl us external who", *OWN_NETWORK_AND_HELPER],
            ),
        )
    ),
]


@pytest.mark.parametrize("texts", OPEN)
def test_helper_that_does_not_identify_clients_is_refused(texts: list[str]) -> None:
    (problem,) = open_proxy_problems(parse(*texts))
    assert "an open proxy" in problem.text
    assert problem.line is not None
    assert not problem.warning


@pytest.mark.parametrize("texts", CLOSED)
def test_helper_that_identifies_clients_is_accepted(texts: list[str]) -> None:
    assert list(open_proxy_problems(parse(*texts))) == []


def test_helper_that_is_named_in_a_file_is_recognized(tmp_path: Path) -> None:
    """Defect: the check accepted a helper that gets no information about the client."""
    name = tmp_path / "helper"
    name.write_text("where\n")
    rules = ("external_acl_type where %DST /bin/helper", f'acl ok external "{name}"', "http_access allow ok")
    assert list(open_proxy_problems(parse(*rules)))


def test_helper_that_gets_no_client_is_named_in_the_problem() -> None:
    """For example, such a helper classifies page addresses, and supplies no user name."""
    texts = [
        "external_acl_type cat %URI /bin/categories",
        "external_acl_type ipu %SRC /bin/users",
        "acl page external cat",
        "acl u external ipu",
        "acl alice ext_user alice",
        "http_access deny page",
        "http_access deny u !all",
    ]
    (found,) = open_proxy_problems(parse(*texts, "http_access allow alice", "http_access deny all"))
    assert "external_acl_type cat gets no information about the client" in str(found)
    assert list(open_proxy_problems(parse(*texts, "http_access allow u alice", "http_access deny all"))) == []
