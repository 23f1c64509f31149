"""A real Triton server on this machine, from the wheel nvidia-pytriton, with DAVINCI on its Python backend."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

import onnx

from citewell.inference.davinci_graph import joined
from tests.servers.missing import missing
from tests.servers.processes import end, free_ports, tail, wait_until
from tests.tiny_models import tiny_davinci_graphs

_ROOT = Path(__file__).parents[2]
_MODEL = _ROOT / "deploy" / "triton" / "cpu" / "davinci"


def _packages() -> Path:
    environment = Path(os.environ.get("CITEWELL_TRITON_VENV", _ROOT / ".venv-triton"))
    found = list(environment.glob("lib/python3*/site-packages/pytriton/tritonserver"))
    if not found:
        missing(f"no Triton server in {environment}: run `make setup-triton`")
    return found[0].parents[1]


class TritonServer:
    """One server that keeps its repository and ports across restarts; models are loaded on request."""

    def __init__(self, folder: Path) -> None:
        self._packages = _packages()
        self._folder, self._log = folder, folder / "triton.log"
        self._grpc, self._http = free_ports(2)
        self._region = f"citewell-triton-{self._grpc}"
        self._process: subprocess.Popen[bytes] | None = None
        self.repository = folder / "models"
        self._gather_backend()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._grpc}"

    @property
    def grpc_port(self) -> int:
        return self._grpc

    def add_version(self, version: int, seed: int = 0, model: str = "davinci") -> None:
        """Puts a small DAVINCI into the repository."""
        folder = self.repository / model
        (folder / str(version)).mkdir(parents=True)
        config = (_MODEL / "config.pbtxt").read_text().replace('name: "davinci"', f'name: "{model}"')
        (folder / "config.pbtxt").write_text(config)
        shutil.copyfile(_MODEL / "model.py", folder / str(version) / "model.py")
        onnx.save(joined(*tiny_davinci_graphs(seed)), folder / str(version) / "model.onnx")

    def start(self, load: tuple[str, ...] = ("davinci",), seconds: float = 60.0) -> Self:
        """Returns once the server and the models named are ready."""
        packages = self._packages
        libraries = [packages / "nvidia_pytriton.libs", Path(sysconfig.get_config_var("LIBDIR"))]
        environment = {
            # The backend's interpreter finds its packages through the first python3 in PATH.
            "PATH": f"{packages.parents[2] / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self._folder),
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        }
        command = [
            packages / "pytriton/tritonserver/bin/tritonserver",
            f"--model-repository={self.repository}",
            f"--backend-directory={self._folder / 'backends'}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in load),
            "--grpc-address=127.0.0.1",
            f"--grpc-port={self._grpc}",
            "--http-address=127.0.0.1",
            f"--http-port={self._http}",
            "--allow-metrics=false",
            "--backend-config=python,shm-default-byte-size=1048576",
            f"--backend-config=python,shm-region-prefix-name={self._region}",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self._folder, start_new_session=True
            )
        try:
            wait_until(self._ready, "Triton is ready", seconds, every=0.1)
        except TimeoutError as error:
            self.kill()
            raise TimeoutError(f"{error}\n{tail(self._log)}") from None
        return self

    def kill(self) -> None:
        """Kills the server and the backend's processes with SIGKILL."""
        if self._process is not None:
            process, self._process = self._process, None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for region in Path("/dev/shm").glob(f"{self._region}*"):
                region.unlink(missing_ok=True)

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.terminate()
            end(process, self._log)

    def _gather_backend(self) -> None:
        """Copies the backend's stub for this Python into its folder; the wheel keeps the stubs elsewhere."""
        server = self._packages / "pytriton" / "tritonserver"
        python = self._packages.parent.name.removeprefix("python")
        backend = self._folder / "backends" / "python"
        shutil.copytree(server / "backends" / "python", backend)
        shutil.copy(server / "python_backend_stubs" / python / "triton_python_backend_stub", backend)

    def _ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"Triton ended with {self._process.returncode}:\n{tail(self._log)}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/v2/health/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
