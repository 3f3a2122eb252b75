# SPDX-License-Identifier: GPL-2.0-or-later
"""The set-up of the attack tests: a client for the corpora, a recording origin, and forbidden services."""

from __future__ import annotations

import base64
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from corpora.conformance import ANSWERS
from corpora.open_proxy import NAMES
from corpora.row import CLOSED, INNER, ORIGIN, TUNNEL, WEB, Row
from corpora.strict import Ambiguous, Request, requests

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Proxy, start_proxy, wait_until

PROGRAMS = Path(__file__).parent / "attack_programs.py"
OTHER_PORTS = (22, 25, 444)
"""Ports of the origin that no client may reach."""


@dataclass(frozen=True, slots=True)
class Answer:
    """All answers that one client received."""

    statuses: tuple[int, ...]
    """Statuses of all complete final answers."""
    raw: bytes

    @property
    def first_status(self) -> int:
        return self.statuses[0] if self.statuses else CLOSED


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of all requests of a corpus."""

    failed: dict[str, str]
    """For each row with a wrong result: the reason."""
    forbidden_connections: tuple[str, ...]
    """Connections to services that no client may reach."""
    ambiguous: tuple[str, ...]
    """Requests at the origin that have more than one meaning."""
    statuses: dict[str, int]
    """Status of the first final answer of each row."""

    def assert_no_fault(self) -> None:
        assert self.forbidden_connections == ()
        assert not self.ambiguous, "\n".join(self.ambiguous)
        assert not self.failed, "\n".join(f"{row}: {reason}" for row, reason in self.failed.items())


@dataclass
class Scene:
    """The client, the origin and the services; a test may start the proxy several times."""

    client: LiveNode
    proxy: LiveNode
    origin: LiveNode
    directory: Path

    @classmethod
    def start(cls, testbed: Testbed) -> Scene:
        scene = cls(testbed["client"], testbed["proxy"], testbed["origin"], testbed.directory)
        (scene.directory / "names.json").write_text(json.dumps(NAMES))
        encoded = {name: base64.b64encode(answer).decode() for name, answer in ANSWERS.items()}
        (scene.directory / "answers.json").write_text(json.dumps(encoded))
        origin, files = scene.origin, (scene.directory / "answers.json", scene.directory / "origin.record")
        web = origin.popen(program_command("web", *files, WEB), name="web")
        tunnel = origin.popen(program_command("echo", scene.directory / "tunnel.record", TUNNEL), name="tunnel")
        other_services = origin.popen(
            program_command("echo", scene.directory / "others.record", *OTHER_PORTS), name="others"
        )
        inner = scene.proxy.popen(
            program_command("echo", scene.directory / "inner.record", INNER, TUNNEL, 80), name="inner"
        )
        for node, port, process in (
            (origin, WEB, web),
            (origin, TUNNEL, tunnel),
            (origin, OTHER_PORTS[-1], other_services),
            (scene.proxy, 80, inner),
        ):
            wait_until(partial(_listens, node, port), f"port {port} listens", process=process)
        return scene

    @contextmanager
    def name_server(self) -> Iterator[None]:
        """Run a new name server, in which each name begins with its first list of addresses."""
        server = self.origin.popen(program_command("name-server", self.directory / "names.json"), name="names")
        try:
            yield
        finally:
            server.stop(60)

    @contextmanager
    def running_proxy(self, config: Path) -> Iterator[Proxy]:
        """Run a proxy and a new name server."""
        with self.name_server():
            proxy = start_proxy(self.proxy, config)
            try:
                yield proxy
            finally:
                proxy.process.stop(60)
                wait_until(lambda: not _listens(self.proxy, PROXY_PORT), "the port is free")

    @contextmanager
    def running_relay(self) -> Iterator[None]:
        """Run a relay that forwards all bytes, in place of the proxy."""
        relay = self.proxy.popen(program_command("relay", PROXY_PORT, ORIGIN, WEB), name="relay")
        wait_until(partial(_listens, self.proxy, PROXY_PORT), "the relay listens", process=relay)
        try:
            yield
        finally:
            relay.stop(60)

    def send(self, rows: Sequence[Row], wait_for_all: bool) -> dict[str, Answer]:
        """Send each row on a separate connection, many in parallel. With *wait_for_all*, wait for all required
        answers."""
        encoded = [
            {
                "id": row.id,
                "data": base64.b64encode(row.data).decode(),
                "answers": row.answers,
                "ends": row.ends,
                "may_get_no_answer": not wait_for_all or CLOSED in row.status,
                "has": base64.b64encode(row.has).decode(),
            }
            for row in rows
        ]
        path = self.directory / "rows.json"
        path.write_text(json.dumps(encoded))
        output = self.client.run(
            program_command("send-rows", path, self.proxy.service_address(), PROXY_PORT), timeout=900
        )
        return {
            name: Answer(tuple(answer["statuses"]), base64.b64decode(answer["raw"]))
            for name, answer in json.loads(output.stdout).items()
        }

    def try_all(self, rows: Sequence[Row], wait_for_all: bool = True) -> Outcome:
        """Send all rows and check the answers. *wait_for_all* is False if some rows are known to get no answer."""
        records = [self.directory / f"{name}.record" for name in ("origin", "inner", "others", "tunnel")]
        sizes_before = [len(path.read_bytes()) if path.exists() else 0 for path in records]
        answers = self.send(rows, wait_for_all)
        new_texts = [
            path.read_bytes()[size:].decode() if path.exists() else ""
            for path, size in zip(records, sizes_before, strict=True)
        ]
        connections: dict[str, bytes] = defaultdict(bytes)
        for line in new_texts[0].splitlines():
            name, data = json.loads(line)
            connections[name] += base64.b64decode(data)
        arrived: list[Request] = []
        ambiguous = []
        for data in connections.values():
            try:
                arrived.extend(requests(data))
            except Ambiguous as error:
                ambiguous.append(str(error))
        ambiguous += [str(each.target) for each in arrived if each.target.startswith(b"/inner")]
        failed = {}
        for row in rows:
            if reason := failure_reason(row, answers[row.id], arrived):
                failed[row.id] = reason
        forbidden_connections = tuple(line for text in new_texts[1:3] for line in text.splitlines())
        return Outcome(
            failed, forbidden_connections, tuple(ambiguous), {row.id: answers[row.id].first_status for row in rows}
        )


def _listens(node: LiveNode, port: int) -> bool:
    return bool(node.run(["ss", "-Htln", "sport", "=", f":{port}"]).stdout)


def program_command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-I", str(PROGRAMS), name, *map(str, arguments)]


def failure_reason(row: Row, answer: Answer, arrived: Sequence[Request]) -> str:
    """Return the reason why an answer is wrong, or "" if it is right."""
    name = row.id.encode()
    own_requests = [each for each in arrived if name in each.target.replace(b"/", b" ").replace(b"?", b" ").split()]
    if answer.first_status not in row.status:
        return f"status {answer.first_status}, not {sorted(row.status)}: {answer.raw[:120]!r}"
    if row.answers > len(answer.statuses) and CLOSED not in row.status:
        return f"{len(answer.statuses)} answers, not {row.answers}"
    # If the end of the first request is ambiguous, the rest may be an invalid request and get its own 400.
    rest_is_refused = row.reaches is None and answer.statuses[1:] and answer.statuses[-1] == 400
    if len(answer.statuses) - bool(rest_is_refused) > row.max_answers:
        return f"{len(answer.statuses)} answers, not at most {row.max_answers}: {answer.statuses}"
    if row.reaches is not None and len(own_requests) != row.reaches:
        return f"the origin got the request {len(own_requests)} times, not {row.reaches}: {answer.raw[:80]!r}"
    if row.has not in answer.raw:
        return f"the client does not get {row.has!r}: {answer.raw[:300]!r}"
    if row.lacks and row.lacks in answer.raw:
        return f"the client gets {row.lacks!r}: {answer.raw[:300]!r}"
    origin_has = row.origin_has.replace(b"{id}", name)
    for each in own_requests:
        if origin_has not in each.raw:
            return f"the origin does not get {origin_has!r}: {each.raw[:300]!r}"
        if row.origin_lacks and row.origin_lacks in each.raw:
            return f"the origin gets {row.origin_lacks!r}: {each.raw[:300]!r}"
    return ""
