"""A provider's batch API as a stream, so that a batch engine is an engine like any other."""

from llmframe.lanes.checkoff import CONFLICTS
from llmframe.lanes.lane import READER, Clock, Lane
from llmframe.lanes.twin import Twin, twin_of
from llmframe.lanes.work import UNSENT

__all__ = ["CONFLICTS", "READER", "UNSENT", "Clock", "Lane", "Twin", "twin_of"]
