"""Turns recorded feedback into a data set of the lab: a deployment can evaluate and train on its users' choices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from citewell.corpora.readers import ContextRecord, Reject, read_contexts, read_papers
from citewell.scholarly.contexts import count_targets
from citewell.scholarly.dates import PartialDate
from citewell.types.v1 import feedback_pb2


@dataclass(frozen=True, slots=True)
class Shares:
    """How many of the drafts go to train and to validation; the others are test. A draft always goes to the same."""

    train: float = 0.0
    validation: float = 0.2

    def split_of(self, draft: str) -> str:
        """The split of a draft, by its id."""
        place = int(draft.removeprefix("draft-")[:8], 16) / (1 << 32)
        if place < self.train:
            return "train"
        return "validation" if place < self.train + self.validation else "test"


@dataclass(slots=True)
class Exported:
    """What was written, and what the order of the answers was worth to those who chose."""

    events: int = 0
    with_choice: int = 0
    contexts: int = 0
    without_text: int = 0
    """Choices that are no contexts, because the writer's text was not kept."""
    unknown_papers: int = 0
    """Choices that are no contexts, because the corpus lacks the chosen paper."""
    rejected: int = 0
    """Records of the corpus that cannot be used; they are left out."""
    reciprocal_rank: float = 0.0
    """Mean of 1/rank of the first chosen paper, over events with a choice."""


def export(events: Iterable[feedback_pb2.Feedback], corpus: Path, out: Path, shares: Shares) -> Exported:
    """Writes papers, contexts, splits and choices into the new folder `out`.

    Papers and contexts of the corpus are copied; its citing papers are the train split. Each draft whose text was kept
    is a citing paper too, and each choice a context of it. `choices.jsonl` has all events, with and
    without text.
    """
    out.mkdir(parents=True)
    told = Exported()
    rejected: list[Reject] = []
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    with ExitStack() as files:
        papers, contexts, choices = (
            files.enter_context((out / f"{name}.jsonl").open("w", encoding="utf-8"))
            for name in ("papers", "contexts", "choices")
        )
        known = set()
        for record in read_papers(corpus, rejected.append):
            known.add(record.id)
            paper = {"id": record.id, "title": record.title, "abstract": record.abstract, "venue": record.venue}
            papers.write(_line(paper | _dated(record.published)))
        citing: dict[str, None] = {}
        for context in read_contexts(corpus, rejected.append):
            citing[context.citing_id] = None
            contexts.write(_line(_of_corpus(context)))
        splits["train"] = list(citing)
        drafts: set[str] = set()
        ranks = 0.0
        for event in _once(events):
            told.events += 1
            choices.write(_line(MessageToDict(event, preserving_proto_field_name=True)))
            if not event.chosen:
                continue
            told.with_choice += 1
            ranks += 1.0 / (1 + min(list(event.shown).index(each) for each in event.chosen))
            if not event.HasField("text") or count_targets(event.text.context) != 1:
                told.without_text += len(event.chosen)
                continue
            draft = _draft_id(event.text)
            for number, chosen in enumerate(event.chosen):
                if chosen not in known:
                    told.unknown_papers += 1
                    continue
                if draft not in drafts:
                    drafts.add(draft)
                    splits[shares.split_of(draft)].append(draft)
                    papers.write(_line(_draft(draft, event)))
                contexts.write(_line(_context(event, draft, chosen, number)))
                told.contexts += 1
        told.rejected = len(rejected)
        told.reciprocal_rank = ranks / told.with_choice if told.with_choice else 0.0
    (out / "splits.json").write_text(json.dumps(splits), encoding="utf-8")
    (out / "export.json").write_text(json.dumps(asdict(told), indent=1), encoding="utf-8")
    return told


def _once(events: Iterable[feedback_pb2.Feedback]) -> Iterator[feedback_pb2.Feedback]:
    """Each event once, though a repeated call may have recorded it twice."""
    seen: set[str] = set()
    for event in events:
        if event.event_id not in seen:
            seen.add(event.event_id)
            yield event


def _draft(identifier: str, event: feedback_pb2.Feedback) -> dict[str, Any]:
    return {
        "id": identifier,
        "title": event.text.title or "untitled draft",
        "abstract": event.text.abstract,
        "published": event.recorded.ToDatetime().date().isoformat(),
    }


def _context(event: feedback_pb2.Feedback, draft: str, chosen: str, number: int) -> dict[str, Any]:
    return {
        "id": f"{event.event_id}-{number}",
        "citing_id": draft,
        "cited_id": chosen,
        "text": event.text.context,
        "published": event.recorded.ToDatetime().date().isoformat(),
        "group": len(event.chosen),
        "source": "feedback",
    }


def _draft_id(text: feedback_pb2.FeedbackText) -> str:
    """The same for every choice in a draft, as long as its title and abstract stay as they are."""
    named = text.title + "\n" + text.abstract if text.title or text.abstract else text.context
    return f"draft-{hashlib.sha256(named.encode()).hexdigest()[:16]}"


def _of_corpus(context: ContextRecord) -> dict[str, Any]:
    written = {
        "id": context.id,
        "citing_id": context.citing_id,
        "cited_id": context.cited_id,
        "text": context.text,
        "group": context.group,
        "source": context.source,
    }
    return written | _dated(context.published)


def _dated(date: PartialDate) -> dict[str, str]:
    return {"published": str(date)} if date.year else {}


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
