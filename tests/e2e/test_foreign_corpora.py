"""Corpora in foreign formats, loaded and followed by the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from citewell.recommender.v1 import recommender_pb2 as messages
from tests.e2e.conftest import Running
from tests.e2e.test_commands import citewell
from tests.servers.processes import wait_until
from tests.unit.test_corpora_formats import JATS, TEI, TITLE


def best(running: Running, words: str) -> messages.Item:
    query = messages.Query(context=f"{words} TARGETCIT.")
    return running.client.recommend(query, messages.Options(rerank=False)).items[0]


def test_load_reads_a_folder_of_jats(running: Running, tmp_path: Path) -> None:
    folder = tmp_path / "jats"
    folder.mkdir()
    (folder / "one.nxml").write_text(
        JATS.replace(TITLE, "Nightingales in municipal archives").replace("River", "night")
    )
    (folder / "two.nxml").write_text("<article>")
    where = ["--data", str(tmp_path), "--address", running.stack.addresses["profiler"]]
    loaded = citewell("load", "jats", str(folder), *where)
    assert loaded.returncode == 0, loaded.stderr
    assert "1 papers" in loaded.stdout
    assert "1 left out" in loaded.stdout
    assert '"two.nxml"' in (tmp_path / "rejects.jsonl").read_text()
    item = best(running, "Nightingales sing in municipal archives")
    assert item.paper.id == "doi:10.1234/night"
    assert list(item.paper.authors) == ["Ada Brook"]
    again = citewell("load", "jats", str(folder), *where)
    assert "duplicates" in again.stdout

    for arguments in (("jats", str(folder), "--source", "a/b"), (str(folder), "--source", "a")):
        refused = citewell("load", *arguments, *where)
        assert (refused.returncode, "--source is" in refused.stderr) == (2, True), refused.stderr

    wrong = citewell("load", "jatz", str(folder), *where)
    assert (wrong.returncode, "'jatz'" in wrong.stderr, "jats" in wrong.stderr) == (2, True, True)


def test_follow_publishes_files_as_they_come(running: Running, tmp_path: Path) -> None:
    folder = tmp_path / "tei"
    folder.mkdir()
    where = ["--data", str(tmp_path), "--address", running.stack.addresses["ingestion"]]
    command = [sys.executable, "-m", "citewell.cli", "follow", "tei", str(folder), "--every", "0.2", "--settle", "0.5"]
    with subprocess.Popen([*command, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        try:
            for number, title in enumerate(("Herons that wade through ledgers", "Otters asleep in ledgers")):
                text = TEI.replace(TITLE, title).replace("River", f"follow{number}")
                (folder / f"{number}.tei.xml").write_text(text)
                paper = f"doi:10.1234/follow{number}"
                wait_until(lambda: best(running, title).paper.id == paper, f"{title!r} is the best answer", 60)  # noqa: B023
        finally:
            following.terminate()
            following.wait(30)
    again = citewell("follow", "tei", str(folder), "--once", *where)
    assert (again.returncode, again.stdout) == (0, "")
    refused = citewell("follow", "s2ag", str(folder), "--once", *where)
    assert refused.returncode == 2
    assert "load a whole release" in refused.stderr
