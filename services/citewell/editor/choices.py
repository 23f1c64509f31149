"""Tells the recommender which completions were accepted, if it wants to know."""

from __future__ import annotations

from dataclasses import dataclass

from citewell.client import AsyncCitewell, CitewellError, FeedbackPolicy, Item, Query, Recommendation

SECONDS = 5.0
"""Deadline of a report. It is sent in the background."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A completion, and the answer that it comes from."""

    item: Item
    answer: Recommendation
    shown: tuple[str, ...]
    """Ids of all papers that were offered with it, in their order."""
    query: Query


class ChoiceReports:
    """Reports accepted completions. Text goes along only with `share_text`, and only to a service that keeps it."""

    def __init__(self, client: AsyncCitewell, *, enabled: bool, share_text: bool) -> None:
        self._client, self._enabled, self._share_text = client, enabled, share_text
        self._policy: FeedbackPolicy | None = None

    async def accepted(self, suggestion: Suggestion) -> None:
        """Reports one; does nothing if the service wants no reports, or does not answer."""
        if not self._enabled:
            return
        try:
            if self._policy is None:
                self._policy = await self._client.feedback_policy(timeout=SECONDS)
            if self._policy is FeedbackPolicy.OFF:
                return
            text = suggestion.query if self._share_text and self._policy is FeedbackPolicy.TEXT else None
            await self._client.record_feedback(
                suggestion.answer,
                chosen=[suggestion.item.paper.id],
                shown=suggestion.shown,
                query=text,
                timeout=SECONDS,
            )
        except CitewellError:
            self._policy = None  # ask again next time: the service may have been restarted with other settings
