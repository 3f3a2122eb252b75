# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with real programs on a home's device: each protocol passes through the gateway's forwarder."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mptcp_lab.testbed import RELAY, LiveNode, Testbed, home
from mptcp_lab.testbed.home import SITE
from mptcp_lab.testbed.services import Origin, accepts, python_command, start_origin, wait_until

pytestmark = pytest.mark.kernel
FILES = {"small.bin": 100_000, **{f"segment{number}": 1_000_000 for number in range(8)}}
SERVERS = """
import base64, hashlib, http.server, socketserver, threading
class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_PUT(self):
        remaining, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        while remaining > 0 and (chunk := self.rfile.read1(min(remaining, 65536))):
            remaining -= len(chunk); digest.update(chunk)
        answer = digest.hexdigest().encode()
        self.send_response(200); self.send_header("Content-Length", str(len(answer))); self.end_headers()
        self.wfile.write(answer)
    def do_GET(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accepted = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write(f"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                         f"Sec-WebSocket-Accept: {accepted}\\r\\n\\r\\n".encode())
        self.wfile.write(b"\\x81" + bytes([5]) + b"hello")
        self.close_connection = True
class Mail(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 here ESMTP\\r\\n")
        while line := self.rfile.readline():
            self.wfile.write(b"221 bye\\r\\n" if line.startswith(b"QUIT") else b"250 fine\\r\\n")
socketserver.ThreadingTCPServer.allow_reuse_address = True
threading.Thread(target=http.server.ThreadingHTTPServer(("", 8081), Sink).serve_forever, daemon=True).start()
socketserver.ThreadingTCPServer(("", 25), Mail).serve_forever()
"""
HTTP2 = """
const fs = require("fs");
const pem = fs.readFileSync(process.argv[1]);
const server = require("http2").createSecureServer({ key: pem, cert: pem });
server.on("stream", (stream) => { stream.respond({ ":status": 200 }); stream.end("over HTTP/2"); });
server.listen(8443, "0.0.0.0");
"""
WEBSOCKET = f"""
import socket
with socket.create_connection(("{SITE}", 8081), 10) as connection:
    connection.sendall(b"GET /chat HTTP/1.1\\r\\nHost: x\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                 b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\nSec-WebSocket-Version: 13\\r\\n\\r\\n")
    data = b""
    while chunk := connection.recv(1000):
        data += chunk
print(b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in data and data[-5:])
"""
MAIL = f"""
import smtplib
with smtplib.SMTP("{SITE}", 25, timeout=10) as mail:
    print(mail.noop())
"""


@dataclass
class Site:
    testbed: Testbed
    origin: Origin

    @property
    def device(self) -> LiveNode:
        return self.testbed["client"]

    def output(self, *argv: str) -> str:
        return self.device.run(argv, timeout=60).stdout


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Iterator[Site]:
    require("squid", "apache2", "curl", "openssl", "nftables", "ssh", "sshd", "git", "node")
    testbed = make_module_testbed(RELAY)
    relay, origin = testbed["relay"], testbed["origin"]
    home.add_site_addresses(testbed)
    home.start_parent(testbed["proxy"])
    apache = start_origin(origin, FILES, ports=(80,), tls_port=443)
    home.wait_for_site(testbed)
    origin.popen(python_command(SERVERS), name="servers")
    origin.popen(["node", "-e", HTTP2, str(apache.directory / "tls.pem")], name="http2")
    _serve_ssh(origin, testbed["client"])
    _serve_git(origin)
    _serve_packages(origin, apache.directory / "htdocs")
    wait_until(lambda: accepts(origin, SITE, 22, 25, 8081, 8443, 9418), "all servers accept connections")
    settings = home.write_settings(relay, testbed["proxy"].service_address())
    with home.gateway(relay, settings), home.forwarder(relay, settings):
        yield Site(testbed, apache)


def _serve_ssh(origin: LiveNode, device: LiveNode) -> None:
    host_key, key = origin.directory / "host-key", device.directory / "key"
    for each in (host_key, key):
        origin.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(each)])
    settings = f"HostKey {host_key}\nAuthorizedKeysFile {key}.pub\n"
    settings += "StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n"
    Path("/run/sshd").mkdir(exist_ok=True)
    origin.popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(origin.write("sshd.conf", settings))], name="sshd")


def _serve_git(origin: LiveNode) -> None:
    base = origin.directory / "git"
    script = f"""
git init -q -b main {base}/work && cd {base}/work && echo content >file && git add file
git -c user.name=x -c user.email=x@example.net commit -qm first && git clone -q --bare {base}/work {base}/public.git
"""
    origin.run(["sh", "-ec", script])
    origin.popen(["git", "daemon", f"--base-path={base}", "--export-all", "--reuseaddr", str(base)], name="git")


def _serve_packages(origin: LiveNode, htdocs: Path) -> None:
    """Serve a repository of one package, which apt(8) accepts without a signature."""
    (htdocs / "apt").mkdir()
    size = (htdocs / "small.bin").stat().st_size
    digest = hashlib.sha256((htdocs / "small.bin").read_bytes()).hexdigest()
    shutil.copy(htdocs / "small.bin", htdocs / "apt/here.deb")
    text = "Package: here\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.net>\nDescription: x\n"
    (htdocs / "apt/Packages").write_text(f"{text}Filename: ./here.deb\nSize: {size}\nSHA256: {digest}\n")


def curl_works(site: Site) -> bool:
    return all("200" in site.output("curl", "-sSk", "-o", "/dev/null", "-w", "%{http_code}", f"{url}://{SITE}/small.bin")
               for url in ("http", "https"))  # fmt: skip


def http2_works(site: Site) -> bool:
    return site.output("curl", "-sSk", "--http2", "-w", " %{http_version}", f"https://{SITE}:8443/") == "over HTTP/2 2"


def websocket_works(site: Site) -> bool:
    return site.output(*python_command(WEBSOCKET)).strip() == "b'hello'"


def ssh_works(site: Site) -> bool:
    options = ("-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oConnectTimeout=10", "-oBatchMode=yes")
    return (
        site.output("ssh", *options, "-i", str(site.device.directory / "key"), f"root@{SITE}", "echo over ssh")
        == "over ssh\n"
    )


def smtp_works(site: Site) -> bool:
    return "fine" in site.output(*python_command(MAIL))


def git_works(site: Site) -> bool:
    target = site.device.directory / "cloned"
    site.output("git", "clone", "-q", f"git://{SITE}/public.git", str(target))
    return (target / "file").read_text() == "content\n"


def apt_works(site: Site) -> bool:
    directory = site.device.directory / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True)
    source = site.device.write("apt/sources.list", f"deb [trusted=yes] http://{SITE}/apt ./\n")
    options = [
        *("-qq", f"-oDir::Etc::SourceList={source}", "-oDir::Etc::SourceParts=-", f"-oDir::State={directory}/state"),
        *(
            f"-oDir::Cache={directory}/cache",
            "-oAPT::Sandbox::User=root",
            "-oAcquire::Languages=none",
            "-oAPT::Architecture=amd64",
        ),
    ]
    site.output("apt-get", *options, "update")
    site.output("sh", "-ec", f"cd {directory} && apt-get {' '.join(options)} download here")
    return (directory / "here_1_all.deb").stat().st_size == FILES["small.bin"]


def segments_work(site: Site) -> bool:
    """Download a video: one connection with several requests."""
    urls = [f"https://{SITE}/segment{number}" for number in range(8)]
    output_options = [word for _ in urls for word in ("-o", "/dev/null")]
    output_format = "%{num_connects} %{size_download}\\n"
    output = site.output("curl", "-sSk", "--http1.1", "-w", output_format, *output_options, *urls).split("\n")[:-1]
    return output == ["1 1000000", *["0 1000000"] * 7]


def upload_works(site: Site) -> bool:
    body = site.device.directory / "body"
    body.write_bytes(bytes(range(256)) * 20_000)
    output = site.output("curl", "-sS", "-T", str(body), f"http://{SITE}:8081/x")
    return output == hashlib.sha256(body.read_bytes()).hexdigest()


PROTOCOLS = (
    curl_works,
    http2_works,
    websocket_works,
    ssh_works,
    smtp_works,
    git_works,
    apt_works,
    segments_work,
    upload_works,
)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda it: it.__name__)
def test_protocol_passes_through_the_forwarder(site: Site, protocol: Callable[[Site], bool]) -> None:
    before = home.forwarder_status(site.testbed["relay"])
    assert protocol(site)
    wait_until(
        lambda: home.forwarder_status(site.testbed["relay"])["connections"] > before["connections"],
        "the connection was forwarded",
    )
    assert home.forwarder_status(site.testbed["relay"])["direct"] == 0, "a connection bypassed the parent"
