"""Discrete soft actor-critic: against exact values, and the sign of its temperature."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch

from helpers.lookup import GAMMA, Lookup, every_transition, fit, lake
from helpers.training import tiny_config
from lgym.envs.maze import START_CELLS
from lgym.functional import expected_value
from lgym.modules import DQN, SAC, SFTConfig
from lgym.rollout import Prompt
from lgym.transitions import TransitionBatch

FITTED = {"loss/q": "twins", "loss/policy": "scores"}


def world(name):
    return lake(is_slippery=False) if name == "lake" else every_transition(gymnasium.make(name).unwrapped)


@pytest.mark.parametrize("name", ["lake", pytest.param("lgym/Maze-v0", marks=pytest.mark.slow)])
def test_it_finds_the_optimal_values(name):
    """With a temperature at which no second best action has a chance."""
    batch, expected = world(name)
    module = SAC(policy=Lookup(*expected.shape), gamma=GAMMA, temperature=0.002, target_entropy=0.0)
    fit(module, batch, 20, FITTED)
    found = module.policy.llm.twins.detach().numpy()
    states = list(START_CELLS) if "Maze" in name else range(16)  # in a wall one stays for ever
    assert np.abs(found[states] - expected[states, :, None]).max() < 1e-6


def test_a_soft_critic_finds_the_values_of_maximum_entropy():
    """q = r + γ Σ π (q - α log π), π = softmax(q / α), by its own iteration."""
    batch, expected = lake(is_slippery=False)
    alpha, q = 0.1, np.zeros_like(expected)
    reward, following, ends = (np.zeros(expected.shape, kind) for kind in (float, int, bool))
    for row in range(len(batch)):
        at = int(batch.prompt_index[row]), int(batch.choices[row])
        reward[at], following[at] = float(batch.rewards[row]), int(batch.next_prompt_index[row])
        ends[at] = float(batch.discounts[row]) == 0
    for _ in range(500):
        soft = alpha * np.log(np.exp(q / alpha).sum(-1))
        q = reward + GAMMA * np.where(ends, 0.0, soft[following])
    module = SAC(policy=Lookup(16, 4), gamma=GAMMA, temperature=alpha, soft_critic=True)
    fit(module, batch, 150, FITTED)
    assert np.abs(module.policy.llm.twins.detach().numpy() - q[..., None]).max() < 1e-5


@pytest.mark.parametrize(("target_entropy", "grows"), [(0.9, True), (0.3, False)])
def test_the_temperature_holds_the_entropy(target_entropy, grows):
    """It grows while the entropy is too low and falls while it is too high (SAC-GLAM's can only fall)."""
    batch, _ = lake(is_slippery=False)
    policy = Lookup(16, 4)
    policy.llm.scores.data[:, 0] = math.log(6.0)  # an entropy of 0.73 log 4
    module = SAC(policy=policy, gamma=GAMMA, target_entropy=target_entropy)
    optimizer = torch.optim.SGD([module.log_temperature], lr=0.1)
    before = module.log_temperature.item()
    module.loss(batch)[0].backward()
    optimizer.step()
    assert (module.log_temperature.item() > before) == grows


def test_the_largest_entropy_is_that_of_the_states_candidates():
    batch, _ = lake(is_slippery=False)
    module = SAC(policy=Lookup(16, 4))
    assert module.largest_entropies(batch).tolist() == [pytest.approx(math.log(4))] * 16


def test_the_mean_over_candidates_leaves_out_what_is_none():
    logprobs = torch.tensor([[math.log(0.25), math.log(0.75), -torch.inf]])
    assert expected_value(logprobs, torch.tensor([[4.0, 8.0, -torch.inf]])).item() == pytest.approx(7.0)


def test_the_policys_gradient_leaves_the_action_values_alone():
    batch, _ = lake(is_slippery=False)
    module = SAC(policy=Lookup(16, 4), gamma=GAMMA)
    module.policy.llm.twins.data.normal_(generator=torch.Generator().manual_seed(0))
    terms, _ = module.objective(batch)
    terms["loss/policy"].mean().backward()
    assert module.policy.llm.twins.grad is None
    assert module.policy.llm.scores.grad.abs().max() > 0


def bandit(**rewards):
    """One prompt with the choices l, d, r and u, of which some were taken once and ended the episode."""
    prompt = Prompt((0,), ((1,), (2,), (3,), (4,)), tuple("ldru"), "0")
    paid = torch.tensor(list(rewards.values()), dtype=torch.float64)
    nothing = torch.zeros_like(paid)
    return TransitionBatch(
        (prompt,),
        prompt_index=nothing.long(),
        choices=torch.tensor(["ldru".index(choice) for choice in rewards]),
        rewards=paid,
        next_prompt_index=nothing.long() - 1,
        discounts=nothing,
        next_values=nothing,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_a_policy_that_is_sure_of_a_wrong_choice_leaves_it(temperature):
    """The gradient of the papers' loss, α KL(π || softmax), has the factors α and π: one cell of a maze was
    left in the wrong direction for six rollouts."""
    module = SAC(policy=Lookup(1, 4), temperature=temperature)
    module.policy.llm.scores.data[0, 0] = 30.0
    module.policy.llm.twins.data[0, 1] = 30.0
    module.objective(bandit(d=30.0))[0]["loss/policy"].mean().backward()
    assert torch.allclose(module.policy.llm.scores.grad[0], torch.tensor([1.0, -1.0, 0.0, 0.0]).double())


def test_the_policy_follows_values_that_are_carried_on_where_it_has_them(monkeypatch):
    """The head says that the first choice is best; what was met, that the last is."""
    monkeypatch.setattr(SAC, "graph_values", True)
    module = SAC(policy=Lookup(1, 4), temperature=1.0)
    module.policy.llm.twins.data[0, 0] = 1.0
    module.objective(bandit(r=2.0, u=3.0))[0]["loss/policy"].mean().backward()
    teacher = torch.tensor([1.0, 0.0, 2.0, 3.0], dtype=torch.float64).softmax(-1)
    assert torch.allclose(module.policy.llm.scores.grad[0], 1 / 4 - teacher)


@pytest.mark.parametrize("algorithm", [SAC, DQN])
@pytest.mark.parametrize(("gamma", "open_settings"), [(None, {"gamma", "replay"}), (0.9, {"replay"})])
def test_random_play_decides_about_the_replay_buffer(model_folder, algorithm, gamma, open_settings):
    assert algorithm(llm=tiny_config(model_folder), gamma=gamma).open_settings == open_settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"target_entropy": 1.5}, "target_entropy is 1.5"), ({"temperature": 0.0}, "temperature is 0.0")],
)
def test_what_cannot_be_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        SAC(**settings)


def test_a_precision_plugin_cannot_round_the_temperature(model_folder):
    """In bf16 log α stays where a step is less than half of what its three digits can tell apart: at -1, with
    steps of 0.004."""
    module = SAC(llm=tiny_config(model_folder), temperature=0.3)
    module.to(torch.bfloat16)
    assert module.log_temperature.item() == pytest.approx(math.log(0.3), abs=1e-7)


@pytest.mark.parametrize(("given", "rollouts", "inertia"), [(None, 0, 0.0), (None, 2, 1.0), (0.5, 2, 0.5)])
def test_behind_demonstrations_the_policy_goes_on_from_where_it_is(model_folder, given, rollouts, inertia):
    module = SAC(llm=tiny_config(model_folder), sft=SFTConfig(rollouts=rollouts), inertia=given)
    assert module.inertia == inertia


@pytest.mark.parametrize("inertia", [0.5, 1.0])
def test_inertia_adds_action_values_to_the_target_networks_policy(inertia):
    """Of a policy that has moved on since the target network was copied from it."""
    module = SAC(policy=Lookup(1, 4), temperature=2.0, inertia=inertia)
    module.policy.llm.scores.data[0] = before = torch.tensor([3.0, 1.0, 0.0, 0.0]).double()
    assert module.target is not None
    module.policy.llm.scores.data[0] = now = torch.tensor([0.0, 0.0, 2.0, 0.0]).double()
    module.policy.llm.twins.data[0, 1] = 4.0
    terms, _ = module.objective(bandit(d=4.0))
    terms["loss/policy"].mean().backward()
    wanted = (inertia * before.log_softmax(-1) + torch.tensor([0.0, 2.0, 0.0, 0.0])).softmax(-1)
    torch.testing.assert_close(module.policy.llm.scores.grad[0], now.softmax(-1) - wanted)
    assert ("loss/temperature" in terms) == (inertia < 1)  # of a policy that does not forget it has no say
