# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that new connections get a renewed certificate as soon as it is complete. TLS 1.2 and 1.3 run in memory."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from certificates import der, encrypted, replace_file, self_signed

from mptcp_common import renewal
from mptcp_common.certificates import load_certificate
from mptcp_common.renewal import TOLERATED_FAILURES, Renewal, keep_checking

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Pair(NamedTuple):
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    kinds = {"old": "ec", "new": "ec", "rsa": "rsa"}
    return {name: Pair(*self_signed(tmp_path_factory.mktemp(name), kind)) for name, kind in kinds.items()}


@pytest.fixture
def served_pair(tmp_path: Path, pairs: dict[str, Pair]) -> Pair:
    """The files that the server uses. Their content is that of ``old``."""
    pair = Pair(tmp_path / "certificate.pem", tmp_path / "key.pem")
    for file, source in zip(pair, pairs["old"], strict=True):
        replace_file(file, source)
    return pair


class Server:
    """The part of a server that a handshake needs."""

    def __init__(self, pair: Pair) -> None:
        certificate, key = map(str, pair)
        self.renewal = Renewal("server", load_certificate(certificate, key), certificate, key)

    @property
    def context(self) -> ssl.SSLContext:
        return self.renewal.context

    def shown_certificate(self, version: ssl.TLSVersion = VERSIONS[-1], name: str | None = None) -> bytes:
        """Return the certificate that a new client gets, which requests the server of this *name*, or of none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, to_server, server_hostname=name)
        server = self.context.wrap_bio(to_server, to_client, server_side=True)
        for each in (client, server) * 3:
            with suppress(ssl.SSLWantReadError):
                each.do_handshake()
        certificate = client.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


@pytest.mark.parametrize("name", [None, "proxy.lan"])
@pytest.mark.parametrize("version", VERSIONS)
def test_renewed_certificate_is_shown_as_soon_as_its_key_exists(
    served_pair: Pair,
    pairs: dict[str, Pair],
    capsys: pytest.CaptureFixture[str],
    version: ssl.TLSVersion,
    name: str | None,
) -> None:
    """Defect: the files were read only once, at the start, and clients were shown a certificate that expired."""
    old, new = (der(pairs[each].certificate) for each in ("old", "new"))
    server = Server(served_pair)
    server.renewal.check()
    assert server.shown_certificate(version, name) == old
    replace_file(served_pair.certificate, pairs["new"].certificate)
    server.renewal.check()
    assert server.shown_certificate(version, name) == old
    replace_file(served_pair.key, pairs["new"].key)
    assert server.shown_certificate(version, name) == old
    assert capsys.readouterr().err == ""
    server.renewal.check()
    assert server.shown_certificate(version, name) == new
    message = f"server: new connections use the renewed certificate {served_pair.certificate}\n"
    assert capsys.readouterr().err == message
    server.renewal.check()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("version", VERSIONS)
def test_certificate_with_another_kind_of_key_replaces_the_old_one(
    served_pair: Pair, pairs: dict[str, Pair], version: ssl.TLSVersion
) -> None:
    """In one context, OpenSSL would keep both certificates, and show the old one to clients that prefer its key."""
    server = Server(served_pair)
    for file, source in zip(served_pair, pairs["rsa"], strict=True):
        replace_file(file, source)
    server.renewal.check()
    assert server.shown_certificate(version) == der(pairs["rsa"].certificate)


def test_invalid_server_name_of_a_client_prints_nothing(served_pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    """Defect: for each such client, Python printed a traceback and closed the connection."""
    server = Server(served_pair)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        client.wrap_bio(received, sent, server_hostname="proxy.lan").do_handshake()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    to_server.write(sent.read().replace(b"proxy.lan", b"pr\xff\xe9y.lan"))
    with pytest.raises(ssl.SSLWantReadError):
        server.context.wrap_bio(to_server, to_client, server_side=True).do_handshake()
    assert to_client.pending > 100, "the server sent no hello"
    assert capfd.readouterr().err == ""


def test_existing_connection_continues_after_a_renewal(served_pair: Pair, pairs: dict[str, Pair]) -> None:
    server = Server(served_pair)
    context = ssl.create_default_context(cafile=str(served_pair.certificate))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server_end = server.context.wrap_bio(to_server, to_client, server_side=True)
    for each in (client_end, server_end) * 3:
        with suppress(ssl.SSLWantReadError):
            each.do_handshake()
    for file, source in zip(served_pair, pairs["new"], strict=True):
        replace_file(file, source)
    server.renewal.check()
    server_end.write(b"answer")
    assert client_end.read() == b"answer"


def test_files_changed_during_the_start_are_used(served_pair: Pair, pairs: dict[str, Pair]) -> None:
    """The server must notice a change between the first reading of the files and the first check of their times."""
    certificate, key = map(str, served_pair)
    context = load_certificate(certificate, key)
    for file, source in zip(served_pair, pairs["new"], strict=True):
        replace_file(file, source)
    server = Server(served_pair)
    server.renewal = Renewal("server", context, certificate, key)
    assert server.shown_certificate() == der(pairs["new"].certificate)


def test_files_replaced_during_a_check_are_reported_once(
    served_pair: Pair, pairs: dict[str, Pair], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the message was printed twice: when a check found complete files, and again at the next check.

    The next check found that the files had changed since then.
    """
    server = Server(served_pair)
    replace_file(served_pair.certificate, pairs["new"].certificate)

    def load_after_the_key_is_replaced(certificate: str, key: str) -> ssl.SSLContext:
        replace_file(served_pair.key, pairs["new"].key)
        monkeypatch.undo()
        return load_certificate(certificate, key)

    monkeypatch.setattr(renewal, "load_certificate", load_after_the_key_is_replaced)
    for _ in range(3):
        server.renewal.check()
    assert server.shown_certificate() == der(pairs["new"].certificate)
    assert capsys.readouterr().err.count("the renewed certificate") == 1


@pytest.mark.parametrize("missing", ["a key", "a file", "valid content"])
def test_unusable_files_are_reported_once_and_tried_again(
    served_pair: Pair, pairs: dict[str, Pair], capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    server = Server(served_pair)
    if missing == "a file":
        served_pair.key.unlink()
        replace_file(served_pair.certificate, pairs["new"].certificate)
    else:
        replace_file(served_pair.certificate, pairs["new"].certificate if missing == "a key" else Path(__file__))
    for _ in range(TOLERATED_FAILURES - 1):
        server.renewal.check()
    assert capsys.readouterr().err == ""
    server.renewal.check()
    errors = capsys.readouterr().err
    start = "server: the certificate's files have changed, but new connections still use the old certificate: "
    assert errors.startswith(f"{start}{served_pair.certificate} with {served_pair.key} cannot be used: ")
    assert len(errors.splitlines()) == 1
    for _ in range(2 * TOLERATED_FAILURES):
        server.renewal.check()
    assert capsys.readouterr().err == ""
    assert server.shown_certificate() == der(pairs["old"].certificate)
    for file, source in zip(served_pair, pairs["new"], strict=True):
        replace_file(file, source)
    server.renewal.check()
    assert server.shown_certificate() == der(pairs["new"].certificate)
    assert "new connections use" in capsys.readouterr().err


def test_encrypted_key_asks_for_no_password(served_pair: Pair, pairs: dict[str, Pair]) -> None:
    server = Server(served_pair)
    served_pair.key.write_bytes(encrypted(pairs["old"].key))
    server.renewal.check()
    assert server.shown_certificate() == der(pairs["old"].certificate)


def test_files_are_checked_repeatedly(
    served_pair: Pair, pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "CHECK_INTERVAL", 0)
    server = Server(served_pair)

    async def replace_repeatedly() -> None:
        checking = asyncio.create_task(keep_checking(server.renewal))
        async with asyncio.timeout(60):
            for name in ("new", "old", "rsa"):
                for file, source in zip(served_pair, pairs[name], strict=True):
                    replace_file(file, source)
                while server.shown_certificate() != der(pairs[name].certificate):  # noqa: ASYNC110 -- the renewal has no event
                    await asyncio.sleep(0)
        checking.cancel()

    asyncio.run(replace_repeatedly())
