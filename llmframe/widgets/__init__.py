"""What notebooks show of a job while it runs, by ipywidgets; loaded when first needed."""

from __future__ import annotations

from llmframe.progress import View, Watched

__all__ = ["live"]


def live(watched: Watched) -> View:
    """A view of a job that keeps itself up to date."""
    from llmframe.widgets.live import LiveView

    return LiveView(watched)
