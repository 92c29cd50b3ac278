"""A pandas accessor that lets a language model fill in columns.

``df.llm.map(prompt, schema=…)``, ``df.llm.classify(…)``, ``df.llm.extract(…)`` and
``df.llm.filter(…)`` run on the embedded model, a server, or a provider's API: the same call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from llmframe import accessor, options, progress, reviews, testing, widgets
from llmframe.errors import (
    BudgetError,
    EngineError,
    LLMFrameError,
    ModelError,
    PromptError,
    RowsFailed,
    RowsFailedWarning,
    RowsSkippedWarning,
    SchemaError,
    StoreError,
)
from llmframe.functions import classify, compare, extract, filter, judge, map
from llmframe.jobs import Job
from llmframe.options import get_options, set_options
from llmframe.rubrics import Rubric
from llmframe.submits import job, jobs, purge
from llmframe.tuning import tune

if TYPE_CHECKING:
    from llmframe.engines.anthropic import Anthropic
    from llmframe.engines.local import Local
    from llmframe.engines.openai import OpenAI
    from llmframe.engines.vllm import VLLM
    from llmframe.judges.agreement import agreement
    from llmframe.judges.audit import audit
    from llmframe.judges.calibration import calibration
    from llmframe.judges.corrected import corrected, how_many_labels
    from llmframe.judges.ranking import ranking

__version__ = "0.1.0"

__all__ = [
    "VLLM",
    "Anthropic",
    "BudgetError",
    "EngineError",
    "Job",
    "LLMFrameError",
    "Local",
    "ModelError",
    "OpenAI",
    "PromptError",
    "RowsFailed",
    "RowsFailedWarning",
    "RowsSkippedWarning",
    "Rubric",
    "SchemaError",
    "StoreError",
    "agreement",
    "audit",
    "calibration",
    "classify",
    "compare",
    "corrected",
    "extract",
    "filter",
    "get_options",
    "how_many_labels",
    "job",
    "jobs",
    "judge",
    "map",
    "options",
    "purge",
    "ranking",
    "set_options",
    "testing",
    "tune",
]

# The engines load SDKs, and few sessions check a judge: they are imported when first named.
_LATER: Final = {
    "Anthropic": "llmframe.engines.anthropic",
    "Local": "llmframe.engines.local",
    "OpenAI": "llmframe.engines.openai",
    "VLLM": "llmframe.engines.vllm",
    "agreement": "llmframe.judges.agreement",
    "audit": "llmframe.judges.audit",
    "calibration": "llmframe.judges.calibration",
    "corrected": "llmframe.judges.corrected",
    "how_many_labels": "llmframe.judges.corrected",
    "ranking": "llmframe.judges.ranking",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'llmframe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


accessor.register()
progress.draw_with(widgets.live)
reviews.draw_with(widgets.reviewing)
