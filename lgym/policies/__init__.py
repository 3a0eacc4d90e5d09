"""How the language model acts."""

from lgym.policies.candidates import CandidatePolicy
from lgym.policies.generation import GenerationPolicy

__all__ = ["CandidatePolicy", "GenerationPolicy"]
