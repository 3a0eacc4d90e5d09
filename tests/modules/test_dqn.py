"""Deep Q-learning: against exact values, by a policy that looks its numbers up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from helpers.lookup import GAMMA, Lookup, every_transition, fitted, lake
from helpers.rollouts import candidate_learner, candidate_rollout
from helpers.training import fit, tiny_config
from lgym.data import GraphReplayBuffer, ReplayBuffer
from lgym.envs.maze import START_CELLS, MazeEnv
from lgym.functional import conservative_penalty
from lgym.modules import CQL, DQN, SAC
from lgym.modules.target_network import TargetNetwork
from lgym.modules.transitions import rollout_transitions
from lgym.policies import CandidatePolicy, GenerationPolicy
from lgym.rollout import Prompt
from lgym.transitions import TransitionBatch


@pytest.mark.parametrize("double_q", [True, False])
def test_it_finds_the_optimal_values_of_frozen_lake(double_q):
    batch, expected = lake(is_slippery=False)
    module = DQN(policy=Lookup(16, 4), gamma=GAMMA, beta=1.0, double_q=double_q)
    assert np.abs(fitted(module, batch, 16).numpy() - expected).max() < 1e-6


@pytest.mark.slow
def test_it_finds_the_optimal_values_of_the_slippery_lake():
    batch, expected = lake(is_slippery=True)
    module = DQN(policy=Lookup(16, 4), gamma=GAMMA, beta=1.0)
    assert np.abs(fitted(module, batch, 200).numpy() - expected).max() < 1e-6


@pytest.mark.slow
def test_it_finds_the_optimal_values_of_the_maze():
    batch, expected = every_transition(MazeEnv())
    module = DQN(policy=Lookup(*expected.shape), gamma=GAMMA, beta=1.0)
    error = np.abs(fitted(module, batch, 20).numpy() - expected)
    assert error[list(START_CELLS)].max() < 1e-6


def test_targets_of_the_wrong_sign_find_something_else(monkeypatch):
    """The control of the test above."""

    def wrong(rewards, discounts, online_q, target_q):
        return rewards - discounts * target_q.max(-1).values.nan_to_num(neginf=0.0)

    monkeypatch.setattr("lgym.modules.dqn.double_q_targets", wrong)
    batch, expected = lake(is_slippery=False)
    module = DQN(policy=Lookup(16, 4), gamma=GAMMA, beta=1.0)
    assert np.abs(fitted(module, batch, 16).numpy() - expected).max() > 0.1


def test_transitions_bootstrap_from_what_the_turns_led_to():
    """Two streams of three turns: two that go on for another turn, two that terminate; the idle one is no
    transition."""
    rollout = candidate_rollout(
        candidate_learner(), next_prompt_index=torch.tensor([[1, -1, -1], [1, -1, -1]])
    )
    one = rollout_transitions(rollout, gamma=0.5, n=1)
    assert one.prompt_index.tolist() == [0, 1, 0, 2, 1]
    assert one.choices.tolist() == [0, 2, 1, 1, 0]
    assert one.rewards.tolist() == [1.0, 0.0, -1.0, 0.0, 2.0]
    assert one.next_prompt_index.tolist() == [1, -1, -1, 1, -1]
    assert one.discounts.tolist() == [0.5, 0.0, 0.0, 0.5, 0.0]
    two = rollout_transitions(rollout, gamma=0.5, n=2)
    assert two.rewards.tolist() == [1.0, 0.0, -1.0, 1.0, 2.0]
    assert two.next_prompt_index.tolist() == [-1] * 5
    assert two.discounts.tolist() == [0.0] * 5


def test_a_truncated_turn_bootstraps_and_a_terminated_one_does_not():
    learner = candidate_learner()
    truncated = torch.tensor([[False, True, False], [False, False, False]])
    terminated = torch.tensor([[False, False, True], [False, True, True]])
    rollout = candidate_rollout(
        learner,
        truncated=truncated,
        terminated=terminated,
        next_prompt_index=torch.tensor([[1, 2, -1], [1, -1, -1]]),
    )
    batch = rollout_transitions(rollout, gamma=0.5, n=3)
    assert batch.next_prompt_index.tolist() == [2, 2, -1, -1, -1]
    assert batch.discounts.tolist() == [0.25, 0.5, 0.0, 0.0, 0.0]


def test_a_return_ends_before_a_turn_that_explores():
    """Of what is not known to explore it does not."""
    rollout = candidate_rollout(
        candidate_learner(), next_prompt_index=torch.tensor([[1, -1, -1], [1, -1, -1]])
    )
    whole = rollout_transitions(rollout, gamma=0.5, n=2)
    unknown = rollout_transitions(rollout, gamma=0.5, n=2, greedy=True)
    assert torch.equal(unknown.rewards, whole.rewards)
    second = int(rollout.response_index[0, 1])  # the turn behind the first
    for best, returns in ((True, whole.rewards[0].item()), (False, rollout.rewards[0, 0].item())):
        responses = list(rollout.responses)
        count = 1 + max(response.choice for response in responses)
        own = -1.0 if best else -3.0
        logprobs = tuple(own if n == responses[second].choice else -2.0 for n in range(count))
        responses[second] = replace(responses[second], candidate_logprobs=logprobs)
        batch = rollout_transitions(replace(rollout, responses=tuple(responses)), gamma=0.5, n=2, greedy=True)
        assert batch.rewards[0].item() == returns
        assert batch.discounts[0].item() == (whole.discounts[0].item() if best else 0.5)
        assert batch.next_prompt_index[0].item() == (whole.next_prompt_index[0].item() if best else 1)


def test_a_loop_of_ones_own_has_no_transitions():
    with pytest.raises(ValueError, match="learned in `lgym fit`"):
        rollout_transitions(candidate_rollout(candidate_learner()), gamma=0.5, n=1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": GenerationPolicy()}, "learns values of candidates"),
        ({"beta": 0.0}, "beta is 0.0"),
        ({"epsilon": 1.5}, "epsilon is 1.5"),
        ({"polyak": -0.1}, "polyak is -0.1"),
        ({"n_step": 0}, "n_step is 0"),
        ({"inertia": 1.5}, "inertia is 1.5"),
        ({"loss": "squared"}, "loss is 'squared'; choose one of huber, distillation"),
        ({"epsilon_rollouts": -1}, "epsilon_rollouts is -1"),
        ({"gamma": 2.0}, "gamma is 2.0"),
    ],
)
def test_what_cannot_be_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        DQN(**{"policy": CandidatePolicy(), **settings})


@pytest.mark.parametrize(
    ("replay", "settings", "expected"),
    [
        (ReplayBuffer(), {}, (False, 3, 0.05)),
        (GraphReplayBuffer(), {}, (True, 1, 0.003)),
        (GraphReplayBuffer(), {"loss": "huber"}, (False, 1, 0.05)),
        (GraphReplayBuffer(), {"n_step": 5, "beta": 0.2}, (True, 5, 0.2)),
    ],
)
def test_what_is_left_open_follows_from_the_replay_buffer(replay, settings, expected):
    module = DQN(policy=CandidatePolicy(), **settings)
    module._trainer = SimpleNamespace(datamodule=SimpleNamespace(replay=replay))
    assert (module.distills, module.n_step, module.beta) == expected


def test_distillation_from_single_transitions_is_refused():
    """Where one choice of a prompt is in a minibatch, it would teach the policy nothing."""
    module = DQN(policy=CandidatePolicy(), loss="distillation")
    module._trainer = SimpleNamespace(datamodule=SimpleNamespace(replay=ReplayBuffer()))
    with pytest.raises(ValueError, match="draws single transitions: take lgym.data.GraphReplayBuffer"):
        module.setup("fit")


def trained_llm() -> nn.Module:
    return candidate_learner().policy.llm


def test_the_target_network_takes_the_place_of_the_trained_weights_and_gives_it_back():
    llm = trained_llm()
    target = TargetNetwork(llm)
    before = {name: p.detach().clone() for name, p in llm.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for parameter in llm.parameters():
            parameter.add_(1.0)
    with target.in_place():
        for name, parameter in llm.named_parameters():
            if name in before:
                assert torch.equal(parameter, before[name])
    for name, weight in before.items():
        assert torch.equal(llm.get_parameter(name), weight + 1.0)
    target.follow(0.25)
    for name, weight in target.state_dict().items():
        torch.testing.assert_close(weight, before[name] + 0.25)


def test_normalizing_anew_changes_no_value_of_a_moving_target():
    """PopArt of both: what the target network said of a state it says with other statistics too."""
    module = DQN(policy=CandidatePolicy(), polyak=0.5)
    module.policy.bind(trained_llm())
    head = module.value_head
    head.update_statistics(torch.tensor([0.0, 10.0, 20.0]))
    hidden = torch.randn(4, head.feature_mean.numel(), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        head.output.weight.add_(0.1)
        module.target.follow(1.0)
        head.output.weight.add_(0.1)
        with module.target.in_place():
            before = head(hidden)
        module._normalize(torch.tensor([-50.0, 100.0]))
        with module.target.in_place():
            after = head(hidden)
    torch.testing.assert_close(after, before)
    assert float(after.std()) > 0.1


def test_a_head_of_its_own_chooses_at_random_until_it_has_learned():
    """Whatever the model would say; and its values are those of which its choice is the softmax."""
    policy = candidate_learner().policy
    module = DQN(policy=policy, action_values="head", beta=0.5)
    module.configure_model()
    prompts = list(candidate_rollout(module).prompts)
    q, _ = module.action_values(prompts)
    counts = torch.tensor([len(prompt.candidates) for prompt in prompts])
    logprobs, values = policy(prompts)
    for row, count in enumerate(counts.tolist()):
        assert logprobs[row, :count].exp().tolist() == pytest.approx([1 / count] * count)
        assert q[row, :count].tolist() == pytest.approx([values[row].item()] * count)
        assert logprobs[row, count:].isneginf().all()
    module.policy.llm.action_head.output.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    q, _ = module.action_values(prompts)
    logprobs, values = policy(prompts)
    torch.testing.assert_close((q / (0.5 * module.std)).log_softmax(-1).float(), logprobs.float())
    means = (q.nan_to_num(neginf=0.0) * logprobs.exp()).sum(-1)
    torch.testing.assert_close(means.float(), values.float())
    assert len(set(logprobs[0, : counts[0]].tolist())) == counts[0]


def test_returns_do_not_scale_the_scores_of_a_head():
    module = DQN(policy=candidate_learner().policy, action_values="head")
    module.configure_model()
    head = module.policy.llm.action_head
    head.output.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    prompts = list(candidate_rollout(module).prompts)
    before, _ = module.policy(prompts)
    for returns in (torch.tensor([1.0, 900.0]), torch.tensor([5.0, 7.0])):
        module._normalize(returns)
    after, _ = module.policy(prompts)
    torch.testing.assert_close(before, after, rtol=0, atol=0)
    assert int(head.updates) == 2


def test_a_head_chooses_in_place_of_candidates_alone():
    with pytest.raises(ValueError, match="in place of lgym.policies.CandidatePolicy, and policy is Lookup"):
        DQN(policy=Lookup(2, 2), action_values="head")


def test_it_explores_in_training_alone():
    module = DQN(policy=CandidatePolicy(), epsilon=0.2, epsilon_rollouts=4)
    module.policy.bind(trained_llm())
    for rollout, share in ((0, 1.0), (1, 0.8), (4, 0.2), (9, 0.2)):
        with module.behavior(rollout) as policy:
            assert policy.epsilon == pytest.approx(share)
    with module.inference() as policy:
        assert policy.epsilon == 0.0


def test_the_conservative_penalty_lowers_what_the_log_does_not_hold():
    """Of two actions one was logged: DQN leaves the other where it was, CQL below it."""
    prompts = (Prompt((0,), ((1,), (2,)), ("l", "r"), "0"),)
    batch = TransitionBatch(
        prompts,
        *(torch.zeros(1, dtype=torch.int64),) * 2,
        torch.ones(1).double(),
        torch.tensor([-1]),
        *(torch.zeros(1),) * 2,
    )
    gaps = {}
    for alpha in (0.0, 0.5):
        torch.manual_seed(0)
        module = CQL(policy=Lookup(1, 2), gamma=GAMMA, beta=1.0, alpha=alpha)
        q = fitted(module, batch, 1)[0]
        gaps[alpha] = float(q[0] - q[1])
    assert gaps[0.5] > gaps[0.0] + 0.5


def test_the_penalty_is_the_soft_maximum_less_the_logged_action():
    q = torch.tensor([[1.0, 2.0, -torch.inf], [0.0, 0.0, 0.0]])
    penalty = conservative_penalty(q, torch.tensor([1, 2]))
    expected = [np.log(np.exp(1) + np.exp(2)) - 2, np.log(3)]
    np.testing.assert_allclose(penalty.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("algorithm", [DQN, SAC])
def test_a_logs_own_choices_are_not_taken_for_the_policys(algorithm, monkeypatch):
    """Of unknown probability, they would count as the likeliest: two rewards of whoever played would stand in
    what a choice is worth."""
    module = algorithm()
    assert module.n_step == 3
    monkeypatch.setattr(
        module, "data_setting", lambda name, default: {"logged_episodes": ["a"]}.get(name, default)
    )
    assert module.n_step == 1


def test_the_target_follows_steps_and_not_minibatches(tmp_path, model_folder, monkeypatch):
    """Four minibatches make a step."""
    shares = []
    monkeypatch.setattr(TargetNetwork, "follow", lambda self, share: shares.append(share))
    replay = ReplayBuffer(minibatch_size=4, updates_per_rollout=8, learning_starts=1)
    module = DQN(llm=tiny_config(model_folder), policy=CandidatePolicy(), polyak=0.5)
    fit(module, tmp_path, data={"replay": replay}, trainer={"accumulate_grad_batches": 4})
    assert shares == [0.5] * 4
