"""Who may call what: scopes, tokens, certificates, quotas."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
import structlog
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from citewell.recommender.v1 import recommender_pb2
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime import files
from citewell.runtime.channels import from_rpc_error, open_channel
from citewell.runtime.errors import Overloaded
from citewell.runtime.scopes import INTERNAL, SCOPES, Scope, granted
from citewell.runtime.settings import ServiceSettings, UnknownSetting
from tests.security.authority import Authority, replace
from tests.security.every_service import RECOMMEND, SERVICES, call, connected, every_rpc, path_of, running
from tests.security.tokens import AUDIENCE, TokenIssuer


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.0)


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path)


def policy(folder: Path, issuer: TokenIssuer | None = None, **parts: Any) -> Path:
    """Writes a policy; the issuer's tokens may grant all scopes that are not internal."""
    told: dict[str, Any] = {"clients": {}, **parts}
    if issuer:
        scopes = [each.value for each in Scope if each not in INTERNAL]
        told["issuers"] = [
            {
                "issuer": issuer.name,
                "audience": AUDIENCE,
                "keys": issuer.keys.name,
                "scopes": scopes,
                "leeway_seconds": 0,
            }
        ]
    path = folder / "policy.json"
    replace(path, json.dumps(told).encode())
    return path


async def test_a_scope_opens_its_rpcs_and_no_others(tmp_path: Path, issuer: TokenIssuer) -> None:
    clients = {
        scope.value: {"issuer": issuer.name, "subject": scope.value, "scopes": [scope.value]} for scope in INTERNAL
    }
    settings = ServiceSettings(access_policy=policy(tmp_path, issuer, clients=clients))
    async with running(settings) as (_, process), connected(process) as channel:
        for scope in Scope:
            token = issuer.bearer(scope.value, "" if scope in INTERNAL else scope.value)
            for rpc in every_rpc():
                path = path_of(rpc)
                expected = "OK" if SCOPES[path] in granted([scope]) else "PERMISSION_DENIED SCOPE_MISSING"
                assert await call(channel, path, token=token) == expected, (scope, path)
        for rpc in every_rpc():
            assert await call(channel, path_of(rpc)) == "UNAUTHENTICATED CREDENTIALS_MISSING", path_of(rpc)


async def test_a_token_that_is_not_valid_is_refused(tmp_path: Path, issuer: TokenIssuer) -> None:
    other = TokenIssuer(tmp_path, "https://other-login.example")
    good = issuer.token()
    head, body, signature = good.split(".")
    public = issuer.key.public_key()
    forged = _signed_with_public_key(good, public)
    unsigned = jwt.encode(jwt.decode(good, options={"verify_signature": False}), None, "none")
    other_body = base64.urlsafe_b64encode(base64.urlsafe_b64decode(body + "==").replace(b"somebody", b"anybody!"))
    now = int(time.time())
    refused = {
        "expired": (issuer.bearer(exp=now - 1), "TOKEN_EXPIRED"),
        "not yet valid": (issuer.bearer(nbf=now + 100), "TOKEN_REFUSED"),
        "another audience": (issuer.bearer(aud="other"), "TOKEN_REFUSED"),
        "without expiry": (issuer.bearer(exp=None), "TOKEN_REFUSED"),
        "without subject": (issuer.bearer(sub=None), "TOKEN_REFUSED"),
        "without audience": (issuer.bearer(aud=None), "TOKEN_REFUSED"),
        "another issuer": (other.bearer(), "TOKEN_REFUSED"),
        "another issuer's key": (other.bearer(iss=issuer.name), "TOKEN_REFUSED"),
        "changed": (f"Bearer {head}.{other_body.decode().rstrip('=')}.{signature}", "TOKEN_REFUSED"),
        "unsigned": (f"Bearer {unsigned}", "TOKEN_REFUSED"),
        "signed by the public key": (f"Bearer {forged}", "TOKEN_REFUSED"),
        "no JWT": ("Bearer x", "TOKEN_REFUSED"),
        "empty": ("Bearer ", "TOKEN_REFUSED"),
        "another scheme": (f"Basic {good}", "TOKEN_REFUSED"),
        "huge": (f"Bearer {'x' * 8193}", "TOKEN_REFUSED"),
    }
    settings = ServiceSettings(access_policy=policy(tmp_path, issuer))
    async with running(settings) as (_, process), connected(process) as channel:
        assert await call(channel, token=f"Bearer {good}") == "OK"
        assert await call(channel, token=f"bearer {good}") == "OK"
        for what, (token, reason) in refused.items():
            assert await call(channel, token=token) == f"UNAUTHENTICATED {reason}", what
        for _ in range(100):  # gRPC refuses long headers at random, by default from 8 KiB on
            assert await call(channel, token=refused["huge"][0]) == "UNAUTHENTICATED TOKEN_REFUSED"
        stub = RecommenderServiceStub(channel)
        headers = (("authorization", f"Bearer {good}"), ("authorization", f"Bearer {good}"))
        with pytest.raises(grpc.aio.AioRpcError) as twice:
            await stub.Recommend(recommender_pb2.RecommendRequest(), metadata=headers)
        assert twice.value.code() is grpc.StatusCode.UNAUTHENTICATED


def _signed_with_public_key(token: str, public: Any) -> str:
    """The old trick: HMAC with the public key, in the hope that the server takes it for a shared secret."""
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"first"}').rstrip(b"=")
    signed = head + b"." + token.split(".")[1].encode()
    signature = base64.urlsafe_b64encode(hmac.new(pem, signed, hashlib.sha256).digest()).rstrip(b"=")
    return (signed + b"." + signature).decode()


async def test_rotated_keys_count_without_a_restart(tmp_path: Path, issuer: TokenIssuer) -> None:
    settings = ServiceSettings(access_policy=policy(tmp_path, issuer))
    async with running(settings) as (_, process), connected(process) as channel:
        old = issuer.bearer()
        assert await call(channel, token=old) == "OK"
        issuer.rotate("second")
        assert await call(channel, token=issuer.bearer()) == "OK"
        assert await call(channel, token=old) == "UNAUTHENTICATED TOKEN_REFUSED"
        replace(issuer.keys, b"half writt")
        assert await call(channel, token=issuer.bearer()) == "OK", "an unusable file leaves the keys before in use"


async def test_a_claim_grants_only_what_its_issuer_may_grant(tmp_path: Path, issuer: TokenIssuer) -> None:
    entry = {"issuer": issuer.name, "audience": AUDIENCE, "keys": issuer.keys.name, "scopes": ["recommend"]}
    path = policy(tmp_path, issuers=[entry])
    async with running(ServiceSettings(access_policy=path)) as (_, process), connected(process) as channel:
        token = issuer.bearer("mallory", "recommend publish operate internal.read internal.write")
        allowed = {path_of(rpc) for rpc in every_rpc() if await call(channel, path_of(rpc), token=token) == "OK"}
        assert allowed == {path for path, scope in SCOPES.items() if scope is Scope.RECOMMEND}


async def test_a_changed_policy_counts_without_a_restart(tmp_path: Path, issuer: TokenIssuer) -> None:
    client = {"issuer": issuer.name, "subject": "app", "scopes": ["recommend"]}
    path = policy(tmp_path, issuer, clients={"app": client})
    token = issuer.bearer("app", "")
    async with running(ServiceSettings(access_policy=path)) as (_, process), connected(process) as channel:
        assert await call(channel, token=token) == "OK"
        policy(tmp_path, issuer)
        assert await call(channel, token=token) == "PERMISSION_DENIED SCOPE_MISSING"
        replace(path, b'{"clients": {"app": {')
        assert await call(channel, token=token) == "PERMISSION_DENIED SCOPE_MISSING", "the policy before stays"


async def test_certificates_identify_clients(tmp_path: Path, issuer: TokenIssuer) -> None:
    authority = Authority(tmp_path / "tls")
    clients = {
        "dns": {"certificates": ["app.example"], "scopes": ["recommend"]},
        "uri": {"certificates": ["spiffe://example/app"], "scopes": ["recommend"]},
        "common": {"certificates": ["common name"], "scopes": ["recommend"]},
        "gate": {"certificates": ["gate.example"], "scopes": []},
    }
    path = policy(tmp_path, issuer, clients=clients)
    certificate, key = authority.issue("common", common_name="common name")
    only_common = authority.trust.model_copy(update={"certificate": certificate, "key": key})
    # A common name does not count beside alternative names.
    hidden_certificate, hidden_key = authority.issue("hidden", "nobody.example", common_name="common name")
    hidden = authority.trust.model_copy(update={"certificate": hidden_certificate, "key": hidden_key})
    async with running(ServiceSettings(tls=authority.server(), access_policy=path)) as (_, process):
        for tls, expected in (
            (authority.client("a", "other.example", "app.example"), "OK"),
            (authority.client("b", "spiffe://example/app"), "OK"),
            (only_common, "OK"),
            (hidden, "PERMISSION_DENIED SCOPE_MISSING"),
            (authority.client("c", "stranger.example"), "PERMISSION_DENIED SCOPE_MISSING"),
            (authority.client("d", "gate.example"), "UNAUTHENTICATED CREDENTIALS_MISSING"),
        ):
            async with connected(process, tls) as channel:
                assert await call(channel) == expected, tls.certificate
        # A token alone decides: the connection's certificate adds nothing to it.
        async with connected(process, authority.client("e", "app.example")) as channel:
            assert await call(channel, token=issuer.bearer(scope="publish")) == "PERMISSION_DENIED SCOPE_MISSING"
            assert await call(channel, token="Bearer x") == "UNAUTHENTICATED TOKEN_REFUSED"
        async with connected(process, authority.client("f", "gate.example")) as channel:
            assert await call(channel, token=issuer.bearer()) == "OK"


async def test_a_token_file_is_sent_and_read_again(tmp_path: Path, issuer: TokenIssuer) -> None:
    file = tmp_path / "token"
    replace(file, issuer.token(exp=int(time.time()) - 10).encode())
    async with running(ServiceSettings(access_policy=policy(tmp_path, issuer))) as (_, process):
        channel = open_channel(f"localhost:{process.port}", token=file)
        assert await call(channel) == "UNAUTHENTICATED TOKEN_EXPIRED"
        replace(file, issuer.token().encode())
        assert await call(channel) == "OK"
        await channel.close()


def test_a_token_is_not_sent_in_plain_text(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    with pytest.raises(UnknownSetting, match="plain text"):
        open_channel("citewell.example:7300", token=tmp_path / "token")
    with pytest.raises(ValueError, match="plain text"):
        ServiceSettings(host="0.0.0.0", access_policy=tmp_path / "policy.json")


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("{", "which is no JSON"),
        ({"client": {}}, "client: Extra inputs"),
        ({"clients": {"a": {"scopes": ["admin"], "certificates": ["a"]}}}, "clients.a.scopes.0: Input should be"),
        ({"clients": {"a": {"scopes": ["recommend"]}}}, "a client needs certificates"),
        ({"clients": {"a": {"certificates": ["x"]}, "b": {"certificates": ["x"]}}}, "'x' is given twice"),
        ({"clients": {"a": {"issuer": "i", "subject": "s"}}}, "none of the issuers"),
        ({"issuers": [{"issuer": "i", "audience": "a", "keys": "k", "algorithms": ["HS256"]}]}, "algorithms.0"),
        ({"issuers": [{"issuer": "i", "audience": "a", "keys": "k", "scopes": ["internal.read"]}]}, "internal"),
        ({"issuers": [{"issuer": "i", "audience": "a", "keys": "lost"}]}, "lost', which cannot be read"),
        ({"issuers": [{"issuer": "i", "audience": "a", "keys": "policy.json"}]}, "which is no JWKS"),
        ({"issuers": [{"issuer": "i", "audience": "a", "keys": "shared.json"}]}, "is secret"),
    ],
)
async def test_a_policy_that_cannot_be_used_is_told_at_start(tmp_path: Path, stated: Any, message: str) -> None:
    shared = {"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "s"}]}
    (tmp_path / "shared.json").write_text(json.dumps(shared))
    path = tmp_path / "policy.json"
    path.write_text(stated if isinstance(stated, str) else json.dumps(stated))
    with pytest.raises(UnknownSetting, match=message):
        async with running(ServiceSettings(access_policy=path)):
            pass


async def test_what_exceeds_a_rate_is_refused_with_the_time_to_wait(tmp_path: Path, issuer: TokenIssuer) -> None:
    limits = {"calls_per_second": 4, "burst": 3}
    settings = ServiceSettings(access_policy=policy(tmp_path, issuer, limits=limits))
    async with running(settings) as (_, process), connected(process) as channel:
        busy, other = issuer.bearer("busy"), issuer.bearer("other")
        answers = await asyncio.gather(*(call(channel, token=busy) for _ in range(50)))
        assert set(answers) == {"OK", "RESOURCE_EXHAUSTED QUOTA_EXCEEDED"}
        assert answers.count("OK") >= 3
        assert await call(channel, token=other) == "OK", "one client does not use up another's quota"
        # A batch counts as its queries; the time to wait is true.
        stub = RecommenderServiceStub(channel)
        batch = recommender_pb2.RecommendBatchRequest(requests=[recommender_pb2.RecommendRequest()] * 2)
        fresh = (("authorization", issuer.bearer("fresh")),)
        batches = [stub.RecommendBatch(batch, metadata=fresh) for _ in range(20)]
        ended = await asyncio.gather(*batches, return_exceptions=True)
        refused = [from_rpc_error(each, "test") for each in ended if isinstance(each, grpc.aio.AioRpcError)]
        assert 0 < len(refused) < len(batches)
        waits = [error.retry_after_seconds for error in refused if isinstance(error, Overloaded)]
        assert len(waits) == len(refused)
        assert 0 < min(waits) <= max(waits) <= 0.5, "two queries of four a second"
        await asyncio.sleep(max(waits))
        await stub.RecommendBatch(batch, metadata=fresh)


async def test_calls_at_the_same_time_are_limited_by_client(tmp_path: Path, issuer: TokenIssuer) -> None:
    settings = ServiceSettings(access_policy=policy(tmp_path, issuer, limits={"concurrent": 2}))
    async with running(settings) as (service, process), connected(process) as channel:
        service.go_on.clear()
        token = issuer.bearer("greedy")
        held = [asyncio.create_task(call(channel, token=token, seconds=20)) for _ in range(2)]
        await service.until_entered(2)
        assert await call(channel, token=token) == "RESOURCE_EXHAUSTED QUOTA_EXCEEDED"
        other = asyncio.create_task(call(channel, token=issuer.bearer("modest"), seconds=20))
        await service.until_entered(1)
        service.go_on.set()
        assert await asyncio.gather(*held, other) == ["OK"] * 3
        assert await call(channel, token=token) == "OK", "the places are free again"


async def test_the_messages_of_a_stream_are_paced(tmp_path: Path, issuer: TokenIssuer) -> None:
    limits = {"calls_per_second": 20, "burst": 1}
    settings = ServiceSettings(access_policy=policy(tmp_path, issuer, limits=limits))
    async with running(settings) as (_, process), connected(process) as channel:
        method = channel.stream_stream(
            "/citewell.ingestion.v1.IngestionService/PublishStream",
            request_serializer=lambda message: message.SerializeToString(),
        )
        rpc = SERVICES["citewell.ingestion.v1.IngestionService"].methods_by_name["PublishStream"]
        from google.protobuf.message_factory import GetMessageClass

        requests = [GetMessageClass(rpc.input_type)() for _ in range(11)]
        started = time.monotonic()
        sent = method(iter(requests), metadata=(("authorization", issuer.bearer(scope="publish")),), timeout=20)
        assert len([each async for each in sent]) == 11
        assert time.monotonic() - started > 0.4


async def test_the_log_names_the_client_and_no_token(
    tmp_path: Path, issuer: TokenIssuer, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = {"writer app": {"issuer": issuer.name, "subject": "app", "scopes": ["recommend"]}}
    settings = ServiceSettings(access_policy=policy(tmp_path, issuer, clients=clients))
    secrets = [issuer.token("app"), issuer.token("anybody"), issuer.token(aud="x"), "x" * 50]
    with structlog.testing.capture_logs() as lines:
        async with running(settings) as (_, process), connected(process) as channel:
            for secret in secrets:
                await call(channel, token=f"Bearer {secret}")
    told = [line.get("client") for line in lines if line["event"] == "call"]
    assert told == ["writer app", f"anybody of {issuer.name}", None, None]
    printed = capsys.readouterr()
    shown = json.dumps(lines, default=str) + printed.out + printed.err
    assert not any(secret in shown or secret.split(".")[-1] in shown for secret in secrets)


async def test_reflection_is_for_operators(tmp_path: Path, issuer: TokenIssuer) -> None:
    settings = ServiceSettings(access_policy=policy(tmp_path, issuer))
    async with running(settings) as (_, process), connected(process) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.aio.AioRpcError, match="bearer"):
            async for _ in stub.ServerReflectionInfo(iter([request])):
                pass
        headers = (("authorization", issuer.bearer(scope="operate")),)
        async for answer in stub.ServerReflectionInfo(iter([request]), metadata=headers):
            assert RECOMMEND.split("/")[1] in [each.name for each in answer.list_services_response.service]
