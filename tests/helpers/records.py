"""A record of a run that nobody ran."""

from __future__ import annotations

from lgym.cli.bench.records import RunRecord

RECORD = RunRecord(
    name="lake",
    seed=3,
    subject={
        "algorithm": "PPO",
        "policy": "CandidatePolicy",
        "model": "tiny",
        "env": "FrozenLake-v1",
        "env_kwargs": {"is_slippery": False},
        "reference_returns": {"random": 0.014, "optimal": 1.0},
    },
    command="lgym fit --config lake.yaml",
    commit="abc",
    machine="a CPU, 1 core, 1 thread",
    versions={"torch": "2"},
    minutes=1.5,
    rollouts=2,
    turns=64,
    curves={
        "val_sampled/return_mean": [(0, 0.1), (64, 0.9)],
        "val_greedy/return_mean": [(0, 0.0), (64, 1.0)],
        "rollout/return_mean": [(32, 0.2), (64, 0.8)],
    },
)
