"""The errors that a user can mend: shown as one line, without a traceback."""

from __future__ import annotations

from analysis.load import ResultsError as AnalysisError
from testbed.bursts import InjectorError
from testbed.results import ResultsError
from testbed.runner import EngineError
from testbed.shaping import ShapingError
from testbed.topology import TopologyError
from testbed.training.data import DataError

USER_ERRORS = (AnalysisError, DataError, EngineError, InjectorError, ResultsError, ShapingError, TopologyError)
