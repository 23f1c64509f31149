"""Builds images without Docker: follows deploy/Dockerfile in clean roots by debootstrap, and starts what comes out.

    sudo python deploy/prove_images.py --service index     (or all of them: leave it out)

Only what our Dockerfile uses is understood: FROM, ARG, ENV, COPY, RUN, WORKDIR, USER, ENTRYPOINT; anything else is an
error. The base image is Debian bookworm with its Python 3.11. Of the Triton image the models are built, without the
server, which no package registry has. Needs root, debootstrap and overlay mounts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("recommender", "profiler", "index", "reranker", "ingestion", "edge")
IMAGES = (*SERVICES, "tools", "triton")
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyi", "*.egg-info")  # as .dockerignore
# What the process of the build inherits: proxies and certificates of pip, no more.
PASSED = {name: value for name, value in os.environ.items() if name.startswith("PIP_") and name != "PIP_FIND_LINKS"}


@dataclass
class Stage:
    """A stage of the Dockerfile: its base, its instructions, and what it leaves behind."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)
    root: Path = Path()
    env: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)


def read(dockerfile: Path) -> tuple[dict[str, str], dict[str, Stage]]:
    """The arguments before the first stage, and the stages by name."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE))
    told: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            current = stages[name] = Stage(base)
        elif current is None:
            told.update([rest.split("=", 1)])
        else:
            current.instructions.append((word, rest.strip()))
    return told, stages


def filled(text: str, values: dict[str, str]) -> str:
    """The text with its variables."""
    return re.sub(r"\$\{?(\w+)\}?", lambda name: values.get(name[1], name[0]), text)


@contextmanager
def mounted(stack: list[Path], work: Path) -> Iterator[Path]:
    """The folders as one root, the last one on top and written to."""
    work.mkdir(parents=True, exist_ok=True)
    at, scratch = work / "merged", work / "work"
    for folder in (at, scratch, stack[-1]):
        folder.mkdir(parents=True, exist_ok=True)
    lower = ":".join(str(folder) for folder in reversed(stack[:-1]))
    options = f"lowerdir={lower},upperdir={stack[-1]},workdir={scratch}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(at)], check=True)
    for kind, place in (("proc", at / "proc"), ("tmpfs", at / "dev")):
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", kind, kind, str(place)], check=True)
    # Devices of its own, not the machine's: whatever is removed here is gone here alone.
    for name, minor in (("null", 3), ("zero", 5), ("random", 8), ("urandom", 9)):
        os.mknod(at / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        (at / "dev" / name).chmod(0o666)
    try:
        yield at
    finally:
        for place in (at / "proc", at / "dev", at):
            subprocess.run(["umount", "-l", str(place)], check=True)


class Builder:
    """Builds stages of one image below a folder."""

    def __init__(self, dockerfile: Path, base: Path, folder: Path, arguments: dict[str, str]) -> None:
        self.told, self.stages = read(dockerfile)
        self._base, self._folder, self._arguments = base, folder, arguments

    def build(self, name: str) -> list[Path]:
        """The layers of a stage, the lowest first."""
        stage = self.stages[name]
        if stage.base in self.stages:
            below = self.build(stage.base)
            parent = self.stages[stage.base]
            stage.env, stage.folder, stage.user = dict(parent.env), parent.folder, parent.user
        else:
            below = [self._base]
        stage.root = self._folder / name
        layers = [*below, stage.root]
        if stage.root.exists():
            return layers
        stage.root.mkdir(parents=True)
        values = dict(stage.env)
        for word, rest in stage.instructions:
            print(f"  [{name}] {word} {filled(rest, values)[:110]}", flush=True)
            self._do(stage, layers, word, rest, values)
        return layers

    def _do(self, stage: Stage, layers: list[Path], word: str, rest: str, values: dict[str, str]) -> None:
        if word == "ARG":
            name, _, default = rest.partition("=")
            values[name] = self._arguments.get(name, filled(default, values))
        elif word == "ENV":
            for name, value in re.findall(r"(\w+)=(\S+)", rest):
                if name == "PATH":
                    value = value.replace("$PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
                stage.env[name] = values[name] = filled(value, values)
        elif word == "COPY":
            self._copy(stage, filled(rest, values))
        elif word == "RUN":
            command = re.sub(r"--mount=\S+\s*", "", filled(rest, values))
            run_in(layers, self._folder / "mount", command, {**stage.env, **PASSED}, stage.folder)
        elif word == "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            stage.user = rest
        elif word == "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
        elif word not in ("LABEL", "EXPOSE"):
            raise ValueError(f"the instruction {word} is not understood here")

    def _copy(self, stage: Stage, rest: str) -> None:
        *sources, target = [part for part in rest.split() if not part.startswith("--")]
        origin = re.search(r"--from=(\S+)", rest)
        if origin:
            self.build(origin[1])
        root = self.stages[origin[1]].root if origin else ROOT
        for source in sources:
            there, here = root / source.lstrip("/"), stage.root / target.lstrip("/")
            here.parent.mkdir(parents=True, exist_ok=True)
            if there.is_dir():
                ignore = None if origin else IGNORED
                shutil.copytree(there, here, symlinks=True, dirs_exist_ok=True, ignore=ignore)
            else:
                shutil.copy2(there, here)


def run_in(layers: list[Path], mount: Path, command: str, env: dict[str, str], folder: str) -> None:
    """Runs a command as root in the layers."""
    with mounted(layers, mount) as root:
        for file in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
            if Path(file).exists():
                (root / file[1:]).parent.mkdir(parents=True, exist_ok=True)
                (root / file[1:]).unlink(missing_ok=True)
                shutil.copyfile(file, root / file[1:])
        whole = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", **env}
        told = [f"{name}={value}" for name, value in whole.items()]
        subprocess.run(["chroot", str(root), "env", "-i", *told, "sh", "-ec", f"cd {folder}; {command}"], check=True)


def start(builder: Builder, name: str, layers: list[Path], service: str, mount: Path) -> str:
    """Starts the image as its user, waits until its health port says ready, stops it; how long both took."""
    stage = builder.stages[name]
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        port, health = one.getsockname()[1], two.getsockname()[1]
    prefix = f"CITEWELL_{service.upper()}__"
    env = {
        **stage.env,
        f"{prefix}PORT": str(port),
        f"{prefix}HEALTH_PORT": str(health),
        "HOME": "/tmp",
        "CITEWELL_PROFILER__LEDGER_URL": "sqlite:////tmp/ledger.sqlite",
        "CITEWELL_PROFILER__ENCODER_CACHE": "/tmp/encoder",
        "CITEWELL_INDEX__FOLDER": "/tmp/index",
        "CITEWELL_INGESTION__DATA": "/tmp/log",
    }
    told = [f"{key}={value}" for key, value in env.items()]
    with mounted(layers, mount) as root:
        (root / "tmp").chmod(0o1777)
        command = ["chroot", f"--userspec={stage.user}", str(root), "env", "-i", *told, *stage.entrypoint]
        began = time.monotonic()
        process = subprocess.Popen(command)
        try:
            while not _ready(health):
                if process.poll() is not None or time.monotonic() - began > 300:
                    raise SystemExit(f"{service}: it does not become ready (exit code {process.poll()})")
                time.sleep(0.5)
            ready = time.monotonic() - began
        finally:
            process.terminate()
            code = process.wait(60)
    return f"ready after {ready:.0f} s as user {stage.user}, stopped with code {code}"


def _ready(port: int) -> bool:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="ready"), timeout=2
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def prove(image: str, base: Path, folder: Path) -> str:
    """Builds one image and starts it; what came out."""
    target = {"tools": "tools", "triton": "triton-models"}.get(image, "service")
    shutil.rmtree(folder, ignore_errors=True)
    builder = Builder(ROOT / "deploy" / "Dockerfile", base, folder, {"SERVICE": image})
    layers = builder.build(target)
    size = sum(path.lstat().st_size for layer in layers[1:] for path in layer.rglob("*"))
    if image == "tools":
        command = " ".join([*builder.stages[target].entrypoint, "--version"])
        run_in(layers, folder / "mount", command, builder.stages[target].env, "/app")
        told = "citewell --version answers"
    elif image == "triton":
        told = ", ".join(models(layers[-1] / "models"))
    else:
        told = start(builder, target, layers, image, folder / "mount")
    return f"{told}; {size / 1e6:.0f} MB above the base"


def models(folder: Path) -> list[str]:
    """The exported models with their sizes. SystemExit if one lacks its graph or its configuration."""
    found = []
    for kind in ("gpu", "cpu"):
        model = folder / kind / "davinci"
        files = [path for path in (model / "1").rglob("*") if path.is_file()]
        if not files or not (model / "config.pbtxt").is_file():
            raise SystemExit(f"triton: {kind}/davinci has no graph or no config.pbtxt")
        found.append(f"{kind}/davinci {sum(path.stat().st_size for path in files) / 1e6:.0f} MB")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service", nargs="+", choices=IMAGES, default=IMAGES)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/citewell-images"), help="where to build")
    told = parser.parse_args()
    base = told.folder / "base"
    if os.getuid() != 0 or shutil.which("debootstrap") is None:
        parser.error("needs root and debootstrap (Debian: apt-get install debootstrap)")
    if not (base / "usr/bin/python3").exists():
        packages = "--include=python3,python3-venv,ca-certificates"
        subprocess.run(["debootstrap", "--variant=minbase", packages, "bookworm", str(base)], check=True)
    failed = 0
    for image in told.service:
        print(f"citewell-{image}", flush=True)
        try:
            print(f"PASS citewell-{image}: {prove(image, base, told.folder / image)}", flush=True)
        except (subprocess.CalledProcessError, SystemExit, OSError) as error:
            failed += 1
            print(f"FAIL citewell-{image}: {error}", flush=True)
        finally:
            shutil.rmtree(told.folder / image, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
