"""Proximal policy optimization over turns."""

from __future__ import annotations

from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym import ranks
from lgym.batch import Rollout, TurnBatch
from lgym.functional import (
    categorical_entropy,
    categorical_kl,
    clip_fraction,
    clipped_value_loss,
    gae,
    ppo_clip_loss,
    value_loss,
)
from lgym.models import LLMConfig
from lgym.modules.base import DEFAULT_LLM, PolicyLearner
from lgym.modules.bundles import bundles_of
from lgym.modules.describe import describe
from lgym.modules.learning_rates import default_optimizer
from lgym.modules.pooled import explained
from lgym.modules.settings import (
    require_clips,
    require_counts,
    require_discounts,
    require_reference,
    require_scales,
    require_weights,
)
from lgym.modules.whitening import whitened
from lgym.policies import CandidatePolicy


class PPO(PolicyLearner):
    """PPO with a clipped objective (Schulman et al. 2017, arXiv:1707.06347) and GAE over turns (2015, arXiv:1506.02438).

    Per turn:  L = L_clip + value_coef * L_value - entropy_coef * H(pi)
                   + old_kl_coef * KL(pi_old || pi) + kl_coef * KL(pi || reference)

    The policy's distribution over candidates is known exactly, and so are its entropy and both its divergences: from
    the policy that played, which ends a rollout's passes early, and from the frozen reference.
    """

    policy: CandidatePolicy

    def __init__(
        self,
        llm: LLMConfig = DEFAULT_LLM,
        policy: CandidatePolicy | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        lr_scheduler: LRSchedulerCallable | None = None,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        reward_scale: float = 1.0,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        value_coef: float = 0.5,
        value_lr_scale: float = 5.0,
        value_warmup: int = 1,
        detach_value: bool = False,
        value_clip: float | None = None,
        entropy_coef: float = 0.01,
        old_kl_coef: float = 0.3,
        kl_coef: float = 0.0,
        target_kl: float | None = 0.2,
        whiten_advantages: bool = True,
        sft_coef: float = 0.0,
        sft_rollouts: int = 0,
    ) -> None:
        """
        Args:
            llm: the language model and how it is made trainable.
            policy: how it acts.
            optimizer: any torch optimizer by class_path; by default AdamW with learning rate 3e-4.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; null is none.
            gamma: discount per turn.
            gae_lambda: between one-step advantages (0) and whole returns (1).
            reward_scale: what rewards are multiplied by before learning from them; reports stay in the environment's units.
                Bring returns to the size of 1 with it, which is where the value head learns fastest.
            clip_low: the ratio of new to old probability counts down to 1 - clip_low.
            clip_high: and up to 1 + clip_high.
            value_coef: weight of the value loss.
            value_lr_scale: the value head's learning rate, as a multiple of the optimizer's. It starts from nothing while
                the adapters start from a model that can read, and until it is right, advantages are returns with noise.
            value_warmup: rollouts at the start, behind those of `sft_rollouts`, in which only the value is learned, and a
                divergence from the policy that played holds the policy where it is. The adapters so learn to tell states
                apart before they learn to act; otherwise the first updates teach what is good on average, everywhere.
            detach_value: keep the value loss's gradient out of the language model, so that only the head learns from it.
            value_clip: how far a value may move from the one at play, in rewards, before its loss is cut off; null does not
                clip.
            entropy_coef: weight of the entropy bonus, per nat.
            old_kl_coef: weight of the divergence from the policy that played, per nat (equation 8 of the PPO paper).
                Clipping only stops pushing; this pulls back where Adam's momentum, or the value's gradient in shared
                adapters, has carried the policy on, and ever harder as an action's probability nears 0.
            kl_coef: weight of the divergence from the frozen reference, per nat; 0 never runs the reference.
            target_kl: where a minibatch's policy is this far (nats) from the one that played, its step leaves out what
                pushes the policy on, and keeps the values' loss and the divergences, which pull it back; with
                `old_kl_coef: 0` nothing does, and no step is taken. Null never brakes. `optim/steps_braked` counts.
            whiten_advantages: shift and scale the advantages of a rollout to mean 0 and standard deviation 1.
            sft_coef: weight of the negative log-likelihood of choices to imitate: `data.demonstrations`, `data.self_imitation`.
            sft_rollouts: rollouts at the start in which nothing but these is learned, whatever the weight: each is
                `data.update_epochs` passes over the demonstrations.
        """
        super().__init__(llm, policy or CandidatePolicy(), optimizer, lr_scheduler, value_lr_scale)
        require_discounts(gamma=gamma, gae_lambda=gae_lambda)
        require_clips(clip_low, clip_high)
        require_weights(value_coef=value_coef, entropy_coef=entropy_coef, old_kl_coef=old_kl_coef)
        require_scales(reward_scale=reward_scale, value_clip=value_clip, target_kl=target_kl)
        require_counts(value_warmup=value_warmup)
        require_reference(kl_coef, llm)
        self.imitate(sft_coef, sft_rollouts)
        self.gamma, self.gae_lambda, self.reward_scale = gamma, gae_lambda, reward_scale
        self.clip_low, self.clip_high = clip_low, clip_high
        self.value_coef, self.value_clip = value_coef, value_clip
        self.value_warmup = value_warmup
        self.policy.detach_value = detach_value
        self.entropy_coef, self.old_kl_coef, self.kl_coef = entropy_coef, old_kl_coef, kl_coef
        self.target_kl = target_kl
        self.whiten_advantages = whiten_advantages
        self._first = True

    def prepare(self, rollout: Rollout) -> TurnBatch:
        """Advantages and returns of every turn, whitened over the whole rollout, in the order of their contexts."""
        values = rollout.values
        advantages, returns = gae(
            rollout.rewards,
            values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        mask = rollout.mask
        self._first = True
        self.rollout_metrics = describe(rollout)
        self.rollout_metrics["value/explained_variance"] = explained(values[mask], returns[mask])
        assert rollout.candidate_logprobs is not None
        order = rollout.context_ids[mask].argsort(stable=True)
        chosen = advantages[mask]
        chosen = whitened(rollout, chosen) if self.whiten_advantages else chosen * self.reward_scale
        return TurnBatch(
            contexts=rollout.contexts,
            bundles=bundles_of(rollout),
            rows=rollout.context_ids[mask][order],
            choices=rollout.choices[mask][order],
            old_logprobs=rollout.candidate_logprobs,
            old_values=values[mask][order],
            advantages=chosen[order],
            returns=returns[mask][order],
            ref_logprobs=self._reference(rollout) if self.kl_coef > 0 else None,
            scale=1.0 / ranks.mean(int(mask.sum())),
        )

    def loss(self, batch: TurnBatch) -> tuple[Tensor, dict[str, Tensor]] | None:
        logprobs, values = self.policy(batch.contexts)
        rows = batch.rows
        old_kl = categorical_kl(batch.old_logprobs, logprobs)[rows]
        approx_kl = old_kl.detach().mean()
        braked = self._brakes(approx_kl, batch.weight)
        self.steps_braked += braked
        if braked and self.old_kl_coef == 0:
            return None
        new = logprobs[rows, batch.choices]
        old = batch.old_logprobs[rows, batch.choices]
        policy_loss = ppo_clip_loss(new, old, batch.advantages, clip_low=self.clip_low, clip_high=self.clip_high)
        state_values = values[rows]
        if self.value_clip is None:
            critic_loss = value_loss(state_values, batch.returns)
        else:
            critic_loss = clipped_value_loss(state_values, batch.old_values, batch.returns, clip=self.value_clip)
        entropy = categorical_entropy(logprobs)[rows]
        total = self.value_coef * self.reward_scale**2 * critic_loss
        if self.warming_up and not self.policy.detach_value:
            total = total + old_kl  # the policy stays where it is
        elif not self.warming_up:
            total = total + self.old_kl_coef * old_kl
            total = total if braked else total + policy_loss - self.entropy_coef * entropy
        metrics = {
            "loss/policy": policy_loss.mean(),
            "loss/value": critic_loss.mean(),
            "policy/entropy": entropy.mean(),
            "policy/approx_kl": approx_kl,
            "policy/clip_fraction": clip_fraction(new, old, clip_low=self.clip_low, clip_high=self.clip_high).mean(),
        }
        if batch.ref_logprobs is not None:
            ref_kl = categorical_kl(logprobs, batch.ref_logprobs)[rows]
            total = total if self.warming_up else total + self.kl_coef * ref_kl
            metrics["policy/ref_kl"] = ref_kl.mean()
        if self._first:
            self.rollout_metrics["policy/logprob_gap"] = float((new.detach() - old).abs().max())
        self._first = False
        metrics["loss/total"] = total.mean()
        return total.sum() * batch.scale, {name: value.detach() for name, value in metrics.items()}

    def divergence(self, batch: TurnBatch) -> Tensor:
        logprobs, _ = self.policy(batch.contexts)
        return categorical_kl(batch.old_logprobs, logprobs)[batch.rows].mean()

    def _brakes(self, approx_kl: Tensor, weight: int) -> bool:
        """Whether a minibatch's policy is too far from the one that played; of all processes, so that they step alike."""
        if self.target_kl is None or self.warming_up:
            return False
        return bool(ranks.weighted_mean(approx_kl, weight) > self.target_kl)

    def _reference(self, rollout: Rollout) -> Tensor:
        """[U, C] the distributions of the frozen model."""
        with self.acting(), self.policy.llm.reference():
            return self.policy.evaluate(rollout.contexts)[0]
