"""PyTorch's process group beside a session, and an address where all ranks reach rank 0."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import struct
import threading

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from .._core import CommError
from ..distributed import Session, current_session, initialize_dist

__all__ = ["begin_process_group", "reachable_place"]

_SIOCGIFADDR = 0x8915
_CONNECT_S = 3.0


def begin_process_group() -> None:
    """Begin PyTorch's process group with the ranks of the session. Collective.

    What asks torch.distributed for its peers then finds them, as torchmetrics, SyncBatchNorm and
    DistributedSampler do: by gloo on processors, and by NCCL where every process has a GPU of its
    own. Does nothing where there is a group already, or one rank alone.
    """
    rank, size = initialize_dist()
    if size == 1 or torch.distributed.is_initialized():
        return
    session = current_session()
    has_own_gpu = torch.cuda.is_available() and (
        torch.cuda.device_count() >= session.local_world_size
    )
    kinds = session.all_gather("nccl" if has_own_gpu else "")
    host, port = reachable_place(session)
    # By itself, PyTorch serves no store at an address under torchrun, whose own store is elsewhere.
    store = TCPStore(host, port, size, is_master=rank == 0, wait_for_workers=False)
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if all(kinds) else "gloo", store=store, rank=rank, world_size=size
    )


def reachable_place(session: Session) -> tuple[str, int]:
    """Return an address and a free port of rank 0's host, which all ranks have reached. Collective.

    A host's name need not lead to it from another host, so every rank tries rank 0's addresses.

    Raises
    ------
    CommError
        If there is none that all ranks reach.
    """
    token = secrets.token_hex(16)
    with contextlib.ExitStack() as scope:
        told: dict[str, object] = {}
        if session.rank == 0:
            is_local = session.local_world_size == session.world_size
            server = scope.enter_context(_Server(token))
            told = {
                "addresses": ["127.0.0.1"] if is_local else _own_addresses(),
                "port": server.port,
                "token": token,
            }
        told = json.loads(session.all_gather(json.dumps(told))[0])
        port = int(str(told["port"]))
        addresses = [str(address) for address in told["addresses"]]  # type: ignore[attr-defined]
        reached = [a for a in addresses if _answers(a, port, str(told["token"]))]
        reached_by = [json.loads(text) for text in session.all_gather(json.dumps(reached))]
    # The port is free on rank 0 before any rank goes on.
    session.barrier()
    for address in addresses:
        if all(address in found for found in reached_by):
            return address, port
    lost = [rank for rank, found in enumerate(reached_by) if not found]
    raise CommError(
        f"PyTorch's processes cannot meet: ranks {lost or list(range(session.world_size))} reach "
        f"rank 0 at none of {addresses}, port {port}: check that no firewall is between, or set "
        "MASTER_ADDR to an address of rank 0's host that all ranks reach"
    )


class _Server:
    """Says a word to every program that connects, which tells this server from other programs."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._is_over = False

    def __enter__(self) -> _Server:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), _CONNECT_S).close()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._is_over:
            with contextlib.suppress(OSError):
                peer, _ = self._socket.accept()
                with peer:
                    peer.sendall(self._token)


def _answers(address: str, port: int, token: str) -> bool:
    try:
        with socket.create_connection((address, port), _CONNECT_S) as peer:
            peer.settimeout(_CONNECT_S)
            found = b""
            while part := peer.recv(len(token)):
                found += part
            return found == token.encode()
    except OSError:
        return False


def _own_addresses() -> list[str]:
    """Return what may lead to this host, the most likely first."""
    found = [os.environ.get("MASTER_ADDR", "")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, asked)
                found.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as lines:
        for line in lines:
            digits, _, _, kind, *_ = line.split()
            if kind == "00":
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    found.append(socket.gethostname())
    is_loopback = [a.startswith("127.") or a in ("", "localhost", "::1") for a in found]
    return list(dict.fromkeys(a for a, b in zip(found, is_loopback, strict=True) if not b))
