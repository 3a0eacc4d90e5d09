"""LlamaGym's loop on lgym's parts: what went wrong in LlamaGym goes right here, one test a fault."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tokenizers import processors
from torch import nn

from helpers import letters, tiny
from helpers.own_loop import VowelAgent, play
from helpers.runs import lgym, scalars
from helpers.templates import TEMPLATES
from lgym import Agent
from lgym.agents import TextAgent
from lgym.loop.loop_rollout import rollout_of
from lgym.models.build import PLAIN_TEMPLATE

SHORT = {"max_new_tokens": 4}


class CountAgent(Agent):
    """Reads the length of a reply, and keeps what it was given to read."""

    def get_system_prompt(self):
        return 'Answer "Action: 0" or "Action: 1".'

    def format_observation(self, observation):
        return f"Turn {observation}"

    def extract_action(self, response):
        self.given = [*getattr(self, "given", []), response]
        return len(response)


class PickyAgent(CountAgent):
    """Cannot read the replies of even turns, in the ways in which code of this kind fails."""

    ways = (lambda: int("x"), lambda: {}["x"], lambda: [][0], lambda: None.group(1), lambda: None)
    way = 0

    def extract_action(self, response):
        super().extract_action(response)
        return self.ways[self.way]() if len(self.given) % 2 == 0 else "read"


def make(kind=CountAgent, *, generate=None, learn=None, template=tiny.TEMPLATE, model=None, **keywords):
    learn = {"batch_size": 1000, **(learn or {})}
    keywords = {"lora": {"r": 4}, **keywords}
    return kind(
        model or tiny.causal_lm(), tiny.tokenizer(template), "cpu", generate or SHORT, learn, **keywords
    )


def episode(agent, rewards=(0.0, 0.0, 1.0), **end):
    """Turns that are paid so; what `terminate_episode` returns."""
    for turn, reward in enumerate(rewards):
        agent.act(turn)
        agent.assign_reward(reward)
    return agent.terminate_episode(**end)


def kept(agent):
    """The turns that were kept to learn from."""
    return [turn for episode in agent._learner.episodes for turn in episode.turns]


def test_a_reply_is_what_the_model_said():
    """LlamaGym cut replies at `[/INST]`; with another template its regex read the prompt's own `Action:
    0`."""
    agent = make()
    episode(agent)
    said = [
        agent.tokenizer.decode(turn.response.token_ids, skip_special_tokens=True).strip()
        for turn in kept(agent)
    ]
    assert agent.given == said
    assert not any("Action: 0" in text or "Turn" in text for text in agent.given)


@pytest.mark.parametrize("template", TEMPLATES)
def test_any_template(template):
    """Plays conversations and learns; before the first step the policy is to the token the one that
    played."""
    agent = make(template=TEMPLATES[template], learn={"batch_size": 6})
    assert episode(agent) == {}
    statistics = episode(agent)
    assert statistics["rollout/turns"] == 6
    assert statistics["policy/logprob_diff_max"] < 1e-4


def test_a_conversation_only_grows():
    """Each prompt is the one before, the reply's own tokens, and what is new: nothing is tokenized twice."""
    agent = make()
    episode(agent)
    first, second, third = kept(agent)
    for before, after in ((first, second), (second, third)):
        said = before.prompt.token_ids + before.response.token_ids
        assert after.prompt.token_ids[: len(said)] == said


def test_one_bos():
    """The template writes it, and the tokenizer would add another."""
    tokenizer = tiny.tokenizer(PLAIN_TEMPLATE)
    bos, number = tokenizer.bos_token, tokenizer.bos_token_id
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, number)]
    )
    assert tokenizer(bos)["input_ids"] == [number, number]
    agent = CountAgent(tiny.causal_lm(), tokenizer, "cpu", SHORT)
    agent.act(0)
    (turn,) = agent._learner.episode.turns
    assert turn.prompt.token_ids.count(number) == 1


def test_what_is_cut_off_shows():
    """LlamaGym's top_p 0.6 draws from something else than the loss trains: told, and counted. Control of the
    1e-4."""
    with pytest.warns(UserWarning, match="top_p 0.6"):
        agent = make(generate={"generate/max_new_tokens": 4, "generate/top_p": 0.6}, learn={"batch_size": 3})
    assert episode(agent)["policy/logprob_diff_max"] > 0.1


def test_a_temperature_is_trained_too():
    agent = make(generate={**SHORT, "temperature": 0.5}, learn={"batch_size": 3})
    assert episode(agent)["policy/logprob_diff_max"] < 1e-4


def test_a_reward_reaches_the_first_turn():
    """With lambda 1 and values of 0, every turn of (0, 0, 1) has the return 1; LlamaGym gave each 1 / 3.5. Of one
    episode the level of all values is its return, so that no turn is better than it."""
    agent = make(learn={"lam": 1.0, "gamma": 1.0, "whiten_advantages": False})
    episode(agent)
    learner = agent._learner
    batch, metrics = learner.module.prepare(rollout_of(learner.episodes))
    assert metrics["value/offset"] == 1.0
    assert batch.advantages[batch.action_mask].tolist() == [0.0] * int(batch.action_mask.sum())
    assert batch.returns.flatten().tolist() == [1.0, 1.0, 1.0]


def test_gamma_discounts_by_turn():
    """0.5^2 and 0.5 of the reward two turns and one turn later."""
    agent = make(learn={"lam": 1.0, "gamma": 0.5, "whiten_advantages": False})
    episode(agent)
    learner = agent._learner
    batch, _ = learner.module.prepare(rollout_of(learner.episodes))
    assert sorted(batch.returns.flatten().tolist()) == [0.25, 0.5, 1.0]


def test_several_payments_of_a_turn_add_up():
    agent = make()
    agent.act(0)
    agent.assign_reward(1)
    agent.assign_reward(0.5)
    agent.act(1)
    assert agent.current_episode_rewards == [1.5, 0.0]


@pytest.mark.filterwarnings("ignore:.*names no action")
@pytest.mark.parametrize("way", range(5))
def test_a_reply_that_cannot_be_read(way):
    """Its turn stays in the conversation, and rewards with their turns. LlamaGym dropped the reply and kept
    the question."""
    agent = make(PickyAgent, learn={"batch_size": 4})
    agent.way = way
    actions = []
    for turn in range(4):
        actions.append(agent.act(turn))
        agent.assign_reward(turn)
    assert actions == ["read", None, "read", None]
    roles = [message["role"] for message in agent.current_episode_messages]
    assert roles == ["system", *["user", "assistant"] * 4]
    assert agent.current_episode_rewards == [0.0, 1.0, 2.0, 3.0]
    assert agent.terminate_episode()["rollout/parse_rate"] == 0.5


@pytest.mark.parametrize("way", range(5))
def test_an_answer_without_an_action_is_told_once(way, recwarn):
    """With the reason, which may be a mistake in the code, what is played instead, and where to look."""
    agent = make(PickyAgent)
    agent.way, agent.default_action = way, "wait"
    for turn in range(6):
        agent.act(turn)
    (told,) = [str(warning.message) for warning in recwarn if "names no action" in str(warning.message)]
    assert told.startswith("PickyAgent: the response ")
    assert "plays default_action, which is 'wait'" in told
    assert "rollout/parse_rate" in told
    reasons = (
        "invalid literal for int",
        "KeyError: 'x'",
        "IndexError",
        "no attribute 'group'",
        "found nothing",
    )
    assert reasons[way] in told


def test_in_a_yaml_only_what_may_be_a_mistake_is_told(recwarn):
    """Without a model of its own it is a `TextAgent`, whose `fallback` decides; parse_rate is a metric there."""
    agent = PickyAgent()
    agent.given, agent.way = ["one"], 4
    assert not agent.parse("unclear").ok
    assert not recwarn.list
    agent.given, agent.way = ["one"], 3
    with pytest.warns(UserWarning, match="no attribute 'group', for 'unclear'"):
        agent.parse("unclear")


def test_a_mistake_of_another_kind_is_not_swallowed():
    agent = make(PickyAgent)
    agent.ways = (lambda: undefined,) * 5  # noqa: F821
    agent.act(0)
    with pytest.raises(NameError, match="undefined"):
        agent.act(1)


def test_the_default_action_stands_in():
    agent = make(PickyAgent)
    agent.default_action = "wait"
    assert [agent.act(0), agent.act(1)] == ["read", "wait"]


def test_an_empty_reply_is_a_reply():
    """A model that ends its turn at once; training on that crashed LlamaGym."""
    model = tiny.causal_lm()
    head = nn.Linear(64, 260)
    nn.init.zeros_(head.weight)
    with torch.no_grad():
        head.bias.copy_(50.0 * (torch.arange(260) == tiny.tokenizer().eos_token_id))
    model.lm_head = head
    agent = make(model=model, learn={"batch_size": 3}, lora={"r": 4, "target_modules": ["q_proj"]})
    statistics = episode(agent)
    assert agent.given == ["", "", ""]
    assert statistics["response/length_mean"] == 1  # the token that ends it
    assert all(abs(value) < 1e6 for value in statistics.values())


def test_a_time_limit_is_not_an_end():
    """What would have followed is the value of the last observation; where the game is over, nothing."""
    agent = make()
    nn.init.constant_(agent._learner.llm.value_head.output.bias, 7.0)
    episode(agent, truncated_at=3)
    episode(agent)
    rollout = rollout_of(agent._learner.episodes)
    assert rollout.truncated.tolist() == [[False, False, True, False, False, False]]
    assert rollout.terminated.tolist() == [[False, False, False, False, False, True]]
    assert rollout.next_values.tolist() == [[7.0, 7.0, 7.0, 7.0, 7.0, 0.0]]


def test_a_turn_leads_to_the_next_ones_value():
    agent = make()
    nn.init.normal_(agent._learner.llm.value_head.output.weight)
    episode(agent)
    rollout = rollout_of(agent._learner.episodes)
    values = rollout.values.tolist()[0]
    assert len(set(values)) == 3
    assert rollout.next_values.tolist() == [[*values[1:], 0.0]]


def test_it_learns_when_the_batch_is_full():
    """At the end of the episode that fills it; what is only played does not count."""
    agent = make(learn={"batch_size": 5, "mini_batch_size": 3, "ppo_epochs": 2})
    before = {name: p.clone() for name, p in agent.model.named_parameters()}
    assert episode(agent) == {}
    assert episode(agent, train=False) == {}
    statistics = episode(agent)
    assert (statistics["rollout/turns"], statistics["rollout/episodes"]) == (6, 2)
    assert statistics["rollout/return_mean"] == 1.0
    assert statistics["optim/steps"] == 4  # 2 passes over 6 turns, 3 at a time
    changed = {name for name, p in agent.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert episode(agent) == {}  # the next batch starts with nothing


@pytest.mark.parametrize("answer", ["e", "x"])
def test_it_imitates_what_it_is_shown(answer):
    """LlamaGym's README wished for it. 3 turns in minibatches of 2 are 2 steps an epoch."""
    agent = make(VowelAgent, learn={"learning_rate": 0.01, "mini_batch_size": 2})
    shown = [(observation, answer) for observation in range(3)]
    first = agent.imitate(shown, epochs=1)
    assert first["optim/steps"] == 2
    last = agent.imitate(shown, epochs=30)
    assert last["optim/steps"] == 60
    assert last["loss/sft"] < 0.2 < 2 < first["loss/sft"]
    returns, _ = play(agent, letters.LetterEnv(), 30)
    assert sum(returns) >= 27 if answer == "e" else sum(returns) <= 3


def test_what_cannot_be_imitated_is_refused():
    """Before a step is taken: nothing at all, a reply without an action, and turns of the policy that plays
    now."""
    agent = make(VowelAgent)
    with pytest.raises(ValueError, match="0 turns to imitate, in 4 epochs"):
        agent.imitate([])
    with pytest.raises(
        ValueError, match=r"VowelAgent.extract_action finds no action in '\?', which is to be imitated"
    ):
        agent.imitate([(0, "e"), (1, "?")])
    agent.act(0)
    with pytest.raises(ValueError, match="1 turns have been played and not learned from"):
        agent.imitate([(0, "e")])
    assert agent._learner._optimizer.state_dict()["state"] == {}


def test_gradients_are_accumulated():
    learn = {"batch_size": 6, "mini_batch_size": 2, "ppo_epochs": 1, "gradient_accumulation_steps": 2}
    agent = make(learn=learn)
    episode(agent)
    assert episode(agent)["optim/steps"] == 2  # of 2 minibatches, and of the third


def test_a_turn_costs_its_new_tokens():
    """Keys and values of the conversation are kept from turn to turn, and not past an update."""
    agent = make(learn={"batch_size": 3})
    llm = agent._learner.llm
    agent.act(0)
    prompt = len(agent._learner.episode.turns[0].prompt.token_ids)
    before = llm.tokens_computed
    agent.act(1)
    agent.act(2)
    assert llm.tokens_computed - before < prompt
    assert llm.kv_caches
    assert agent.terminate_episode()
    assert not llm.kv_caches


def test_the_system_prompt_may_change_with_the_episode():
    class Moody(CountAgent):
        mood = "Be calm."

        def get_system_prompt(self):
            return self.mood

    agent = make(Moody)
    agent.act(0)
    agent.terminate_episode(train=False)
    agent.mood = "Be bold."
    agent.act(0)
    prompt = agent.tokenizer.decode(agent._learner.episode.turns[0].prompt.token_ids)
    assert "Be bold." in prompt
    assert "Be calm." not in prompt


def test_history_is_the_whole_conversation_unless_asked_otherwise():
    lengths = {}
    for history in ("full", 0):
        agent = make(history=history)
        episode(agent)
        lengths[history] = [len(turn.prompt.token_ids) for turn in kept(agent)]
    assert len(set(lengths[0])) == 1
    assert lengths["full"] == sorted(set(lengths["full"]))


def test_the_same_seed_is_the_same_run():
    runs = []
    for seed in (1, 1, 2):
        agent = make(VowelAgent, learn={"batch_size": 8}, seed=seed)
        returns, told = play(agent, letters.LetterEnv(), 24)
        timeless = [{k: v for k, v in one.items() if not k.startswith("time/")} for one in told]
        runs.append((returns, timeless, agent.model.state_dict()))
    assert repr(runs[0][:2]) == repr(runs[1][:2])  # as text, nan is nan
    assert all(torch.equal(a, b) for a, b in zip(runs[0][2].values(), runs[1][2].values(), strict=True))
    assert repr(runs[0][1]) != repr(runs[2][1])


def test_it_goes_on_from_what_was_saved(tmp_path):
    """As if it had not been stopped, where it was stopped behind an update: chance, weights and Adam's
    moments."""

    def two_updates(agent):
        agent.given = []
        return [episode(agent, rewards=(1.0, 0.0, 2.0))["loss/total"] for _ in range(2)], agent.given

    agent = make(learn={"batch_size": 3})
    assert episode(agent)
    torch.save(agent.state_dict(), tmp_path / "agent.pt")
    expected = two_updates(agent)
    other = make(learn={"batch_size": 3}, seed=5)
    other.load_state_dict(torch.load(tmp_path / "agent.pt", weights_only=True))
    assert two_updates(other) == expected


def test_a_state_of_another_agent_is_refused():
    """Other adapters, other layers, another model: of what has no place here, nothing would be put back, in
    silence."""
    state = make().state_dict()
    with pytest.raises(ValueError, match="with other adapters than this one.*`lora`"):
        make(lora={"r": 8}).load_state_dict(state)
    with pytest.raises(ValueError, match="with other adapters"):
        make(lora={"r": 4, "target_modules": ["q_proj"]}).load_state_dict(state)
    renamed = tiny.causal_lm()
    renamed.config.name_or_path = "/models/other"
    with pytest.raises(ValueError, match="with 'LlamaForCausalLM' or .* whose model is 'other'"):
        make(model=renamed).load_state_dict(state)


def test_a_saved_state_does_not_bring_back_its_learning_rate():
    """Who goes on with a lower one means it; the value head's is five times as high."""
    agent = make(learn={"learning_rate": 1e-3, "batch_size": 3})
    assert episode(agent)
    lower = make(learn={"learning_rate": 1e-4, "batch_size": 3})
    lower.load_state_dict(agent.state_dict())
    assert [group["lr"] for group in lower._learner._optimizer.param_groups] == pytest.approx([1e-4, 5e-4])
    assert episode(lower)


def test_without_a_model_it_says_so():
    with pytest.raises(ValueError, match="has no model to play with.*load_model_and_tokenizer"):
        CountAgent().act(0)
    with pytest.raises(ValueError, match="keywords for a model, and no model"):
        CountAgent(ppo_config_dict={"batch_size": 8})


def test_a_reward_before_a_turn_is_refused():
    with pytest.raises(ValueError, match="before the episode's first turn"):
        make().assign_reward(1.0)


def test_an_episode_without_turns_is_none():
    assert make(learn={"batch_size": 1}).terminate_episode() == {}


def test_its_own_attributes_stay_its_own():
    """A `system_prompt` of one's own, or a `model`, is what people write in such classes."""

    class Own(CountAgent):
        def __init__(self, system_prompt, *args, **kwargs):
            self.system_prompt = system_prompt
            super().__init__(*args, **kwargs)

        def get_system_prompt(self):
            return self.system_prompt

    agent = Own("Mine.", tiny.causal_lm(), tiny.tokenizer(), "cpu")
    assert agent.current_episode_messages == [{"role": "system", "content": "Mine."}]


YAML = """
trainer: {accelerator: cpu, enable_progress_bar: false, max_epochs: 2, check_val_every_n_epoch: 2}
model:
  class_path: lgym.modules.PPO
  init_args:
    llm: {lora: {r: 4}}
    policy: {class_path: lgym.policies.GenerationPolicy, init_args: {max_new_tokens: 2}}
data:
  env: Letter-v0
  agent: helpers.own_loop.VowelAgent
  episodes_per_rollout: 16
  history: full
  eval_episodes: 4
"""


def test_it_can_be_named_in_a_yaml_as_it_is(tmp_path, model_folder):
    config = tmp_path / "config.yaml"
    config.write_text(YAML)
    lgym("fit", tmp_path, model_folder, config)
    rates = scalars(tmp_path)["rollout/parse_rate"].values()
    assert all(0.0 < rate < 1.0 for rate in rates)


def test_it_is_a_text_agent():
    """What it reads is data; JSON is not looked for unless asked for."""
    agent = VowelAgent()
    assert isinstance(agent, TextAgent)
    assert agent.system_prompt == "Say a letter."
    assert agent.parse(" b!").action == 1
    assert not agent.parse("...").ok
    assert agent.parse('{"action": "b"}').action == 0  # the a of action


def test_an_agent_needs_no_torch():
    """And lgym alone not even Gymnasium."""
    first = "import sys, lgym; print('gymnasium' in sys.modules)"
    code = f"{first}; from lgym import Agent; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == [
        "False",
        "False",
    ]


def test_a_name_that_lgym_lacks_is_an_attribute_error():
    with pytest.raises(ImportError, match="NoAgent"):
        from lgym import NoAgent  # noqa: F401
