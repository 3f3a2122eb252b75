"""The command line."""

from __future__ import annotations

import pytest

from mptcp_proxy.cli import main


@pytest.mark.parametrize("verb", ["run", "check", "doctor"])
def test_a_bad_name_is_refused_before_anything_else(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--service-name", "a-b"]) == 1
    answer = capsys.readouterr()
    assert answer.out == ""
    assert answer.err.startswith("mptcp-proxy: --service-name a-b: ")


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(command in text for command in ("run", "check", "doctor", "build-shim"))


@pytest.mark.parametrize("name", ["", "x" * 16, "a b", "bbr;", "b/r"])
def test_what_cannot_name_a_congestion_control(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--congestion-control", name])
    assert ended.value.code == 2
    assert "allowed: keep, or a name from sysctl" in capsys.readouterr().err
