"""What notebooks show by ipywidgets, a job while it runs and a review; loaded when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmframe.progress import View, Watched

if TYPE_CHECKING:
    from llmframe.reviews import Review
    from llmframe.widgets.reviewing import ReviewView

__all__ = ["live", "reviewing"]


def live(watched: Watched) -> View:
    """A view of a job that keeps itself up to date."""
    from llmframe.widgets.live import LiveView

    return LiveView(watched)


def reviewing(review: Review) -> ReviewView:
    """A review that is clicked through."""
    from llmframe.widgets.reviewing import ReviewView

    return ReviewView(review)
