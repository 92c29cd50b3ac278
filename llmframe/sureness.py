"""What `classify` can be told of how sure it has to be; refused before anything is sent."""

from __future__ import annotations

from typing import Any

from llmframe.engines.base import BatchEngine, Engine
from llmframe.keywords import Asked
from llmframe.label_scores import Fitted, Scaling
from llmframe.labels import Labels

__all__ = ["check_cascade", "check_fitted", "check_unsure"]


def check_cascade(unsure_below: Any, below: Any, alone: bool, given: Asked) -> None:
    """Refuse what does not go with ``escalate_to=``.

    Args:
        unsure_below: As it was given.
        below: As it was given.
        alone: The label comes with a reason, or with others.
        given: The common keywords.

    Raises:
        ValueError: Says which, and what to do.
    """
    if unsure_below is not None:
        raise ValueError("escalate_to= takes below=, and no unsure_below=.")
    _check_probability("below", below)
    if alone:
        raise ValueError("escalate_to= needs probabilities of one label: no explain=, no multi=.")
    if given.if_exists == "fill":
        raise ValueError(
            f"escalate_to= with fill: its two calls write one column between them. Make the calls "
            f'yourself: unsure_below={below:g}, and then if_exists="fill" with the other model=.'
        )


def check_fitted(fitted: Fitted, known: Labels, model: str) -> None:
    """Refuse a fit that was made of another model's probabilities, or of other labels.

    Raises:
        ValueError: Names both.
    """
    if fitted.model not in {None, model}:
        raise ValueError(
            f"calibration= was fitted to probabilities of {fitted.model}, and says nothing about "
            f"those of {model}. Fit one to its own. Nothing was sent."
        )
    ours = tuple(str(value) for value in known.values)
    if isinstance(fitted, Scaling) and fitted.labels != ours:
        raise ValueError(
            f"calibration= was fitted for the labels {', '.join(fitted.labels[:10])}, and these "
            f"are {', '.join(ours[:10])}. Their order counts, too. Nothing was sent."
        )


def check_unsure(below: Any, scored: bool, engine: Engine | BatchEngine) -> None:
    """Refuse ``unsure_below=`` where no label has a probability.

    Raises:
        ValueError: It is no probability, or the engine gives none.
    """
    _check_probability("unsure_below", below)
    if not (scored and engine.limits.choices):
        why = f"{engine.name}/{engine.model}" if scored else "a label with explain= or multi="
        raise ValueError(
            f"unsure_below= and escalate_to=: {why} comes without the probabilities of the labels. "
            f"Leave them out, or ask a model that gives these. Nothing was sent."
        )


def _check_probability(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"{name}={value!r}: expected a probability, such as 0.8.")
