"""Policies: the ways in which a language model acts."""

from lgym.policies.candidates import CandidatePolicy
from lgym.policies.generation import GenerationPolicy
from lgym.policies.policy import LLMPolicy
from lgym.policies.think import ThinkPolicy

__all__ = ["CandidatePolicy", "GenerationPolicy", "LLMPolicy", "ThinkPolicy"]
