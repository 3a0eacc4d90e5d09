"""What watches a run: progress, transcripts, pictures, exports."""

from lgym.callbacks.blackjack import BlackjackStrategy
from lgym.callbacks.collapse_guard import CollapseGuard
from lgym.callbacks.disk import DiskGuard
from lgym.callbacks.ending import GracefulEnding, follow_first_process
from lgym.callbacks.export import AdapterExport
from lgym.callbacks.progress import RolloutProgress
from lgym.callbacks.summary import RunSummary
from lgym.callbacks.tokens import TokenTranscripts
from lgym.callbacks.transcripts import Transcripts, TranscriptWriter

__all__ = [
    "AdapterExport",
    "BlackjackStrategy",
    "CollapseGuard",
    "DiskGuard",
    "GracefulEnding",
    "RolloutProgress",
    "RunSummary",
    "TranscriptWriter",
    "follow_first_process",
    "TokenTranscripts",
    "Transcripts",
]
