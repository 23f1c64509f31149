"""Generates events for fault tests, publishes them, and checks their effects."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from citewell.index.v1 import index_pb2
from citewell.ingestion.v1 import ingestion_pb2
from citewell.profiler.v1 import ledger_pb2, profile_query_pb2
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.publications import Event, Publication, Retraction
from citewell.types.v1 import paper_pb2
from tests.e2e.client import Client
from tests.ledger_world import LedgerModel

PAPERS, EVENTS = 8, 36
PATIENCE = 90.0


@dataclass
class Publisher:
    """Publishes one event after the other. Repeats events whose acknowledgement was lost, as real publishers do."""

    client: Client
    acknowledged: list[ingestion_pb2.PublishResponse] = field(default_factory=list)

    def publish(self, bodies: list[Publication | Retraction], name: str) -> None:
        for number, body in enumerate(bodies):
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    self.acknowledged.append(self.client.publish(body, request_id=f"{name} {number}"))
                    break
                except grpc.RpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                        raise


def bodies_of(draw: random.Random, name: str) -> list[Publication | Retraction]:
    """Publications, revisions and retractions of papers that cite each other: out of order, repeated, some invalid."""

    def publication(paper: int, revision: int) -> Publication:
        cited = draw.sample(range(PAPERS), draw.randint(0, 4))
        return Publication(
            paper_id=f"{name}/{paper}",
            revision=revision,
            title=f"Paper {paper} as of {revision} {draw.randint(0, 99)}",
            abstract=draw.choice(["", "What it says."]),
            published=PartialDate(draw.choice([0, 1999, 2020])),
            masked_contexts=tuple(
                MaskedContext(f"As TARGETCIT put it, {draw.randint(0, 9)}.", f"{name}/{other}") for other in cited
            ),
        )

    newest = dict.fromkeys(range(PAPERS), 0)
    told: list[Publication | Retraction] = []
    for _ in range(EVENTS):
        paper = draw.randrange(PAPERS)
        match draw.choices(["tell", "retract", "repeat", "late", "contradict"], [6, 1, 2, 1, 2])[0]:
            case "repeat" if told:
                told.append(draw.choice(told))
            case "late" if newest[paper] > 1:
                told.append(publication(paper, draw.randint(1, newest[paper] - 1)))
            case "contradict" if newest[paper]:
                told.append(publication(paper, newest[paper]))
            case "retract":
                newest[paper] += 1
                told.append(Retraction(f"{name}/{paper}", newest[paper]))
            case _:
                newest[paper] += draw.randint(1, 2)
                told.append(publication(paper, newest[paper]))
    # Always add some events that can never be applied, independent of the random draw.
    return [*told, *(Publication(f"{name}/0", max(1, newest[0]), f"Contradiction {number}") for number in range(4))]


@dataclass(frozen=True)
class World:
    """Everything that a client can see. Versions are read for one test's papers only, because each takes a call."""

    papers: dict[str, paper_pb2.Paper]
    versions: dict[str, int]
    dead: dict[str, str]

    @classmethod
    def seen(cls, client: Client, name: str) -> "World":
        papers: dict[str, paper_pb2.Paper] = {}
        request = index_pb2.ListPapersRequest(page_size=1000, view=paper_pb2.PAPER_VIEW_FULL)
        while True:
            page = client.index.ListPapers(request, timeout=30)
            papers |= {paper.id: paper for paper in page.papers}
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        versions = {
            paper: client.profiles.GetProfile(profile_query_pb2.GetProfileRequest(paper_id=paper), timeout=30).version
            for paper in papers
            if paper.startswith(f"{name}/")
        }
        return cls(papers, versions, dead_letters(client))


def dead_letters(client: Client) -> dict[str, str]:
    dead: dict[str, str] = {}
    request = ingestion_pb2.ListDeadLettersRequest(page_size=3)
    while True:
        page = client.ingestion.ListDeadLetters(request, timeout=30)
        assert not dead.keys() & {letter.id for letter in page.dead_letters}
        dead |= {letter.id: letter.event_id for letter in page.dead_letters}
        if not page.next_page_token:
            return dead
        request.page_token = page.next_page_token


def check_effects(
    client: Client, acknowledged: list[ingestion_pb2.PublishResponse], bodies: list[Publication | Retraction], name: str
) -> None:
    """Checks against the reference model that every event took effect or is a dead letter."""
    model = LedgerModel()
    with ThreadPoolExecutor(len(acknowledged)) as askers:  # concurrent calls share reads
        statuses = list(askers.map(lambda response: client.settled(response.token, seconds=PATIENCE), acknowledged))
    buried = set(dead_letters(client).values())
    for response, body, status in zip(acknowledged, bodies, statuses, strict=True):
        outcome = model.deliver(Event(response.event_id, body))
        if response.event_id in buried:
            assert outcome == "DEAD"
            assert (status.state, status.outcome) == (ingestion_pb2.PUBLICATION_STATE_DEAD, "REVISION_CONFLICT")
        else:
            assert status.state == ingestion_pb2.PUBLICATION_STATE_SEARCHABLE, status
            # The event was DEAD, but a crash lost this result before the dead letter was written, so it was applied
            # again. By then a newer revision had arrived, so it is SUPERSEDED instead.
            assert outcome != "DEAD" or status.outcome == "SUPERSEDED"
    seen = World.seen(client, name)
    shown = {key: paper for key, paper in seen.papers.items() if key.startswith(f"{name}/")}
    expected = {key: told for key, told in model.published().items() if not model.papers[key].retracted}
    assert shown.keys() == expected.keys()
    for key, publication in expected.items():
        assert (shown[key].title, shown[key].revision) == (publication.title, publication.revision)
        assert shown[key].in_degree == model.in_degree(key)
    checked = client.ledger.CheckProfiles(ledger_pb2.CheckProfilesRequest(), timeout=60)
    assert not checked.faults
    assert checked.checked >= len(expected)


def replay_everything(client: Client) -> ingestion_pb2.ReplayResponse:
    total = ingestion_pb2.ReplayResponse()
    for partition in client.ingestion.Info(ingestion_pb2.InfoRequest(), timeout=30).partitions:
        whole = ingestion_pb2.OffsetRange(
            partition=partition.partition, first=partition.first_offset, end=partition.end_offset
        )
        replayed = client.ingestion.Replay(ingestion_pb2.ReplayRequest(offsets=whole), timeout=PATIENCE)
        assert replayed.delivered == partition.end_offset - partition.first_offset
        total.delivered += replayed.delivered
        total.applied += replayed.applied
    return total
