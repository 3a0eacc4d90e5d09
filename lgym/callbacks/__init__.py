"""Callbacks that watch a run: progress, episodes, pictures, exports, guards."""

from lgym.callbacks.blackjack_strategy import BlackjackStrategy
from lgym.callbacks.collapse_guard import CollapseGuard
from lgym.callbacks.disk import DiskGuard
from lgym.callbacks.episode_logger import EpisodeLogger, TranscriptWriter
from lgym.callbacks.export import AdapterExport
from lgym.callbacks.progress import RolloutProgress
from lgym.callbacks.signals import GracefulShutdown, follow_first_process
from lgym.callbacks.summary import RunSummary
from lgym.callbacks.token_picture import TokenTraceLogger

__all__ = [
    "AdapterExport",
    "BlackjackStrategy",
    "CollapseGuard",
    "DiskGuard",
    "EpisodeLogger",
    "GracefulShutdown",
    "RolloutProgress",
    "RunSummary",
    "TokenTraceLogger",
    "TranscriptWriter",
    "follow_first_process",
]
