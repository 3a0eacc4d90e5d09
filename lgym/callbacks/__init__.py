"""Callbacks that watch a run: progress, episodes, pictures, exports, guards."""

from lgym.callbacks.adapter_export import AdapterExport
from lgym.callbacks.best_checkpoint import BestCheckpoint
from lgym.callbacks.blackjack_strategy import BlackjackStrategy
from lgym.callbacks.collapse_guard import CollapseGuard
from lgym.callbacks.disk import DiskGuard
from lgym.callbacks.early_stopping import StopOnReturnThreshold
from lgym.callbacks.episode_logger import EpisodeLogger, TranscriptWriter
from lgym.callbacks.last_checkpoint import LastCheckpoint
from lgym.callbacks.maze_strategy import MazeStrategy
from lgym.callbacks.phase_profiler import PhaseProfiler
from lgym.callbacks.progress import RolloutProgress
from lgym.callbacks.provenance import Provenance
from lgym.callbacks.rollout_notes import RolloutNotes
from lgym.callbacks.signals import GracefulShutdown, follow_first_process
from lgym.callbacks.summary import RunSummary
from lgym.callbacks.time_limit import TimeLimit
from lgym.callbacks.token_picture import TokenTraceLogger

__all__ = [
    "AdapterExport",
    "BestCheckpoint",
    "BlackjackStrategy",
    "CollapseGuard",
    "DiskGuard",
    "EpisodeLogger",
    "GracefulShutdown",
    "LastCheckpoint",
    "MazeStrategy",
    "PhaseProfiler",
    "Provenance",
    "RolloutNotes",
    "RolloutProgress",
    "RunSummary",
    "StopOnReturnThreshold",
    "TimeLimit",
    "TokenTraceLogger",
    "TranscriptWriter",
    "follow_first_process",
]
