"""Secrets come from files and are never printed: not by --print-config, not in errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citewell.edge.settings import EdgeSettings
from citewell.index.settings import IndexSettings
from citewell.ingestion.settings import IngestionSettings
from citewell.profiler.settings import ProfilerSettings
from citewell.runtime.settings import UnknownSetting, load_settings, read_settings

SECRET = "s3cret-s3cret"


def test_a_setting_can_be_read_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"postgresql://writer:{SECRET}@db/ledger\n")
    (tmp_path / "key").write_text(SECRET)
    monkeypatch.setenv("CITEWELL_PROFILER__LEDGER_URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("CITEWELL_INDEX__QDRANT__API_KEY_FILE", str(tmp_path / "key"))
    assert read_settings(ProfilerSettings).ledger_url == f"postgresql://writer:{SECRET}@db/ledger"
    assert read_settings(IndexSettings).qdrant.api_key.get_secret_value() == SECRET


def test_a_file_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CITEWELL_INDEX__QDRANT__API_KEY_FILE", str(tmp_path / "lost"))
    with pytest.raises(UnknownSetting, match=r"CITEWELL_INDEX__QDRANT__API_KEY_FILE is '.*lost', which cannot be read"):
        read_settings(IndexSettings)
    (tmp_path / "lost").touch()
    with pytest.raises(UnknownSetting, match="which is empty"):
        read_settings(IndexSettings)
    monkeypatch.setenv("CITEWELL_INDEX__QDRANT__API_KEY", "x")
    with pytest.raises(UnknownSetting, match="both set"):
        read_settings(IndexSettings)


def test_the_configuration_is_printed_without_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("CITEWELL_INGESTION__LOG__KAFKA__PASSWORD_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("CITEWELL_INGESTION__CLIENT_TOKEN", str(tmp_path / "secret"))
    monkeypatch.setattr("sys.argv", ["service", "--print-config"])
    with pytest.raises(SystemExit):
        load_settings(IngestionSettings)
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err
    assert json.loads(printed.out)["log"]["kafka"]["password"] == "**********"


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (IngestionSettings, "CITEWELL_INGESTION__LOG__KAFKA", json.dumps({"password": SECRET, "topic": ""})),
        (
            IngestionSettings,
            "CITEWELL_INGESTION__LOG__KAFKA",
            json.dumps({"password": SECRET, "sasl_mechanism": "PLAIN"}),
        ),
        (IngestionSettings, "CITEWELL_INGESTION__LOG__KAFKA__PASWORD", f"x:{SECRET}"),
        (IndexSettings, "CITEWELL_INDEX__QDRANT__APIKEY", SECRET),
        (IndexSettings, "CITEWELL_INDEX__QDRANT_API_KEY", SECRET),
        (ProfilerSettings, "CITEWELL_PROFILER__LEDGER_ULR", f"postgresql://writer:{SECRET}@db/ledger"),
        (ProfilerSettings, "CITEWELL_PROFILER__LEDGER", f"host=db user=writer password={SECRET}"),
        (EdgeSettings, "CITEWELL_EDGE__TOKEN", SECRET),
    ],
)
def test_an_error_about_a_setting_does_not_show_a_secret(
    monkeypatch: pytest.MonkeyPatch, kind: type[IndexSettings], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UnknownSetting) as wrong:
        read_settings(kind)
    assert SECRET not in str(wrong.value)


def test_the_edge_has_no_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITEWELL_EDGE__CLIENT_TOKEN", "/token")
    with pytest.raises(UnknownSetting, match="are not for the edge"):
        read_settings(EdgeSettings)
