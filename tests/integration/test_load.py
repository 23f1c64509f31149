"""`citewell load` into a real ledger: killed half-way and run again, loaded twice, by both roads."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

from citewell.commands.failing import FAILED, WRONG_USAGE
from citewell.commands.stack import Stack
from citewell.index.v1 import index_pb2
from citewell.ingestion.v1 import ingestion_pb2
from citewell.profiler.v1 import ledger_pb2, profile_query_pb2
from citewell.types.v1 import paper_pb2
from tests.e2e.client import Client
from tests.servers.processes import wait_until

PAPERS = 900


def write(folder: Path, name: str, papers: int, *bad: str) -> Path:
    """A corpus in which every paper cites the two before it, the nearer one twice."""
    folder.mkdir()
    lines = [
        json.dumps({"id": f"{name}{n}", "title": f"Paper {n}", "abstract": "", "year": 2000}) for n in range(papers)
    ]
    (folder / "papers.jsonl").write_text("\n".join([*lines, *bad]) + "\n")
    contexts = [
        json.dumps(
            {
                "id": f"{n}-{back}",
                "citing_id": f"{name}{n}",
                "cited_id": f"{name}{n - max(back, 1)}",
                "text": f"As TARGETCIT says, {n} {back}.",
            }
        )
        for back in range(3)  # one paper's contexts stand far apart
        for n in range(2, papers)
    ]
    (folder / "contexts.jsonl").write_text("\n".join(contexts) + "\n")
    return folder


def command(stack: Stack, folder: Path, data: Path, *options: str) -> list[str]:
    service = "ingestion" if "--events" in options else "profiler"
    address = stack.addresses[service]
    return [
        sys.executable,
        "-m",
        "citewell.cli",
        "load",
        str(folder),
        "--data",
        str(data),
        "--address",
        address,
        *options,
    ]


def load(stack: Stack, folder: Path, data: Path, *options: str) -> str:
    done = subprocess.run(command(stack, folder, data, *options), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def seen(client: Client, name: str) -> dict[str, tuple[str, int]]:
    """Title and in-degree of every paper of that corpus."""
    found: dict[str, tuple[str, int]] = {}
    request = index_pb2.ListPapersRequest(page_size=1000, view=paper_pb2.PAPER_VIEW_BASIC)
    while True:
        page = client.index.ListPapers(request, timeout=30)
        found |= {paper.id: (paper.title, paper.in_degree) for paper in page.papers if paper.id.startswith(name)}
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def expected(name: str, papers: int) -> dict[str, tuple[str, int]]:
    cited = [0] * papers
    for n in range(2, papers):
        cited[n - 1] += 1
        cited[n - 2] += 1
    return {f"{name}{n}": (f"Paper {n}", cited[n]) for n in range(papers)}


def taken_in(data: Path) -> int:
    """How many papers the load says it has taken in."""
    for state in (data / "load").glob("*.sqlite"):
        with closing(sqlite3.connect(state)) as db, suppress(sqlite3.OperationalError):  # not made yet, or busy
            return sum(row[0] for row in db.execute("SELECT loaded FROM progress"))
    return 0


def profile(client: Client, paper_id: str) -> bytes:
    answer = client.profiles.GetProfile(profile_query_pb2.GetProfileRequest(paper_id=paper_id), timeout=30)
    answer.version = 0
    return answer.SerializeToString(deterministic=True)


def test_a_load_killed_half_way_goes_on_and_ends_in_the_same_state(
    stack: Stack, client: Client, tmp_path: Path
) -> None:
    folder, data = write(tmp_path / "corpus", "k", PAPERS), tmp_path / "data"
    with subprocess.Popen(
        command(stack, folder, data), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as loading:
        try:
            wait_until(lambda: taken_in(data) > 0, "the first papers", 90)
        finally:
            loading.kill()
    assert 0 < taken_in(data) < PAPERS
    assert f"{PAPERS} papers, {3 * (PAPERS - 2):,} contexts" in load(stack, folder, data)
    assert seen(client, "k") == expected("k", PAPERS)
    assert not client.ledger.CheckProfiles(ledger_pb2.CheckProfilesRequest(), timeout=120).faults
    assert not list((data / "load").glob("*.sqlite"))
    assert f"{PAPERS} duplicates" in load(stack, folder, data)


def test_what_was_left_out_is_written_down(stack: Stack, client: Client, tmp_path: Path) -> None:
    folder = write(tmp_path / "corpus", "r", 3, "{", json.dumps({"id": "r9", "title": ""}))
    assert "2 left out" in load(stack, folder, tmp_path)
    assert seen(client, "r") == expected("r", 3)
    rejects = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["file"], reject["line"]) for reject in rejects] == [("papers.jsonl", 4), ("papers.jsonl", 5)]
    # What only the ledger can refuse: the same revision with other content.
    (folder / "papers.jsonl").write_text(json.dumps({"id": "r0", "title": "Changed"}) + "\n")
    (folder / "contexts.jsonl").write_text("")
    assert "1 left out" in load(stack, folder, tmp_path)
    [reject] = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert (reject["line"], reject["reason"].split(":")[0]) == (1, "REVISION_CONFLICT")


def test_both_roads_end_in_the_same_state(stack: Stack, client: Client, tmp_path: Path) -> None:
    bulk, events = write(tmp_path / "bulk", "b", 60), write(tmp_path / "events", "e", 60)
    load(stack, bulk, tmp_path)
    before = client.ingestion.Info(ingestion_pb2.InfoRequest(), timeout=30)
    assert "60 published" in load(stack, events, tmp_path, "--events")
    after = client.ingestion.Info(ingestion_pb2.InfoRequest(), timeout=30)
    assert _length(after) - _length(before) == 60
    assert seen(client, "e") == expected("e", 60)
    assert seen(client, "b") == expected("b", 60)
    for n in range(60):
        assert profile(client, f"b{n}") == profile(client, f"e{n}")


def _length(info: ingestion_pb2.InfoResponse) -> int:
    return sum(partition.end_offset for partition in info.partitions)


def test_wrong_input_is_told_in_one_line(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, options, words, code in (
        (tmp_path / "empty", (), "papers.jsonl", FAILED),
        (tmp_path / "nowhere", (), "no folder", WRONG_USAGE),
        (tmp_path / "empty", ("--split", "dev"), "--split", WRONG_USAGE),
    ):
        done = subprocess.run(
            command(stack, folder, tmp_path / "data", *options), capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert not list((tmp_path / "data").glob("load/*"))


def test_a_ledger_that_is_gone_is_told_in_one_line_and_the_load_can_go_on(stack: Stack, tmp_path: Path) -> None:
    folder = write(tmp_path / "corpus", "g", 3)
    stack.kill("profiler")
    done = subprocess.run(command(stack, folder, tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "run the same command again" in done.stderr
    stack.start(["profiler"])
    stack.wait(["profiler"])
    assert "3 applied" in load(stack, folder, tmp_path)
