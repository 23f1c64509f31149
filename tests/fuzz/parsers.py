"""Every parser of bytes and texts from outside: how to call it, what it may raise, and inputs to begin with."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import docx

from citewell.commands import publish
from citewell.corpora import readers
from citewell.ingestion.settings import IngestionSettings
from citewell.ingestion.tokens import decode_token
from citewell.manuscripts import drafts
from citewell.manuscripts.bibliography import read_bibtex
from citewell.manuscripts.flow import Source
from citewell.recommender.v1 import recommender_pb2
from citewell.runtime import wire
from citewell.runtime.bearer import TokenVerifier, _read_keys, issuer_of
from citewell.runtime.errors import InvalidField, Unauthenticated
from citewell.runtime.policy import Issuer, read_policy
from citewell.runtime.settings import UnknownSetting, read_settings
from citewell.scholarly.dates import PartialDate

DRAFT = r"""\documentclass{article}
\newcommand{\method}{HAtten}
\title{On \emph{citing} well}
\begin{document}\maketitle
\begin{abstract}We cite. $x^2$ \cite{known,?}\end{abstract}
\section{Introduction} As shown~\cite{} and \citep[see][p.~3]{unknown}, $$\int_0^1 f$$ % a comment \cite{not}
\begin{figure}\caption{A picture \citet{?}}\end{figure} \verb|\cite{}| \input{other} \include{main}
\begin{verbatim}\cite{}\end{verbatim}
\bibliography{refs}
\end{document}
"""
MARKDOWN = """---
title: On citing
abstract: |
  We cite.
bibliography: [refs.bib]
---
# Heading
Text with [@known], [@?] and [?]. `[@code]`

```
[@fenced]
```
> quoted [see @a; @b, p. 3] ![picture](x.png) <b>html</b> [^1]

[^1]: note [?]
| a | b |
|---|---|
| [?] | 1 |
"""
BIB = """@article{known, title={A {T}itle}, author="Ann B and C, Dee", year=2020, doi={10.1000/xyz}}
@string{acl = "ACL"} @comment{x} @preamble{"y"}
@inproceedings{two, title = "x" # acl, url={https://arxiv.org/abs/2001.00001}}
"""
PAPERS = (
    b'{"paper_id": "p1", "title": "T", "abstract": "A", "published": "2020-05"}\n'
    b'{"paper_id": "p2", "title": "T", "year": 2020}\n'
)
CONTEXTS = b'{"context_id": "c1", "text": "as TARGETCIT said", "citing_id": "p1", "cited_id": "p2"}\n'


def _word() -> bytes:
    document = docx.Document()
    document.add_heading("On citing", 0)
    document.add_paragraph("As shown [?] and [1], it works.")
    document.add_table(2, 2).cell(0, 0).text = "[?]"
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


def _zip() -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("main.tex", DRAFT)
        archive.writestr("refs.bib", BIB)
    return written.getvalue()


@dataclass(frozen=True, slots=True)
class Parser:
    """A function of bytes."""

    name: str
    parse: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    """What it may raise: the errors that its callers turn into an answer."""
    seeds: tuple[bytes, ...]
    tokens: tuple[bytes, ...] = ()


def _draft(name: str) -> Callable[[bytes], object]:
    return lambda data: drafts.read_files({name: data, "other.tex": b"\\cite{}", "refs.bib": BIB.encode()}, name)


def _corpus(file: str, read: Callable[..., Iterator[object]]) -> Callable[[bytes], object]:
    def parse(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / file).write_bytes(data)
            deque(read(Path(folder), lambda _: None), maxlen=0)

    return parse


def _in_a_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def parse(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "file").write_bytes(data)
            read(Path(folder) / "file")

    return parse


def _bearer(data: bytes) -> None:
    token = data.decode("latin-1")
    issuer_of(token)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "keys").write_bytes(_KEYS)
        TokenVerifier(Issuer(issuer="i", audience="a", keys=Path("keys")), Path(folder)).bearer(token)


def _wire(data: bytes) -> None:
    wire.parser(recommender_pb2.RecommendRequest.FromString)(data)


def _settings(data: bytes) -> None:
    name, _, value = data.decode("utf-8", "replace").replace("\0", "").partition("=")
    name = f"CITEWELL_INGESTION__{name.strip()}".replace("=", "")
    with _environment(name, value):
        read_settings(IngestionSettings)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _tokens(text: str) -> tuple[bytes, ...]:
    """The words of a text, and white space."""
    return (*(word.encode() for word in text.split()), b"\n", b"\n\n", b"    ", b" ")


_TEX = _tokens(
    r"\cite \citep \citet[ ]{ } { [ ] $ $$ \( \) \[ \] % \begin{document} \end{document} \begin{ \end{ \input{ \par "
    r"\include{other} \newcommand{\x} \def\x#1{ \verb| \title{ \section{ \\ ~ & # ^ _ \caption{ \footnote{ \item"
)
_MD = _tokens(r"[@ ] [?] [^1] [^1]: ``` ` ~~~ > # --- | |--- * ** _ ![ ]( ) <b> <!-- --> \ - 1. title: & {{")
_BIB = _tokens('@article{ @string{ @comment @preamble{ @ { } " # , = a,title={ author={ doi={10.1/ } year')
_JSON = _tokens(r'[ ] { } " : , null 1e999 - \u0000 \ud800 NaN "paper_id"')

_KEYS = (
    b'{"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "use": "sig", '
    b'"x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}'
)
_POLICY = (
    b'{"issuers": [{"issuer": "i", "audience": "a", "keys": "k", "scopes": ["recommend"]}], "limits": {"burst": 3},'
    b' "clients": {"c": {"certificates": ["x"], "scopes": ["operate"], "issuer": "i", "subject": "s"}}}'
)

PARSERS = (
    Parser("latex", _draft("main.tex"), (drafts.UnreadableDraft,), (DRAFT.encode(),), _TEX),
    Parser("markdown", _draft("main.md"), (drafts.UnreadableDraft,), (MARKDOWN.encode(),), _MD),
    Parser("plain", _draft("main.txt"), (drafts.UnreadableDraft,), (b"As shown [?] and TARGETCIT.",), _MD),
    Parser("word", _draft("main.docx"), (drafts.UnreadableDraft,), (_word(),)),
    Parser("zip", lambda data: drafts.read_files({"draft.zip": data}), (drafts.UnreadableDraft,), (_zip(), _word())),
    Parser(
        "text",
        lambda data: drafts.read_text(data.decode("utf-8", "replace"), None),
        (drafts.UnreadableDraft,),
        (DRAFT.encode(), MARKDOWN.encode()),
        _TEX + _MD,
    ),
    Parser(
        "bibtex",
        lambda data: read_bibtex([Source("refs.bib", data.decode("utf-8", "replace"))]),
        (),
        (BIB.encode(),),
        _BIB,
    ),
    Parser("papers", _corpus("papers.jsonl", readers.read_papers), (ValueError,), (PAPERS,), _JSON),
    Parser(
        "papers.gz",
        _corpus("papers.jsonl.gz", readers.read_papers),
        (ValueError,),
        (gzip.compress(PAPERS),),
    ),
    Parser("contexts", _corpus("contexts.jsonl", readers.read_contexts), (ValueError,), (CONTEXTS,), _JSON),
    Parser(
        "papers.json",
        _corpus("papers.json", readers.read_papers),
        (ValueError,),
        (b'{"p1": {"title": "T", "abstract": "A"}, "p2": {"title": "T"}}',),
        _JSON,
    ),
    Parser(
        "splits",
        _corpus("splits.json", lambda folder, reject: readers.read_splits(folder, reject)),
        (ValueError,),
        (b'{"train": ["a"], "val": [], "test": ["b"]}',),
        _JSON,
    ),
    Parser(
        "publish lines",
        publish._request,
        (ValueError,),
        (b'{"publication": {"paper_id": "p1", "revision": 1, "published": {"year": 2025}}, "event_id": "e"}',),
        _JSON,
    ),
    Parser(
        "token",
        lambda data: decode_token(data.decode("utf-8", "replace")),
        (InvalidField,),
        (b"WyIxIiwibG9nIiwwLDEsImV2ZW50Il0",),
    ),
    Parser(
        "date",
        lambda data: PartialDate.parse(data.decode("utf-8", "replace")),
        (ValueError,),
        (b"2020-05-17", b"2020"),
        (b"-", b"0", b"12", b"31", b"\xd9\xa1", b"\xc2\xb2"),
    ),
    Parser(
        "wire",
        _wire,
        (InvalidField,),
        (
            recommender_pb2.RecommendRequest(
                query=recommender_pb2.Query(context="as TARGETCIT", title="T"),
                options=recommender_pb2.Options(top_k=3, min_watermark=["x"]),
            ).SerializeToString(),
        ),
    ),
    Parser("access policy", _in_a_file(read_policy), (UnknownSetting,), (_POLICY,), _JSON),
    Parser("JWKS", _in_a_file(_read_keys), (UnknownSetting,), (_KEYS,), _JSON),
    Parser("bearer token", _bearer, (Unauthenticated,), (b"eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ.eyJpc3MiOiJpIn0.c2ln",)),
    Parser(
        "settings",
        _settings,
        (UnknownSetting,),
        (b"PORT=7", b'LOG__KAFKA={"password": "x"}', b"TLS__KEY_FILE=/x", b"LOG__KIND=kafka", b"PACE__MOST_RECORDS=4"),
        (*_JSON, b"__", b"_FILE", b"LOG", b"KAFKA", b"TLS", b"=", b"true"),
    ),
)
