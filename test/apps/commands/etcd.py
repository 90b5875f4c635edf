"""etcd as children of a test: a cluster whose members are all on this machine."""

import base64
import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request


class Etcd:
    """Runs until the test ends. Members may be killed and started again."""

    def __init__(self, case, size=1):
        sockets = [socket.socket() for _ in range(2 * size)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        addresses = [f"http://127.0.0.1:{free.getsockname()[1]}" for free in sockets]
        for free in sockets:
            free.close()
        self.case = case
        self.clients, self.peers = addresses[:size], addresses[size:]
        self.place = "etcd:" + ",".join(self.clients)
        self.running = {}
        case.addCleanup(lambda: [self.kill(member) for member in list(self.running)])
        for member in range(size):
            self.launch(member)
        self.start()

    def start(self, member=None):
        """Starts a member again; returns when the cluster answers there."""
        if member is not None:
            self.launch(member)
        for address in self.clients if member is None else [self.clients[member]]:
            self.case.wait_until(lambda address=address: self.keys(address) is not None)

    def launch(self, member):
        folder = self.case.folder / f"etcd{member}"
        folder.mkdir(exist_ok=True)
        cluster = ",".join(f"m{i}={peer}" for i, peer in enumerate(self.peers))
        with open(folder / "log", "a", encoding="utf-8") as log:
            self.running[member] = subprocess.Popen(
                ["etcd", "--name", f"m{member}", "--data-dir", "data",
                 "--listen-client-urls", self.clients[member],
                 "--advertise-client-urls", self.clients[member],
                 "--listen-peer-urls", self.peers[member],
                 "--initial-advertise-peer-urls", self.peers[member],
                 "--initial-cluster", cluster],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, member):
        process = self.running.pop(member)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def keys(self, address=None):
        """All keys of runs; None: nobody answers."""
        first, last = [base64.b64encode(text).decode() for text in (b"gossamer/", b"gossamer0")]
        request = urllib.request.Request(
            f"{address or self.clients[0]}/v3/kv/range", method="POST",
            data=json.dumps({"key": first, "range_end": last, "keys_only": True}).encode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=5) as answer:
                pairs = json.load(answer).get("kvs", [])
        except (OSError, urllib.error.URLError):
            return None
        return [base64.b64decode(pair["key"]).decode() for pair in pairs]
