"""The operator's commands and the client against running services: publishing, dead letters, replay, views, TLS."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from citewell.client import (
    AsyncCitewell,
    Citewell,
    CitewellError,
    Publication,
    PublicationState,
    Query,
    Receipt,
    Retraction,
    Tls,
)
from citewell.commands.stack import Stack, choose_ports
from tests.integration.test_service_process import certificates
from tests.servers.processes import wait_until


def citewell(
    *arguments: str, stdin: str = "", settings: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """One command, as a person would call it."""
    return subprocess.run(
        [sys.executable, "-m", "citewell.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "160", **(settings or {})},
    )


def line(paper_id: str, **more: object) -> str:
    return json.dumps({"publication": {"paper_id": paper_id, "revision": 1, "title": f"On {paper_id}", **more}}) + "\n"


@pytest.fixture(scope="module")
def ingestion(stack: Stack) -> list[str]:
    return ["--address", stack.addresses["ingestion"]]


@pytest.fixture(scope="module")
def profiler(stack: Stack) -> list[str]:
    return ["--address", stack.addresses["profiler"]]


def dead_letter(ingestion: list[str], paper_id: str) -> dict[str, str]:
    """A dead letter: another content for a revision that is known."""
    assert citewell("publish", *ingestion, stdin=line(paper_id)).returncode == 0
    dead = citewell("publish", *ingestion, stdin=line(paper_id, title="Something else"))
    assert dead.returncode == 1
    assert "1 dead letter" in dead.stderr
    listed = citewell("dead-letters", "list", "--json", "--reason", "REVISION_CONFLICT", *ingestion)
    assert listed.returncode == 0, listed.stderr
    [letter] = [each for each in map(json.loads, listed.stdout.splitlines()) if each["paper_id"] == paper_id]
    return dict(letter)


def test_dead_letters_are_listed_and_published_again(ingestion: list[str]) -> None:
    letter = dead_letter(ingestion, "dies")
    assert letter["id"] in citewell("dead-letters", "list", *ingestion).stdout
    assert letter["id"] not in citewell("dead-letters", "list", "--reason", "ANOTHER", *ingestion).stdout
    again = citewell("dead-letters", "redrive", letter["id"], *ingestion)
    assert again.returncode == 1
    assert "dead REVISION_CONFLICT" in again.stdout
    for letters in (3, 4):  # one more each time: of letters of one event only the latest is published again
        assert citewell("dead-letters", "redrive", "--all", *ingestion).returncode == 1
        told = [json.loads(each) for each in citewell("dead-letters", "list", "--json", *ingestion).stdout.splitlines()]
        found = [each["redrive_of"] for each in told if each["paper_id"] == "dies"]
        assert found == ["", *[letter["id"]] * (letters - 1)]
    assert citewell("publish", *ingestion, stdin=line("dies", revision=2)).returncode == 0
    mended = citewell("dead-letters", "redrive", "--all", "--reason", "REVISION_CONFLICT", *ingestion)
    assert mended.returncode == 0, mended.stderr + mended.stdout
    assert mended.stdout.count("searchable SUPERSEDED") == 1
    assert citewell("dead-letters", "redrive", *ingestion).returncode == 2
    unknown = citewell("dead-letters", "redrive", "log-0-99999", *ingestion)
    assert unknown.returncode == 1
    assert "log-0-99999" in unknown.stderr


def test_publish_reads_a_file_and_standard_input_alike(ingestion: list[str], tmp_path: Path) -> None:
    lines = "".join(line(f"same-{n}") for n in range(5)) + "\n" + line("same-5", revision=2)
    (tmp_path / "events.jsonl").write_text(lines)
    for source, stdin in ((str(tmp_path / "events.jsonl"), ""), ("-", lines)):
        told = citewell("publish", source, *ingestion, stdin=stdin)
        assert told.returncode == 0, told.stderr
        assert len(told.stdout.splitlines()) == 6
        assert "6 published" in told.stderr
    assert "DUPLICATE" in told.stdout


def test_publish_names_each_line_that_is_refused_and_publishes_the_others(ingestion: list[str]) -> None:
    lines = [
        line("good-1"),
        "{broken\n",
        "[1]\n",
        "{}\n",
        line(""),
        '{"publication": {"paperid": 1}}\n',
        line("good-2"),
    ]
    told = citewell("publish", "--json", *ingestion, stdin="".join(lines))
    assert told.returncode == 1
    published = [json.loads(each) for each in told.stdout.splitlines()]
    assert [(each["line"], each["state"]) for each in published] == [(1, "SEARCHABLE"), (7, "SEARCHABLE")]
    for number, why in (
        (2, "not JSON"),
        (3, "expected a JSON object"),
        (4, "expected"),
        (5, "paper_id"),
        (6, "paperid"),
    ):
        [refused] = [each for each in told.stderr.splitlines() if f"standard input, line {number}:" in each]
        assert why in refused
    assert "2 published, 5 refused" in told.stderr


def test_publish_is_done_with_each_event_as_it_comes(stack: Stack) -> None:
    """A publisher that writes a line now and then sees each published before it writes the next."""
    arguments = [sys.executable, "-m", "citewell.cli", "publish", "--address", stack.addresses["ingestion"]]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        for number in range(3):
            publisher.stdin.write(line(f"slowly-{number}"))
            publisher.stdin.flush()
            assert "searchable" in publisher.stdout.readline()
        publisher.stdin.close()
        assert publisher.wait(60) == 0


def test_publish_says_where_it_stopped_when_nobody_answers() -> None:
    told = citewell("publish", "--address", "127.0.0.1:1", "--timeout", "5", stdin=line("lost"))
    assert told.returncode == 1
    assert "0 published" in told.stderr
    assert "cannot connect to 127.0.0.1:1: Connection refused (UNAVAILABLE)" in told.stderr


def test_a_command_says_where_nobody_answers_and_what_starts_the_services() -> None:
    told = citewell("recommend", "As TARGETCIT has shown.", "--address", "127.0.0.1:1")
    assert told.returncode == 1
    assert "cannot connect to 127.0.0.1:1: Connection refused (UNAVAILABLE)" in told.stderr
    assert "citewell up" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--before", "tomorrow"], "--before is 'tomorrow'; expected a date ("),
        (["--knowledge"], "--knowledge is 'given alone'; expected --before with a date beside it"),
    ],
)
def test_a_wrong_option_is_named_before_a_service_is_asked(arguments: list[str], said: str) -> None:
    done = citewell("recommend", "as TARGETCIT", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_or_a_broker_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = citewell("load", str(tmp_path / "lost"))
    assert (done.returncode, done.stderr) == (2, f"citewell: FOLDER is '{tmp_path}/lost', which is no folder\n")
    setting = "CITEWELL_INGESTION__LOG__KAFKA__BOOTSTRAP_SERVERS"
    done = citewell("topics", "check", settings={setting: "127.0.0.1:1"})
    assert (done.returncode, done.stderr) == (1, f"citewell: no broker answers at 127.0.0.1:1 ({setting})\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["replay", "--partition", "0", "--from", "5", "--to", "2"], 2, "--to is 2; expected at least --from, 5"),
        (["export", "triton", "--repository", "{file}/models"], 1, "{file}/models/davinci/1: Not a directory"),
    ],
)
def test_what_no_command_can_do_is_one_line(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    (tmp_path / "file").touch()
    done = citewell(*(word.format(file=tmp_path / "file") for word in arguments))
    assert (done.returncode, done.stderr) == (code, f"citewell: {said.format(file=tmp_path / 'file')}\n")


def test_an_event_id_makes_a_repetition_the_same_event(ingestion: list[str]) -> None:
    event = json.dumps({"event_id": "mine", **json.loads(line("once"))})
    first, second = (citewell("publish", *ingestion, stdin=event).stdout.split()[0] for _ in range(2))
    assert first == second


def test_status_takes_addresses(stack: Stack, ingestion: list[str]) -> None:
    assert citewell("publish", *ingestion, stdin=line("held")).returncode == 0
    index, ledger = stack.addresses["index"], stack.addresses["profiler"]
    told = citewell("status", index, ledger, "--json")
    assert told.returncode == 0, told.stdout + told.stderr
    rows = json.loads(told.stdout)
    assert [(row["service"], row["address"], row["serving"]) for row in rows] == [
        ("index", index, True),
        ("profiler", ledger, True),
    ]
    assert rows[0]["holds"]["papers"] >= 1
    gone = citewell("status", "127.0.0.1:1")
    assert gone.returncode == 1
    assert "not serving" in gone.stdout


def test_replay_changes_nothing_and_counts(ingestion: list[str]) -> None:
    assert citewell("publish", *ingestion, stdin="".join(line(f"again-{n}") for n in range(20))).returncode == 0
    whole = citewell("replay", "--json", *ingestion)
    assert whole.returncode == 0, whole.stderr
    counts = json.loads(whole.stdout)
    assert counts["delivered"] >= 20
    assert counts["applied"] == 0
    part = json.loads(citewell("replay", "--partition", "1", "--from", "0", "--to", "2", "--json", *ingestion).stdout)
    assert part["delivered"] == 2
    timed = json.loads(citewell("replay", "--since", "2020-01-01", "--json", *ingestion).stdout)
    assert timed["delivered"] == counts["delivered"]
    assert citewell("replay", "--from", "3", *ingestion).returncode == 2
    assert "0 to 1" in citewell("replay", "--partition", "9", *ingestion).stderr


def test_a_view_is_filled_served_and_dropped(profiler: list[str]) -> None:
    lost = citewell("rebuild", "switch", "lost", *profiler)
    assert lost.returncode == 1
    assert "there is no view 'lost'; there are " in lost.stderr
    started = citewell("rebuild", "start", "--alpha", "0.25", "--wait", *profiler)
    assert started.returncode == 0, started.stderr
    views = json.loads(citewell("rebuild", "status", "--json", *profiler).stdout)
    [old] = [view["name"] for view in views if view.get("serving")]
    [new] = [view["name"] for view in views if not view.get("serving")]
    refused = citewell("rebuild", "drop", old, *profiler)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert citewell("rebuild", "switch", new, *profiler).returncode == 0
    dropped = citewell("rebuild", "drop", old, *profiler)
    assert dropped.returncode == 0, dropped.stderr
    assert [view["name"] for view in json.loads(citewell("rebuild", "status", "--json", *profiler).stdout)] == [new]
    unknown = citewell("rebuild", "drop", "nobody's", *profiler)
    assert unknown.returncode == 1
    assert "nobody's" in unknown.stderr


def test_a_restored_ledger_is_adopted(profiler: list[str], ingestion: list[str]) -> None:
    assert citewell("publish", *ingestion, stdin=line("restored")).returncode == 0
    declined = citewell("restore", "adopt", *profiler, stdin="n\n")
    assert declined.returncode == 1
    adopted = citewell("restore", "adopt", "--yes", *profiler)
    assert adopted.returncode == 0, adopted.stderr
    assert "epoch is now" in adopted.stdout
    assert "partition 0: applied up to offset" in adopted.stdout
    assert " 0 faults" in citewell("doctor", "profiles", *profiler).stdout


def test_the_client_publishes_one_and_many(stack: Stack) -> None:
    with Citewell(ingestion=stack.addresses["ingestion"]) as client:
        receipt = client.publish(Publication("client-1", 1, "One"), request_id="mine")
        assert client.publish(Publication("client-1", 1, "One"), request_id="mine").event_id == receipt.event_id
        status = client.status(receipt.token, wait=True)
        assert (status.state, status.outcome) == (PublicationState.SEARCHABLE, "APPLIED")
        bodies = [Publication("client-2", 1, "Two"), Publication("", 1, "Nobody's"), Retraction("client-2", 2)]
        results = list(client.publish_all(iter(bodies)))
        assert [isinstance(result, Receipt) for result in results] == [True, False, True]
        assert isinstance(results[1], CitewellError)
        assert "paper_id" in results[1].message
        assert client.log().dead_letters >= 0
        with pytest.raises(ValueError, match="no address of the recommender"):
            client.recommend(Query(title="A draft"))
    with pytest.raises(ValueError, match="closed"):
        client.log()


async def test_a_publisher_outlives_a_restart_of_ingestion(stack: Stack) -> None:
    async with AsyncCitewell(ingestion=stack.addresses["ingestion"], timeout=60) as client:
        publications = (Publication(f"restart-{n}", 1, "Across a restart") for n in range(400))
        results = client.publish_all(publications, in_flight=8)
        receipts = [await anext(results) for _ in range(50)]
        await asyncio.to_thread(stack.kill, "ingestion")
        await asyncio.to_thread(stack.start, ["ingestion"])
        receipts += [receipt async for receipt in results]
        assert all(isinstance(receipt, Receipt) for receipt in receipts)
        await asyncio.to_thread(stack.wait, ["ingestion"])
        for receipt in receipts:
            assert isinstance(receipt, Receipt)
            status = await client.status(receipt.token, wait=True)
            assert status.state is PublicationState.SEARCHABLE


@pytest.fixture
def tls_reranker(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A reranker that lets in only clients with a certificate, and the folder of the certificates."""
    certificates(tmp_path, "localhost", "client")
    settings = {
        "CITEWELL_RERANKER__BACKEND": "none",
        "CITEWELL_RERANKER__TLS__CERTIFICATE": str(tmp_path / "localhost.pem"),
        "CITEWELL_RERANKER__TLS__KEY": str(tmp_path / "localhost.key"),
        "CITEWELL_RERANKER__TLS__CLIENT_CA": str(tmp_path / "ca.pem"),
    }
    stack = Stack(tmp_path / "data", choose_ports(0), settings=settings)
    stack.start(["reranker"])
    try:
        yield f"localhost:{stack.ports['reranker']}", tmp_path
    finally:
        stack.stop(["reranker"])


def test_commands_speak_tls_by_options_or_environment(tls_reranker: tuple[str, Path]) -> None:
    address, folder = tls_reranker
    files = {"ca": folder / "ca.pem", "cert": folder / "client.pem", "key": folder / "client.key"}
    options = [word for name, path in files.items() for word in (f"--tls-{name}", str(path))]
    wait_until(lambda: citewell("status", address, *options).returncode == 0, "the reranker serves TLS", 60)
    settings = {f"CITEWELL_TLS_{name.upper()}": str(path) for name, path in files.items()}
    assert citewell("status", address, settings=settings).returncode == 0
    assert citewell("status", address).returncode == 1
    assert citewell("status", address, "--tls-ca", str(folder / "ca.pem")).returncode == 1
    half = citewell("status", address, "--tls-cert", str(folder / "client.pem"))
    assert half.returncode == 2
    assert "--tls-cert and --tls-key" in half.stderr
    missing = citewell("status", address, "--tls-ca", str(folder / "nowhere.pem"))
    assert missing.returncode == 2
    assert "nowhere.pem" in missing.stderr
    with pytest.raises(ValueError, match="together"):
        Tls(certificate=folder / "client.pem")
