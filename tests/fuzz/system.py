"""The whole system with small models, requests to begin with, and what must still hold after a campaign."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from citewell.commands.stack import Stack, choose_ports
from citewell.index.v1 import index_pb2
from citewell.ingestion.v1 import ingestion_pb2
from citewell.profiler.v1 import profile_query_pb2
from citewell.recommender.v1 import recommender_pb2
from citewell.reranker.v1 import reranker_pb2
from citewell.scholarly.publications import Publication
from citewell.types.messages import publication_to_message
from citewell.types.v1 import terms_pb2
from tests.demo_world import divided
from tests.e2e.client import Client
from tests.fuzz.campaign import Findings, RpcCampaign, fuzz_edge
from tests.fuzz.parsers import DRAFT
from tests.security.every_service import SERVICES
from tests.tiny_models import write_tiny_encoder

PAPERS = 200
PROCESS_OF = {
    "citewell.recommender.v1.RecommenderService": "recommender",
    "citewell.profiler.v1.ProfileQueryService": "profiler",
    "citewell.profiler.v1.LedgerService": "profiler",
    "citewell.index.v1.IndexService": "index",
    "citewell.reranker.v1.RerankerService": "reranker",
    "citewell.ingestion.v1.IngestionService": "ingestion",
}
# They replace or delete what the other calls need: tried by themselves, after all others.
DESTRUCTIVE = ("AdoptRestoredLedger", "DropView", "ServeView", "SwitchView", "CreateView", "StartRebuild")


@dataclass
class System:
    """Six processes with some papers."""

    stack: Stack
    client: Client
    seeds: list[Message]

    def memory(self) -> dict[str, int]:
        """Resident bytes of each process."""
        page = os.sysconf("SC_PAGE_SIZE")
        return {
            name: int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * page
            for name, process in self.stack.processes.items()
        }

    def try_rpcs(self, seconds: float, seed: int, findings: Findings) -> None:
        """Calls every RPC for so many seconds, those that destroy views at the end."""
        asyncio.run(self._try_rpcs(seconds, seed, findings))

    async def _try_rpcs(self, seconds: float, seed: int, findings: Findings) -> None:
        async with contextlib.AsyncExitStack() as opened:
            channels = {}
            for service, process in PROCESS_OF.items():
                channel = grpc.aio.insecure_channel(self.stack.addresses[process])
                channels[service] = await opened.enter_async_context(channel)
            every = [rpc for service in SERVICES.values() for rpc in service.methods]
            harmless = [rpc for rpc in every if rpc.name not in DESTRUCTIVE]
            for rpcs, share, number in ((harmless, 0.9, seed), (every, 0.1, seed + 1)):
                campaign = RpcCampaign(channels, rpcs, self.seeds, number, findings)
                await campaign.run(seconds * share)

    def try_edge(self, seconds: float, seed: int, findings: Findings) -> None:
        """Calls the edge over HTTP."""
        rpcs: list[MethodDescriptor] = list(SERVICES["citewell.recommender.v1.RecommenderService"].methods)
        fuzz_edge(self.stack.ports["http"], rpcs, self.seeds, seconds, seed, findings)

    def check(self, findings: Findings) -> None:
        """All processes run, no log tells of a defect, and a new publication still becomes searchable."""
        for name, process in self.stack.processes.items():
            if process.poll() is not None:
                findings.problem(f"{name} ended with code {process.returncode}", self.stack.last_words(name))
            for line in self.stack.log(name).read_text(errors="replace").splitlines():
                if '"defect"' in line or "Traceback" in line or "Fatal Python error" in line:
                    findings.problem(f"{name}: {line[-300:]}", line[:3000])
        sentinel = Publication(paper_id="after-the-campaign", revision=1, title="Still here")
        try:
            status = self.client.settled(self.client.publish(sentinel).token, seconds=120)
            if status.state != ingestion_pb2.PUBLICATION_STATE_SEARCHABLE:
                findings.problem("a publication after the campaign", str(status))
        except grpc.RpcError as error:
            findings.problem("a publication after the campaign", str(error))


@contextlib.contextmanager
def running_system(folder: Path) -> Iterator[System]:
    """The system, when the papers are searchable."""
    settings = {
        "CITEWELL_PROFILER__ENCODER": str(write_tiny_encoder(folder / "encoder")),
        "CITEWELL_PROFILER__ENCODER_CACHE": str(folder / "graphs"),
        "CITEWELL_PROFILER__ENCODER_THREADS": "1",
        "CITEWELL_RERANKER__THREADS": "1",
        "CITEWELL_INGESTION__PACE__LONGEST_BACKOFF_SECONDS": "0.3",
    }
    stack = Stack(folder / "data", choose_ports(0), settings=settings)
    stack.start()
    client = Client(stack.addresses)
    try:
        stack.wait()
        world = list(divided(PAPERS, 7))
        token = ""
        for publication, _ in world:
            token = client.publish(publication).token
        client.settled(token, seconds=120)
        yield System(stack, client, _seeds(client, world))
    finally:
        client.close()
        stack.stop()


def _seeds(client: Client, world: list[tuple[Publication, list[object]]]) -> list[Message]:
    """Sound requests of the RPCs, with ids, views and vectors that exist."""
    asked = next(each for _, some in world for each in some)
    query: recommender_pb2.Query = asked.query  # type: ignore[attr-defined]
    embedded = client.profiles.EmbedQuery(
        profile_query_pb2.EmbedQueryRequest(context=query.context, title=query.title, abstract=query.abstract),
        timeout=30,
    )
    ids = [publication.paper_id for publication, _ in world]
    listed = client.index.ListPapers(index_pb2.ListPapersRequest(page_size=10), timeout=30)
    seeds: list[Message] = [
        recommender_pb2.RecommendRequest(query=query, options=recommender_pb2.Options(top_k=5)),
        recommender_pb2.RecommendBatchRequest(requests=[recommender_pb2.RecommendRequest(query=query)] * 2),
        recommender_pb2.ExplainRequest(query=query, paper_id=ids[0]),
        recommender_pb2.RecommendManuscriptRequest(
            files=[recommender_pb2.ManuscriptFile(name="main.tex", content=DRAFT.encode())]
        ),
        profile_query_pb2.EmbedQueryRequest(context=query.context, title=query.title),
        profile_query_pb2.ScoreProfilesRequest(
            paper_ids=ids[:5], query_vector=embedded.query_vector, lexical=embedded.lexical, matched_terms=3
        ),
        profile_query_pb2.GetProfileRequest(paper_id=ids[0]),
        profile_query_pb2.ListReferencesRequest(paper_ids=ids[:5]),
        reranker_pb2.RerankRequest(
            context=query.context,
            candidates=[
                reranker_pb2.RerankCandidate(paper_id=each, rank=i + 1, title=each) for i, each in enumerate(ids[:3])
            ],
        ),
        index_pb2.GetPapersRequest(ids=ids[:5]),
        index_pb2.ListPapersRequest(page_size=10, page_token=listed.next_page_token),
        index_pb2.ReadPointsRequest(paper_ids=ids[:5], index_view=embedded.view),
        index_pb2.SearchRequest(
            field=index_pb2.SEARCH_FIELD_HYBRID,
            vector=embedded.query_vector,
            limit=10,
            index_view=embedded.view,
            lexical=embedded.lexical,
            matched_terms=3,
        ),
        index_pb2.SearchSpansRequest(
            terms=terms_pb2.Terms(ids=embedded.lexical.terms.ids, values=[1] * len(embedded.lexical.terms.ids))
        ),
        index_pb2.SearchEvidenceRequest(
            cited_ids=ids[:5], vector=embedded.context_vector, limit_per_paper=3, lexical=embedded.lexical
        ),
        # Their texts, views and hashes are used in other requests.
        listed,
        embedded,
        *[ingestion_pb2.PublishRequest(publication=publication_to_message(each)) for each, _ in world[:3]],
    ]
    return seeds
