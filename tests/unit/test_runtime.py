"""Settings, deadlines and the error tree: no network."""

import json
import math

import pytest
from google.rpc import error_details_pb2
from pydantic_settings import SettingsConfigDict

from citewell.index.v1 import index_pb2
from citewell.ingestion.settings import IngestionSettings
from citewell.ingestion.v1 import ingestion_pb2
from citewell.profiler.settings import ProfilerSettings
from citewell.profiler.v1 import ledger_pb2, profile_query_pb2
from citewell.recommender.settings import RecommenderSettings
from citewell.recommender.v1 import recommender_pb2
from citewell.reranker.v1 import reranker_pb2
from citewell.runtime import deadlines, errors
from citewell.runtime.channels import IDEMPOTENT
from citewell.runtime.interceptors import to_status
from citewell.runtime.settings import ServiceSettings, UnknownSetting, load_settings, read_settings


class SampleSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="CITEWELL_SAMPLE__")

    depth: int = 3
    """How deep."""


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITEWELL_SAMPLE__DEPTH", "7")
    monkeypatch.setenv("CITEWELL_SAMPLE__TLS__CERTIFICATE", "/c.pem")
    monkeypatch.setenv("CITEWELL_SAMPLE__TLS__KEY", "/k.pem")
    monkeypatch.setenv("CITEWELL_SAMPLE_PORT", "tcp://10.0.0.1:7300")  # Kubernetes' variables are not settings
    settings = read_settings(SampleSettings)
    assert (settings.depth, settings.port) == (7, 0)
    assert str(settings.tls.key) == "/k.pem"
    with pytest.raises(ValueError, match="frozen"):
        settings.depth = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CITEWELL_SAMPLE__DEEPTH", "7", r"unknown setting CITEWELL_SAMPLE__DEEPTH; known here: .*DEPTH"),
        (
            "CITEWELL_SAMPLE__TLS__CERT",
            "x",
            "unknown setting CITEWELL_SAMPLE__TLS__CERT; known here: CERTIFICATE",
        ),
        ("CITEWELL_SAMPLE__DEPTH", "deep", "CITEWELL_SAMPLE__DEPTH is 'deep'"),
        ("CITEWELL_SAMPLE__PORT", "70000", "CITEWELL_SAMPLE__PORT is '70000'"),
        ("CITEWELL_SAMPLE__TLS__KEY", "k.pem", "certificate and key are set together"),
        ("CITEWELL_SAMPLE__CLIENT_TLS__CA", "ca.pem", "ca is set, but enabled is not"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UnknownSetting, match=message):
        read_settings(SampleSettings)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (ProfilerSettings, "CITEWELL_PROFILER__INDEX_ADDRESS"),
        (IngestionSettings, "CITEWELL_INGESTION__PROFILER_ADDRESS"),
        (RecommenderSettings, "CITEWELL_RECOMMENDER__INDEX_ADDRESS"),
    ],
)
def test_a_service_that_is_needed_has_an_address(
    monkeypatch: pytest.MonkeyPatch, settings: type[ServiceSettings], name: str
) -> None:
    monkeypatch.setenv(name, "")
    with pytest.raises(UnknownSetting, match=f"{name} is ''"):
        read_settings(settings)


def test_passwords_are_not_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CITEWELL_SAMPLE__OTLP_ENDPOINT", "postgresql+psycopg://writer:s3:cr@t@db:5432/ledger")
    monkeypatch.setattr("sys.argv", ["service", "--print-config"])
    with pytest.raises(SystemExit) as ended:
        load_settings(SampleSettings)
    assert ended.value.code == 0
    shown = json.loads(capsys.readouterr().out)["otlp_endpoint"]
    assert shown == "postgresql+psycopg://writer:***@db:5432/ledger"


def test_inner_deadlines_can_only_be_shorter() -> None:
    assert math.isinf(deadlines.remaining())
    with deadlines.within(10):
        with deadlines.within(60):
            assert deadlines.remaining() <= 10
        with deadlines.within(1):
            assert deadlines.budget("search") <= 1
        assert deadlines.remaining() > 9
    assert math.isinf(deadlines.remaining())


def test_work_that_cannot_finish_is_not_started() -> None:
    with deadlines.within(0.1), pytest.raises(errors.DeadlineExceeded, match="too little to start rerank"):
        deadlines.budget("rerank", at_least=0.2)


def _leaves(kind: type[errors.CitewellError]) -> list[type[errors.CitewellError]]:
    below = [leaf for child in kind.__subclasses__() for leaf in _leaves(child)]
    return [kind, *below]


def test_every_error_becomes_a_status_with_one_error_info() -> None:
    for kind in _leaves(errors.CitewellError):
        if kind.__name__.startswith("_"):
            continue
        names_a_field = issubclass(kind, errors.InvalidField)
        error = kind("query.context", "X", "Y") if names_a_field else kind("what went wrong")  # type: ignore[call-arg]
        status = to_status(error)
        assert status.code == int(kind.code)
        infos = [detail for detail in status.details if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
        assert len(infos) == 1
        info = error_details_pb2.ErrorInfo()
        infos[0].Unpack(info)
        assert (info.domain, info.reason) == ("citewell", error.reason)
        assert error.reason == error.reason.upper()


def test_a_wrong_field_is_named_in_bad_request_and_a_long_value_is_cut() -> None:
    status = to_status(errors.InvalidField("query.context", "draft " * 1000, "at most 20000 characters"))
    request = error_details_pb2.BadRequest()
    assert any(detail.Unpack(request) for detail in status.details)
    assert [violation.field for violation in request.field_violations] == ["query.context"]
    assert len(status.message) < 200


def test_overload_says_when_to_come_back() -> None:
    retry = error_details_pb2.RetryInfo()
    status = to_status(errors.Overloaded("the queue is full", retry_after_seconds=2.5))
    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.ToMilliseconds() == 2500


READS = ("Recommend", "Explain", "Info", "Stats", "Get", "List", "Search", "Read", "Embed", "Score", "Rerank")


def test_every_read_is_tried_again_when_a_service_restarts() -> None:
    for contract in (recommender_pb2, profile_query_pb2, ledger_pb2, index_pb2, reranker_pb2, ingestion_pb2):
        for service in contract.DESCRIPTOR.services_by_name.values():
            reads = {method.name for method in service.methods if method.name.startswith(READS)}
            assert reads <= set(IDEMPOTENT[service.full_name]), service.full_name
