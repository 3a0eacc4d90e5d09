"""Transcripts: each prompt is the prompt and the response before it, token for token, and what is new."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
import torch

from helpers import echo, tiny
from helpers.collectors import make_collector
from helpers.prompts import response_batch
from helpers.templates import TEMPLATES
from lgym.data.prompts.conversation import Conversation
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.models import LLMConfig, build_llm
from lgym.modules.response_batch import candidate_table
from lgym.policies import CandidatePolicy, GenerationPolicy, ThinkPolicy
from lgym.rollout import Response

START = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nred<|im_end|>\n<|im_start|>assistant\n"


def conversation(history="full", template=tiny.TEMPLATE, length=2048):
    return Conversation(PromptBuilder(tiny.tokenizer(template), "Be brief.", length), history)


def response(text, token_ids=None, finished=True):
    tokenizer = tiny.tokenizer()
    end = (tokenizer.eos_token_id,) if finished else ()
    return Response((*(token_ids or tokenizer.encode(text)), *end), (), finished, text)


def text_of(prompt):
    return tiny.tokenizer().decode(prompt.token_ids)


def test_a_turn_is_put_behind_what_was_response():
    talk = conversation()
    assert text_of(talk.prompt("red", ())) == START
    talk.respond(response("I see"))
    second = "I see<|im_end|>\n<|im_start|>user\ngreen<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(talk.prompt("green", ())) == START + second
    talk.respond(response("Oh", finished=False))  # cut at the limit: the template ends the turn
    third = "Oh<|im_end|>\n<|im_start|>user\nblue<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(talk.prompt("blue", ())) == START + second + third
    assert talk.transcripts == 1


def test_sampled_tokens_are_never_encoded_anew():
    """A token that no encoding of the response's text has, kept as it is."""
    talk = conversation()
    first = talk.prompt("red", ()).token_ids
    broken = (200, 130)  # half a character each
    text = tiny.tokenizer().decode(list(broken))
    talk.respond(response(text, token_ids=broken))
    assert talk.prompt("green", ()).token_ids[: len(first) + 3] == first + broken + (
        tiny.tokenizer().eos_token_id,
    )
    assert tuple(tiny.tokenizer().encode(text)) != broken


@pytest.mark.parametrize(("history", "shown"), [(0, ""), (1, "b"), (2, "ab"), ("full", "ab")])
def test_the_window_shows_so_many_turns(history, shown):
    talk = conversation(history)
    for observation, reply in (("red", "a"), ("green", "b")):
        talk.prompt(observation, ())
        talk.respond(response(reply))
    text = text_of(talk.prompt("blue", ()))
    assert [letter for letter in "ab" if f"assistant\n{letter}<" in text] == list(shown)
    assert text.endswith("user\nblue<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("template", "reply", "transcripts"),
    [
        ("trims", " red ", 2),
        ("trims", "red", 1),
        ("drops thinking", "the end", 2),
        ("ends with padding", "red", 2),
    ],
)
def test_a_template_that_rewrites_starts_a_new_transcript(template, reply, transcripts):
    talk = conversation(template=TEMPLATES[template])
    talk.prompt("red", ())
    talk.respond(response(reply))
    fed = talk.prompt("green", ()).token_ids
    assert talk.transcripts == transcripts
    if transcripts == 2:  # the whole as the template makes it
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "red"}]
        turns += [{"role": "assistant", "content": reply}, {"role": "user", "content": "green"}]
        tokenizer = tiny.tokenizer(TEMPLATES[template])
        assert list(fed) == tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_dict=False
        )


@pytest.mark.parametrize(
    ("begin", "shown"),
    [
        ("{{ strftime_now('%A, %d %b %Y, %H:%M') }}\n", "Friday, 26 Jul 2024, 00:00\n"),
        ("\n  {% if true %}!{% endif %}", "\n!"),
    ],
    ids=["date", "white-space"],
)
def test_the_date_of_a_template_stands_still(begin, shown):
    """Llama 3.2's and SmolLM3's write the day's, and a run past midnight had other prompts. A template without
    one renders as ever, from its first character on."""
    assert text_of(conversation(template=begin + tiny.TEMPLATE).prompt("red", ())) == shown + START


def test_the_oldest_turns_leave_when_it_grows_too_long():
    talk = conversation(length=300)
    for turn in range(12):
        prompt = talk.prompt(f"turn {turn}", ())
        assert len(prompt.token_ids) <= 300
        talk.respond(response("yes"))
    text = text_of(prompt)
    assert text.startswith("<|im_start|>system\nBe brief.")
    assert "turn 11" in text
    assert "turn 10" in text
    assert "turn 2" not in text


def test_beyond_the_context_most_turns_go_on_from_the_one_before():
    """The first prompt has 45 tokens, and each turn adds 4 of "yes" and 27 up to the next answer: 45 + 30 *
    31 = 975 are within 1,000, and turn 31 leaves out the older 16 of 31 turns before it: 45 + 15 * 31 = 510.
    16 turns later it is as long again. Left out one by one, every turn would be a new transcript: some 975
    tokens to compute in place of 27."""
    talk, fed, computed = conversation(length=1000), (), []
    for turn in range(100):
        prompt = talk.prompt(f"turn {turn:02d}", ()).token_ids
        computed.append(len(prompt) - (len(fed) if prompt[: len(fed)] == fed else 0))
        talk.respond(yes := response("yes"))
        fed = prompt + yes.token_ids
    assert {turn: tokens for turn, tokens in enumerate(computed) if tokens != 27} == {
        0: 45, 31: 510, 47: 510, 63: 510, 79: 510, 95: 510
    }  # fmt: skip
    assert talk.transcripts == 6


def test_equal_conversations_have_one_prompt():
    builder = PromptBuilder(tiny.tokenizer(), "Be brief.", 2048)
    talks = [Conversation(builder, "full") for _ in range(2)]
    for talk in talks:
        talk.prompt("red", ("a",))
        talk.respond(response("a"))
    assert talks[0].prompt("green", ("a",)) is talks[1].prompt("green", ("a",))


def collector(llm, policy, *, fallback, history="full", turns=4, num_envs=10, context_length=1500):
    """Echo with so many turns an episode, before a policy on this model."""
    policy.bind(llm)
    agent = type("Agent", (echo.EchoAgent,), {"fallback": fallback, "default_action": 1})()
    builder = PromptBuilder(llm.tokenizer, agent.system_prompt, context_length)
    envs = [gymnasium.make("Echo-v0", turns=turns) for _ in range(num_envs)]
    prompts = {"scores_candidates": policy.scores_candidates, "history": history}
    return make_collector(envs, agent, builder, first_seed=5, prompts=prompts)


def play(llm, policy, template, history, episodes, num_envs=10):
    """A rollout of episodes of four turns."""
    if template is not None:
        llm.tokenizer = copy.deepcopy(llm.tokenizer)
        llm.tokenizer.chat_template = template
    player = collector(llm, policy, fallback="random", history=history, num_envs=num_envs)
    with llm.frozen_weights():
        return player.play(policy, np.random.default_rng(0), episodes=episodes)


POLICIES = {
    "generates": lambda: GenerationPolicy(max_new_tokens=6),
    "thinks": lambda: ThinkPolicy(max_reasoning_tokens=4, answer_prefix=" so: "),
}
SETTINGS = [(history, name) for history in (0, 2, "full") for name in TEMPLATES]


def largest_difference(rollout, policy, llm, alone_every=1):
    """Log-probabilities at rollout time against the training forward pass and, every so many turns, against
    transformers' own of that sequence alone: the largest difference, and the number of turns."""
    prompt_index, responses = rollout.prompt_index[rollout.mask].tolist(), rollout.turn_responses()
    batch = response_batch(rollout.prompts, prompt_index, responses)
    logprobs = torch.zeros(batch.action_mask.shape)
    with torch.no_grad():
        for part in torch.arange(len(batch)).split(100):
            output = policy.evaluate_actions(batch.select(part, 1.0)).logprobs
            logprobs[part, : output.shape[1]] = output.float()
    worst = 0.0
    for number, (row, answer) in enumerate(zip(prompt_index, responses, strict=True)):
        recorded, token_ids = torch.tensor(answer.logprobs), answer.token_ids
        worst = max(worst, float((logprobs[number, : len(token_ids)] - recorded).abs().max()))
        if policy.scores_candidates or number % alone_every:
            continue
        prompt = rollout.prompts[row].token_ids
        with torch.no_grad():
            logits = llm.causal_lm(input_ids=torch.tensor([prompt + token_ids])).logits[
                0, len(prompt) - 1 : -1
            ]
        alone = logits.log_softmax(-1).gather(-1, torch.tensor(token_ids)[:, None]).squeeze(-1)
        worst = max(worst, float((alone - recorded).abs().max()))
    return worst, len(responses)


@pytest.mark.parametrize("who", POLICIES)
@pytest.mark.parametrize(("history", "template"), SETTINGS, ids=str)
def test_training_computes_the_recorded_logprobs(history, template, who):
    llm, policy = tiny.llm(), POLICIES[who]()
    rollout = play(llm, policy, TEMPLATES[template], history, 10)
    worst, turns = largest_difference(rollout, policy, llm, alone_every=4)
    assert turns == 40
    assert worst < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("who", POLICIES)
@pytest.mark.parametrize(("history", "template"), SETTINGS, ids=str)
def test_two_hundred_episodes_agree(history, template, who):
    llm, policy = tiny.llm(), POLICIES[who]()
    worst, turns = largest_difference(
        play(llm, policy, TEMPLATES[template], history, 200, num_envs=50), policy, llm
    )
    assert turns == 800
    assert worst < 1e-4


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2-135M in fp32, its adapters not at zero."""
    llm = build_llm(
        LLMConfig(model="smollm2-135m-instruct"), dtype=torch.float32, device=torch.device("cpu")
    ).eval()
    with torch.no_grad():
        for name, parameter in llm.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    return llm


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("history", [0, 2, "full"], ids=str)
@pytest.mark.parametrize("who", POLICIES)
def test_the_real_model_agrees(smollm2, history, who):
    """200 episodes of four turns in its own template."""
    policy = POLICIES[who]()
    worst, turns = largest_difference(
        play(smollm2, policy, None, history, 200, num_envs=50), policy, smollm2, alone_every=10
    )
    assert turns == 800
    assert worst < 1e-4


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("who", POLICIES)
@pytest.mark.parametrize(("history", "template"), SETTINGS, ids=str)
def test_the_real_model_agrees_in_every_template(smollm2, monkeypatch, history, template, who):
    """20 episodes each; its vocabulary has another token that pads."""
    monkeypatch.setattr(smollm2, "tokenizer", smollm2.tokenizer)  # its own again at the end
    policy, text = POLICIES[who](), TEMPLATES[template].replace("<|pad|>", "<|endoftext|>")
    worst, turns = largest_difference(
        play(smollm2, policy, text, history, 20, num_envs=20), policy, smollm2, alone_every=4
    )
    assert turns == 80
    assert worst < 1e-4


@pytest.mark.parametrize("who", POLICIES)
def test_together_is_as_one_at_a_time(who):
    """Greedy, so that both say the same: tokens and log-probabilities do not depend on who else is in the
    batch."""
    outcomes = []
    llm, policy = tiny.llm(), POLICIES[who]()
    for num_envs in (1, 7):
        player = collector(llm, policy, fallback="default", turns=3, num_envs=num_envs)
        with llm.frozen_weights():
            rollout = player.play(policy, None, episodes=7)
        outcomes.append({answer.token_ids: answer.logprobs for answer in rollout.responses})
    assert outcomes[0].keys() == outcomes[1].keys()
    for token_ids, logprobs in outcomes[0].items():
        assert logprobs == pytest.approx(outcomes[1][token_ids], abs=1e-4)


@pytest.mark.parametrize("turns", [2, 4, 8, 16])
def test_playing_an_episode_costs_its_length(turns):
    """With full history, each token of a conversation is computed once, but for each response's last and the
    prompt's."""
    llm, policy = tiny.llm(), GenerationPolicy(max_new_tokens=5)
    player = collector(llm, policy, fallback="random", turns=turns, num_envs=1, context_length=2048 - 5)
    llm.tokens_computed = 0
    with llm.frozen_weights():
        rollout = player.play(policy, np.random.default_rng(0), episodes=1)
    last = rollout.prompts[int(rollout.prompt_index[0, -1])]
    length = len(last.token_ids) + len(rollout.responses[-1].token_ids)
    assert llm.tokens_computed == length - 1
    llm.tokens_computed = 0
    policy.evaluate_actions(
        response_batch(rollout.prompts, rollout.prompt_index[0].tolist(), rollout.responses)
    )
    assert llm.tokens_computed == length - 1  # one row for the episode, not one for each turn


def test_candidates_may_be_shown_their_history_too():
    llm, policy = tiny.llm(), CandidatePolicy()
    rollout = play(llm, policy, tiny.TEMPLATE, "full", 10)
    longest = max(rollout.prompts, key=lambda prompt: len(prompt.token_ids))
    text = llm.tokenizer.decode(longest.token_ids)
    assert text.count("<|im_start|>user") == 4
    assert sum(text.count(f"assistant\n{word}<") for word in echo.WORDS) == 3


@pytest.mark.parametrize(("history", "template"), SETTINGS, ids=str)
def test_training_computes_choices_behind_kept_keys(history, template):
    """Recorded behind keys and values that were kept, against a forward pass of every prompt."""
    llm, policy = tiny.llm(), CandidatePolicy()
    rollout = play(llm, policy, TEMPLATES[template], history, 10)
    with torch.no_grad():
        logprobs, values = policy(rollout.prompts)
    torch.testing.assert_close(
        candidate_table(rollout, rollout.turn_responses()), logprobs, atol=1e-4, rtol=0
    )
    torch.testing.assert_close(rollout.prompt_values, values, atol=1e-4, rtol=0)


@pytest.mark.parametrize("turns", [2, 4, 8, 16])
def test_choosing_through_an_episode_costs_its_length(turns):
    """The conversation's last prompt, and at every turn the candidates but for their last tokens: red,
    green, blue."""
    llm, policy = tiny.llm(), CandidatePolicy()
    player = collector(llm, policy, fallback="random", turns=turns, num_envs=1, context_length=2048)
    llm.tokens_computed = 0
    with llm.frozen_weights():
        rollout = player.play(policy, np.random.default_rng(0), episodes=1)
    last = rollout.prompts[int(rollout.prompt_index[0, -1])]
    assert llm.tokens_computed == len(last.token_ids) + turns * sum(len(word) - 1 for word in echo.WORDS)
