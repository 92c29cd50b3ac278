"""The fake engines: deterministic, schema-aware, with faults on demand; public as `lf.testing`."""

from llmframe.engines.fake.batch import FakeBatchEngine
from llmframe.engines.fake.engine import FakeEngine
from llmframe.engines.fake.faults import Fault

__all__ = ["FakeBatchEngine", "FakeEngine", "Fault"]
