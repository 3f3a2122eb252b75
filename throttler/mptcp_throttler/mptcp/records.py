"""What the tracker remembers of a connection and of a subflow: mutable, and never handed out.

Readers get the frozen :class:`~.model.Connection` and :class:`~.model.Subflow`. Those are made when asked for and kept
until something changes, so that a change which nobody reads costs nothing.
"""

from __future__ import annotations

from mptcp_throttler.mptcp.keys import token as token_of
from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Segment, Subflow, SubflowState
from mptcp_throttler.mptcp.options import MpCapable
from mptcp_throttler.mptcp.tracker_table import HALF_OPEN, LIVE


class ConnectionRecord:
    """One connection, from the moment its token is known."""

    __slots__ = (
        "_snapshot",
        "client_key",
        "confirmed",
        "crowded",
        "given_up",
        "holder",
        "opened",
        "proxy_key",
        "seen_from_start",
        "since",
        "subflows",
        "token",
    )

    def __init__(self, token: int, since: float) -> None:
        self.token = token
        self.since = since
        self.seen_from_start = True
        self.opened = False
        """True once a subflow was active: from then on readers see it."""
        self.confirmed = False
        """The kernel had a subflow of it, and it was not given up since."""
        self.given_up = False
        """One side said that it gives the connection up (MP_FASTCLOSE): without a subflow it waits for none."""
        self.holder: bytes | None = None
        """By what its client is known, while it counts as one of those that the kernel has."""
        self.crowded = False
        """There was no room for a subflow, and the kernel was asked whether it still has the others."""
        self.proxy_key: bytes | None = None
        self.client_key: bytes | None = None
        self.subflows: list[SubflowRecord] = []
        """Oldest first; few, so that a list is enough."""
        self._snapshot: Connection | None = None

    def has_live(self) -> bool:
        return any(subflow.state in LIVE for subflow in self.subflows)

    def oldest_half_open(self) -> SubflowRecord | None:
        return next((subflow for subflow in self.subflows if subflow.state in HALF_OPEN), None)

    def oldest_unconfirmed(self) -> SubflowRecord | None:
        return next((each for each in self.subflows if each.state in LIVE and not each.known_to_kernel), None)

    def learn_keys(self, option: MpCapable) -> bool:
        """Take both keys from a third ACK; False if the proxy's is not the one that the token was made from.

        No other segment carries the client's key. A sender that names the proxy's key beside it has read the handshake.
        """
        client_key, proxy_key = option.sender_key, option.receiver_key
        if client_key is None or proxy_key is None:
            return False
        if proxy_key != self.proxy_key and (self.proxy_key is not None or token_of(proxy_key) != self.token):
            return False
        if self.client_key is not None and self.client_key != client_key:
            return False
        self.proxy_key, self.client_key = proxy_key, client_key
        return True

    def changed(self) -> None:
        self._snapshot = None

    def snapshot(self) -> Connection:
        if self._snapshot is None:
            subflows = tuple(subflow.snapshot() for subflow in self.subflows)
            self._snapshot = Connection(self.token, subflows, self.since, self.seen_from_start)
        return self._snapshot


class SubflowRecord:
    """One subflow, from its first segment or kernel record on."""

    __slots__ = (
        "_snapshot",
        "backup",
        "client_fin",
        "client_sequence",
        "connection",
        "early_ack",
        "four_tuple",
        "initial",
        "interface",
        "known_to_kernel",
        "last_seen",
        "listed",
        "local_id",
        "nonce_client",
        "nonce_proxy",
        "prioritised",
        "proof",
        "proxy_fin",
        "proxy_sequence",
        "remote_id",
        "since",
        "state",
        "successor",
        "syn_seen",
    )

    def __init__(self, four_tuple: FourTuple, initial: bool, time: float) -> None:
        self.four_tuple = four_tuple
        self.initial = initial
        self.state: SubflowState | None = None
        """None until its first signal."""
        self.connection: ConnectionRecord | None = None
        """None until the token is known."""
        self.local_id: int | None = 0 if initial else None
        self.remote_id: int | None = 0 if initial else None
        self.backup = False
        self.prioritised: float | None = None
        """When the kernel said what ``backup`` is; None: it is from the SYN."""
        self.interface: str | None = None
        self.since = time
        self.last_seen = time
        self.listed = 0
        """Number of the latest dump of the kernel's sockets that listed it."""
        self.syn_seen = False
        self.client_sequence: int | None = None
        """Sequence number of the client's SYN: it distinguishes a retransmission from a new attempt."""
        self.proxy_sequence: int | None = None
        self.nonce_client: bytes | None = None
        self.nonce_proxy: bytes | None = None
        self.proof: tuple[int, bytes] | None = None
        """Acknowledgment number and HMAC of a join's third ACK that could not be checked yet."""
        self.early_ack: tuple[int, MpCapable] | None = None
        """Acknowledgment number and option of an MP_CAPABLE third ACK that was read before the SYN/ACK."""
        self.client_fin = False
        self.proxy_fin = False
        self.known_to_kernel = False
        """The kernel has it, and alone can end it."""
        self.successor: Segment | None = None
        """A later SYN on the same four-tuple. Only the proxy's answer to it ends this subflow: anyone can send one."""
        self._snapshot: Subflow | None = None

    def touch(self, time: float) -> None:
        """Note that the subflow was seen. That alone is no reason to make a snapshot anew."""
        if time > self.last_seen:
            self.last_seen = time

    def agrees_with(self, entry: KernelSubflow) -> bool:
        """Return whether *entry*, a socket of this four-tuple, brings nothing new but that it is still there."""
        return (
            self.state is SubflowState.ACTIVE
            and self.known_to_kernel
            and self.prioritised is not None
            and self.connection is not None
            and self.connection.token == entry.token
            and self.initial is entry.initial
            and self.backup is entry.backup
            and (entry.remote_id is None or entry.remote_id == self.remote_id)
            and (entry.local_id is None or entry.local_id == self.local_id)
            and not self.client_fin
            and not self.proxy_fin
        )

    def changed(self) -> None:
        self._snapshot = None
        if self.connection is not None:
            self.connection.changed()

    def snapshot(self) -> Subflow:
        if self._snapshot is None:
            assert self.state is not None
            self._snapshot = Subflow(
                self.four_tuple,
                self.state,
                self.initial,
                self.local_id,
                self.remote_id,
                self.backup,
                self.interface,
                self.since,
                self.known_to_kernel,
            )
        return self._snapshot
