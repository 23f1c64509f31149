"""Several hosts on one machine: network namespaces on one switch, whose links can be cut.

Run the program that makes them with the command `own_network()` in front: it then has a network and a process tree of
its own, which end with it. The switch is its own network card; it sees no network of the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

# Addresses for tests between hosts (RFC 2544). They exist only in these namespaces.
_SUBNET = "198.18.0"
_NOBODY = "02:00:00:00:00:99"
"""A hardware address that no host has: what is sent to it is lost."""


def own_network() -> list[str]:
    """The command in front of a program that makes hosts. Whatever the program leaves behind ends with it."""
    return ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


@cache
def hosts_possible() -> bool:
    """Whether this machine lets us make network namespaces: it needs Linux, root and iproute2."""
    if os.getuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    tried = "mount -t tmpfs tmpfs /run/netns && ip netns add tried && ip link add name tried type bridge"
    command = [*own_network(), "sh", "-c", f"mkdir -p /run/netns && {tried}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True, slots=True)
class Host:
    """One host: a namespace with one network card."""

    name: str
    number: int

    @property
    def address(self) -> str:
        return f"{_SUBNET}.{self.number}"

    @property
    def port(self) -> str:
        """The name of the switch's port that leads to it."""
        return f"port{self.number}"

    @property
    def inside(self) -> list[str]:
        """The command in front of a program that runs on this host."""
        return ["ip", "netns", "exec", self.name] if self.number > 1 else []

    @property
    def card(self) -> str:
        return "card" if self.number > 1 else "switch"


class Network:
    """Hosts on a switch. The caller of this class is a host too, named `client`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.hosts = {name: Host(name, number) for number, name in enumerate(("client", *names), start=1)}
        os.makedirs("/run/netns", exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")  # names of ours alone
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "name", "switch", "type", "bridge")
        _ip("address", "add", f"{self.hosts['client'].address}/24", "dev", "switch")
        _ip("link", "set", "switch", "up")
        for name in names:
            self._plug_in(self.hosts[name])

    def _plug_in(self, host: Host) -> None:
        _ip("netns", "add", host.name)
        _ip("link", "add", "name", host.port, "type", "veth", "peer", "name", host.card, "netns", host.name)
        _ip("link", "set", host.port, "master", "switch", "up")
        for command in ("link set lo up", f"address add {host.address}/24 dev {host.card}", f"link set {host.card} up"):
            _run(*host.inside, "ip", *command.split())

    @contextmanager
    def unplugged(self, name: str) -> Iterator[None]:
        """The host has no link to any other until the end of the block."""
        port = self.hosts[name].port
        _ip("link", "set", port, "down")
        try:
            yield
        finally:
            _ip("link", "set", port, "up")

    @contextmanager
    def slow(self, name: str, rate: str = "256kbit") -> Iterator[None]:
        """What the host receives comes at this rate until the end of the block."""
        port = self.hosts[name].port
        _run("tc", "qdisc", "add", "dev", port, "root", "tbf", "rate", rate, "burst", "16kb", "latency", "2s")
        try:
            yield
        finally:
            _run("tc", "qdisc", "del", "dev", port, "root")

    @contextmanager
    def lost(self, source: str, target: str) -> Iterator[None]:
        """What the source sends to the target is lost, unheard, until the end of the block."""
        sender, receiver = self.hosts[source], self.hosts[target]
        told = (receiver.address, "dev", sender.card)
        _run(*sender.inside, "ip", "neigh", "replace", *told, "lladdr", _NOBODY, "nud", "permanent")
        try:
            yield
        finally:
            _run(*sender.inside, "ip", "neigh", "del", *told)

    @contextmanager
    def prohibited(self, source: str, target: str) -> Iterator[None]:
        """The source is told at once that the target cannot be reached, until the end of the block."""
        sender, receiver = self.hosts[source], self.hosts[target]
        _run(*sender.inside, "ip", "route", "add", "prohibit", f"{receiver.address}/32")
        try:
            yield
        finally:
            _run(*sender.inside, "ip", "route", "del", "prohibit", f"{receiver.address}/32")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
