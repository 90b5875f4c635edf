#!/usr/bin/env python3
"""What hosts of scripts/hosts.sh measure; runs on the first of them.

    hosts.sh --latency 20ms ...        hosts_test.py round_trip 20    no round trip is shorter (milliseconds)
    hosts.sh --loss 5% ...             hosts_test.py loss 5           as many packets are lost (percent)
    hosts.sh --hosts 3 --rate 40mbit   hosts_test.py rate 40          no transfer is faster (Mbit/s), all arrive intact
    hosts.sh --hosts 3 --rate 1mbit    hosts_test.py new_rate 40      the same for near hosts with a new rate, by `link`
    hosts.sh ...                       hosts_test.py link             `link` unplugs a host, and plugs it in again

No test fails because the machine is slow. Exit code 1 and a message: a host does not keep its word.
"""

import math
import random
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

HOSTS = Path(__file__).resolve().parents[2] / "scripts/hosts.sh"
PORT = 7000
TRANSFER_BYTES = 4_000_000
# What a near host sends or receives faster than its rate, after a pause.
BURST_BYTES = 256 * 1024


def address(host):
    return (f"10.77.0.{host + 1}", PORT)


def start(host, *role):
    command = ["nsenter", f"--net=/run/netns/host{host}", sys.executable, __file__, "peer", *role]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def start_server(host, *role):
    """Returns when the peer has opened its sockets."""
    if start(host, *role).stdout.readline() != "ready\n":
        sys.exit(f"hosts_test: the peer on host {host} has not started")


def report_ready():
    print("ready", flush=True)


def datagram_socket():
    result = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    result.bind(("", PORT))
    return result


# ---- peers -------------------------------------------------------------------------------------------


def echo():
    datagrams = datagram_socket()
    report_ready()
    while True:
        datagrams.sendto(*datagrams.recvfrom(2000))


def count():
    """For every byte that arrives over TCP: answers with the number of datagrams that came before it."""
    datagrams = datagram_socket()
    datagrams.setblocking(False)
    server = socket.create_server(("", PORT))
    report_ready()
    control = server.accept()[0]
    while control.recv(1):
        num = 0
        try:
            while datagrams.recv(2000):
                num += 1
        except BlockingIOError:
            pass
        control.sendall(bytes([num]))


def content(host):
    return random.Random(host).randbytes(TRANSFER_BYTES)


def serve(host):
    """Sends the content of a host to everyone who connects."""
    data = content(host)
    server = socket.create_server(("", PORT))
    report_ready()
    while True:
        connection = server.accept()[0]
        threading.Thread(target=lambda to=connection: (to.sendall(data), to.close()), daemon=True).start()


def fetch(host):
    with socket.create_connection(address(int(host))) as connection:
        data = connection.makefile("rb").read()
    if data != content(host):
        sys.exit(f"hosts_test: the content of host {host} has arrived changed")


PEERS = {"echo": echo, "count": count, "serve": serve, "fetch": fetch}


# ---- tests -------------------------------------------------------------------------------------------


def echoed(datagrams, number):
    """Sends a datagram to the echo on host 1. Is it back before the time-out?"""
    text = str(number).encode()
    try:
        datagrams.sendto(text, address(1))
        while datagrams.recv(2000) != text:
            pass
    except OSError:
        return False
    return True


def round_trip(milliseconds):
    start_server(1, "echo")
    datagrams = datagram_socket()
    datagrams.settimeout(60)
    shortest = math.inf
    for number in range(50):
        start_time = time.perf_counter()
        if not echoed(datagrams, number):
            sys.exit("hosts_test: no echo")
        shortest = min(shortest, time.perf_counter() - start_time)
    print(f"the shortest of 50 round trips took {shortest * 1e3:.3f} ms")
    if shortest * 1e3 < float(milliseconds):
        sys.exit(f"hosts_test: a round trip took less than {milliseconds} ms")


def loss_bounds(num, probability):
    """Fewer losses than the first number, or more than the second, have odds of 1e-9 at most."""

    def chance(lost):
        ways = math.lgamma(num + 1) - math.lgamma(lost + 1) - math.lgamma(num - lost + 1)
        return math.exp(ways + lost * math.log(probability) + (num - lost) * math.log1p(-probability))

    def end(values):
        tail = 0.0
        for lost in values:
            tail += chance(lost)
            if tail > 0.5e-9:
                return lost
        raise ValueError("no bound")

    return end(range(num + 1)), end(range(num, -1, -1))


def loss(percent):
    start_server(1, "count")
    control = socket.create_connection(address(1))
    datagrams = datagram_socket()
    num_batches, batch = 80, 50
    num_arrived = 0
    for _ in range(num_batches):
        for _ in range(batch):
            datagrams.sendto(b"datagram", address(1))
        # Packets keep their order, so what has not arrived before this byte is lost.
        control.sendall(b"?")
        num_arrived += control.recv(1)[0]
    num = num_batches * batch
    least, most = loss_bounds(num, float(percent) / 100)
    print(f"{num - num_arrived} of {num} datagrams were lost, expected {least} to {most}")
    if not least <= num - num_arrived <= most:
        sys.exit(f"hosts_test: the loss is not {percent} %")


def new_rate(mbit):
    """The hosts have 1 Mbit/s at first."""
    for wrong in ("0mbit", "40", "mbit"):
        if subprocess.run([HOSTS, "link", "1", wrong], stderr=subprocess.DEVNULL).returncode != 1:
            sys.exit(f"hosts_test: the rate {wrong} was taken")
    for host in (0, 1, 2):
        subprocess.check_call([HOSTS, "link", str(host), f"{mbit}mbit"])
    start_time = time.monotonic()
    rate(mbit, BURST_BYTES)
    if (time.monotonic() - start_time) * 1e6 > 2 * TRANSFER_BYTES * 8:
        sys.exit("hosts_test: the hosts have their old rate")


def rate(mbit, burst_bytes=0):
    for host in (0, 1, 2):
        start_server(host, "serve", str(host))
    # A transfer is from the first host to the second.
    time_transfers("one host receives both", [(1, 0), (2, 0)], mbit, burst_bytes)
    time_transfers("one host sends both", [(0, 1), (0, 2)], mbit, burst_bytes)


def time_transfers(what, transfers, mbit, burst_bytes):
    least = (len(transfers) * TRANSFER_BYTES - burst_bytes) * 8 / (float(mbit) * 1e6)
    start_time = time.monotonic()
    processes = [start(receiver, "fetch", str(sender)) for sender, receiver in transfers]
    if any([process.wait() for process in processes]):
        sys.exit("hosts_test: a transfer has failed")
    seconds = time.monotonic() - start_time
    print(f"{what}: {seconds:.3f} s, at least {least:.3f} s expected")
    if seconds < least:
        sys.exit(f"hosts_test: {what} faster than {mbit} Mbit/s")


def link():
    start_server(1, "echo")
    datagrams = datagram_socket()
    datagrams.settimeout(1)
    route = ["ip", "-n", "host1", "route"]
    before = subprocess.check_output(route, text=True)
    if not congestion_control(before):
        sys.exit(f"hosts_test: no congestion control in {before}")
    if not any(echoed(datagrams, number) for number in range(60)):
        sys.exit("hosts_test: no echo")
    subprocess.check_call([HOSTS, "link", "1", "down"])
    if any(echoed(datagrams, number) for number in range(100, 103)):
        sys.exit("hosts_test: an echo from a host without a link")
    subprocess.check_call([HOSTS, "link", "1", "up"])
    if not any(echoed(datagrams, number) for number in range(200, 260)):
        sys.exit("hosts_test: no echo after the link came up")
    after = subprocess.check_output(route, text=True)
    if congestion_control(after) != congestion_control(before):
        sys.exit(f"hosts_test: the route was {before}and is {after}")


def congestion_control(route):
    return re.findall(r"congctl \S+", route)


TESTS = {"round_trip": round_trip, "loss": loss, "rate": rate, "new_rate": new_rate, "link": link}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name == "peer":
        PEERS[arguments[0]](*arguments[1:])
    else:
        TESTS[name](*arguments)
