#!/usr/bin/env python3
"""What hosts of scripts/hosts.sh measure; runs on the first of them.

    hosts.sh ...    hosts_test.py link    `link` unplugs a host, and plugs it in again

No test fails because the machine is slow. Exit code 1 and a message: a host does not keep its word.
"""

import re
import socket
import subprocess
import sys
from pathlib import Path

HOSTS = Path(__file__).resolve().parents[2] / "scripts/hosts.sh"
PORT = 7000


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


PEERS = {"echo": echo}


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


TESTS = {"link": link}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name == "peer":
        PEERS[arguments[0]](*arguments[1:])
    else:
        TESTS[name](*arguments)
