"""A real Kafka broker on this machine."""

from __future__ import annotations

import base64
import os
import resource
import secrets
import shutil
import socket
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from tests.servers.missing import missing
from tests.servers.processes import end, free_ports, tail, wait_until

_DEPLOY = Path(__file__).parents[2] / "deploy" / "kafka"
_DEFAULT_LIBS = Path(__file__).parents[2] / ".cache" / "kafka-libs"

# A small heap and only the first JIT compiler, so that a short-lived broker starts fast.
_JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def _libraries() -> Path:
    libs = Path(os.environ.get("CITEWELL_KAFKA_LIBS", _DEFAULT_LIBS))
    if shutil.which("java") is None:
        missing("a Kafka broker needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)")
    if not any(libs.glob("kafka_2.13-*.jar")):
        missing(f"no Kafka jars in {libs}: run `make setup-kafka` (needs Maven), or set CITEWELL_KAFKA_LIBS")
    if shutil.which("openssl") is None:
        missing("the broker's TLS listener needs a certificate: install openssl")
    return libs


class KafkaBroker:
    """One broker that keeps its folder and ports across restarts."""

    user = "citewell"

    def __init__(
        self,
        folder: Path,
        advertised_link_port: int | None = None,
        host: str = "127.0.0.1",
        inside: Sequence[str] = (),
    ) -> None:
        """`inside` is the command that runs a program on that host, where it is not this one."""
        self._libs = _libraries()
        self._host, self._inside = host, inside
        self._folder = folder
        self._log = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.password = secrets.token_hex(8)
        self._plain, self.link_port, self._secure, controller = free_ports(4)
        folder.mkdir(parents=True, exist_ok=True)
        self._issue_certificate()
        template = (_DEPLOY / "server.properties").read_text()
        for name, value in {
            "host": host,
            "plain_port": self._plain,
            "link_port": self.link_port,
            "advertised_link_port": advertised_link_port or self.link_port,
            "secure_port": self._secure,
            "controller_port": controller,
            "folder": folder,
            "password": self.password,
        }.items():
            template = template.replace(f"{{{name}}}", str(value))
        self._properties = folder / "server.properties"
        self._properties.write_text(template)

    @property
    def address(self) -> str:
        return f"{self._host}:{self._plain}"

    @property
    def secure_address(self) -> str:
        """TLS with the certificate authority in `ca`, then `user` and `password`."""
        return f"{self._host}:{self._secure}"

    @property
    def ca(self) -> Path:
        return self._folder / "certificate.pem"

    def start(self, seconds: float = 60.0) -> Self:
        """Returns once the broker answers; the first start formats its folder."""
        if not (self._folder / "data" / "meta.properties").exists():
            self._format()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._java(),
                    f"-Dlog4j2.configurationFile={_DEPLOY / 'log4j2.xml'}",
                    "kafka.Kafka",
                    str(self._properties),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(self._answers, "the broker answers", seconds, every=0.1)
        except TimeoutError as error:
            self.kill()
            raise TimeoutError(f"{error}\n{tail(self._log)}") from None
        return self

    def kill(self) -> None:
        """Kills the broker with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def fill_disk(self) -> None:
        """Simulates a full disk: no file of the process may grow any more. Lasts until the process ends."""
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (0, 0))

    def ended(self) -> bool:
        """Whether the process ended without being stopped."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.terminate()
            end(process, self._log)

    def _java(self) -> list[str]:
        return [*self._inside, "java", *_JVM, "-cp", f"{self._libs}/*"]

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*self._java(), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--standalone"]
        done = subprocess.run([*command, "-c", str(self._properties)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the broker's folder could not be formatted: {done.stderr or done.stdout}")

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"the broker ended with {self._process.returncode}:\n{tail(self._log)}")
        try:
            socket.create_connection((self._host, self._plain), timeout=1).close()
            admin = KafkaAdminClient(bootstrap_servers=self.address, bootstrap_timeout_ms=2000, request_timeout_ms=5000)
        except (OSError, KafkaError):
            return False
        try:
            admin.list_topics()
        except KafkaError:
            return False
        finally:
            admin.close()
        return True

    def _issue_certificate(self) -> None:
        key, certificate = self._folder / "key.pem", self.ca
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", f"subjectAltName=IP:{self._host},DNS:localhost", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        (self._folder / "broker.pem").write_text(key.read_text() + certificate.read_text())
