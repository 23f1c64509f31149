"""The window encoder: a vector of the few words around the marker, for the second phase of a HYBRID search.

It is ENC1, trained on so that the vector of a query's window lies near the profiles of what is cited there. Profiles
stay as they are, so it needs no new view; but it belongs to the ENC1 whose profiles it was trained on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citewell.inference.sessions import Precision
from citewell.profiler.encoder import GraphEncoder, load_encoder
from citewell.profiler.encoder_files import EncoderUnusable
from citewell.profiler.profiles import Vectors

PACKAGED = "packaged"
OFF = "none"
PACKAGED_FOLDER = Path(__file__).parent / "window_model"
DESCRIPTION = "window.json"
"""The file that says for which encoder a window encoder was made, and how long its windows are."""
TOKENS = 64
"""Tokens of a window, the special ones included."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowEncoder:
    """An encoder for windows, and the `model_hash` of the ENC1 that it was trained beside."""

    encoder: GraphEncoder
    made_for: str
    folder: Path

    @property
    def hash(self) -> str:
        """Changes with the weights and the length of the window."""
        return self.encoder.model_hash

    def encode(self, context: str) -> Vectors:
        """The vector of the words around the context's marker."""
        vector: Vectors = self.encoder.encode([context], apart=True)[0]
        return vector


def load_window_encoder(
    setting: str,
    made_for: str,
    *,
    runtime: str = "openvino",
    precision: str = "auto",
    threads: int = 0,
    cache: Path | None = None,
) -> WindowEncoder | None:
    """The window encoder of a setting ("packaged", "none", or a folder) for the ENC1 with this hash.

    The packaged one is None for another ENC1; a folder's raises EncoderUnusable.
    """
    if setting == OFF:
        return None
    folder = PACKAGED_FOLDER if setting == PACKAGED else Path(setting)
    told = read_description(folder)
    if told["made for"] != made_for:
        if setting == PACKAGED:
            return None
        raise EncoderUnusable(f"it was trained beside the encoder {told['made for']}, not beside {made_for}")
    # The stored weights are int8 already; int8 arithmetic would be a second loss.
    wanted = "auto" if precision == Precision.INT8 else precision
    encoder = load_encoder(
        str(folder), runtime=runtime, precision=wanted, max_tokens=int(told["tokens"]), threads=threads, cache=cache
    )
    return WindowEncoder(encoder, made_for, folder)


def read_description(folder: Path) -> dict[str, Any]:
    """What a window encoder's folder says of it, or EncoderUnusable."""
    try:
        told: Any = json.loads((folder / DESCRIPTION).read_text("utf-8"))
        return {"made for": str(told["made for"]), "tokens": int(told["tokens"])}
    except FileNotFoundError:
        raise EncoderUnusable(f"{folder} has no {DESCRIPTION}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise EncoderUnusable(f'{folder / DESCRIPTION} must hold "made for" and "tokens": {error}') from None
