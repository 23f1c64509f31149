"""`citewell service-config`: what every client should give its channel."""

from __future__ import annotations

import json

import typer

from citewell.runtime.channels import SERVICE_CONFIG


def service_config() -> None:
    """Prints the gRPC service config (JSON): round robin, and retries of UNAVAILABLE on idempotent methods."""
    typer.echo(json.dumps(SERVICE_CONFIG, indent=2))
