"""`lgym check --probe`: what is sound learns every probe, and what is broken is named."""

from __future__ import annotations

import pytest
from gymnasium.utils.env_checker import check_env

from helpers.runs import QUICK, lgym
from lgym.envs.probe import ProbeEnv
from lgym.modules import PPO

OPTIONS = {**QUICK, "trainer__enable_progress_bar": None, "trainer__max_epochs": None, "probe": "true"}


class UpsideDown(PPO):
    """Takes what pays less for better."""

    def estimate_advantages(self, turns):
        estimate = super().estimate_advantages(turns)
        object.__setattr__(estimate, "advantages", -estimate.advantages)
        return estimate


class Blind(PPO):
    """Its values do not depend on the prompt."""

    def configure_model(self):
        super().configure_model()
        features = self.value_head.features
        self.value_head.features = lambda states: 0.0 * features(states)


@pytest.fixture
def probed(tmp_path, model_folder, capfd):
    def run(**options):
        status = 0
        try:
            lgym("check", tmp_path / "runs", model_folder, **OPTIONS | options)
        except SystemExit as stop:
            status = stop.code
        said = capfd.readouterr().out
        assert not (tmp_path / "runs").exists()
        return (
            status,
            {line[13:].split(":")[0]: line[2:13].strip() for line in said.splitlines() if line[:2] == "  "},
            said,
        )

    return run


def test_what_is_sound_learns_all(probed):
    status, found, said = probed(data__history=1)
    assert set(found.values()) == {"learned"}
    assert len(found) == 6
    assert status == 0, said


def test_without_history_memory_is_left_out(probed):
    status, found, _ = probed(
        model="lgym.modules.DQN", probe_rollouts=40, model__init_args__epsilon_rollouts=4
    )
    assert found.pop("an answer to what was shown before") == "left out"
    assert set(found.values()) == {"learned"}
    assert status == 0


@pytest.mark.slow
def test_an_algorithm_without_a_value_head(probed):
    status, found, _ = probed(model="lgym.modules.GRPO", data__group_size=8)
    assert list(found.values()) == ["left out"] * 3 + ["learned"] * 2 + ["left out"]
    assert status == 0


def test_a_wrong_sign_is_the_policys(probed):
    """All values are learned; of what pays nothing is."""
    status, found, said = probed(model="test_probes.UpsideDown", probe_rollouts=8)
    assert list(found.values()) == ["learned"] * 3 + ["NOT LEARNED"] * 2 + ["left out"]
    assert "Which answer pays is not learned. It is likely the policy's loss: the sign of advantages" in said
    assert "2 problems to mend" in said
    assert status == 1


def test_values_that_see_nothing_are_the_values(probed):
    status, found, said = probed(model="test_probes.Blind", probe_rollouts=8)
    assert found["a constant value"] == "learned"
    assert found["a value of what is shown"] == "NOT LEARNED"
    assert "the prompt's end that values are read from" in said
    assert status == 1


def test_probes_are_environments():
    for pays in ("always", "sign 0", "answer 1", "same answer"):
        check_env(ProbeEnv(turns=2, signs=2, pays=pays), skip_render_check=True)


def test_what_each_pays():
    """After two turns: for any answer, the sign, the second answer, the answer that is the sign."""
    for seed in range(8):
        for answer in (0, 1):
            paid = {}
            for pays in ("always", "sign 0", "answer 1", "same answer"):
                env = ProbeEnv(turns=2, signs=2, pays=pays)
                sign, _ = env.reset(seed=seed)
                question, first, ended, _, _ = env.step(1 - answer)
                assert (question, first, ended) == (2, 0.0, False)
                _, paid[pays], ended, _, _ = env.step(answer)
                assert ended
            assert paid == {
                "always": 1.0,
                "sign 0": float(sign == 0),
                "answer 1": float(answer == 1),
                "same answer": float(answer == sign),
            }


def test_rollouts_are_counted(tmp_path, model_folder, capfd):
    with pytest.raises(SystemExit):
        lgym("check", tmp_path, model_folder, **OPTIONS, probe_rollouts=0)
    assert "--probe_rollouts is 0; it must be 1 or more" in capfd.readouterr().err
