"""How the language model acts."""

from lgym.policies.candidates import CandidatePolicy

__all__ = ["CandidatePolicy"]
