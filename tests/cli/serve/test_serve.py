"""The server, over real connections: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from helpers.runs import ECHO, QUICK, lgym
from lgym.cli.command_line import LgymCLI
from lgym.cli.serve import ServeOptions
from lgym.cli.serve.inputs import BadInputError, as_json, observation_of
from lgym.types import ConfigError

uvicorn = pytest.importorskip("uvicorn")


class Running:
    """A server in a thread of its own."""

    def __init__(self, options: list[str], **settings: Any) -> None:
        from lgym.cli.serve.app import make_app

        self.ready, self.done = threading.Event(), threading.Event()
        running = self

        class TestedCLI(LgymCLI):
            """The command line, whose `serve` takes a free port and ends when it is told to."""

            def serve(self, model: Any, datamodule: Any, ckpt_path: str | None = None, **_: Any) -> None:
                def work() -> None:
                    running.module = model
                    app = make_app(datamodule, model, ServeOptions(**settings))
                    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error")
                    running.server = uvicorn.Server(config)
                    running.thread = threading.Thread(target=running.server.run)
                    running.thread.start()
                    while not running.server.started:
                        time.sleep(0.01)
                    running.ready.set()
                    running.done.wait()
                    running.server.should_exit = True
                    running.thread.join()

                self.trainer._with_model(work, model, datamodule, ckpt_path)

        self.main = threading.Thread(target=TestedCLI, args=(["serve", *options],))
        self.main.start()
        assert self.ready.wait(60)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        self.done.set()
        self.main.join()

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, text, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


def options(root: Any, model: Any, **changes: Any) -> list[str]:
    values = {**ECHO, "trainer.default_root_dir": root, "model.init_args.llm.model": model, **changes}
    kept = {name: value for name, value in values.items() if "progress_bar" not in name}
    return [f"--{name}={value}" for name, value in kept.items()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("trained")
    lgym("fit", folder, model_folder, trainer__max_epochs=5, **QUICK)
    return folder / "version_0"


@pytest.fixture(scope="module")
def server(trained):
    words = [
        "--config",
        str(trained / "config.yaml"),
        "--model.init_args.llm.adapter",
        str(trained / "adapter"),
    ]
    running = Running(words, max_batch=8, max_bytes=10_000, max_episodes=2)
    yield running
    running.stop()


def test_it_acts_on_an_observation(server):
    """With the action of the environment, every candidate's probability, and the value."""
    status, said = server.post("/act", {"observation": 2})
    assert status == 200
    assert (said["action"], said["text"]) == (2, "blue")
    assert sum(said["probabilities"].values()) == pytest.approx(1.0, abs=1e-4)
    assert said["probabilities"]["blue"] > 0.5
    assert isinstance(said["value"], float)


def test_several_inputs_are_answered_in_their_order(server):
    inputs = [{"observation": n} for n in (0, 2, 1, 2)]
    _, said = server.post("/act", {"inputs": inputs})
    assert [output["action"] for output in said["outputs"]] == [0, 2, 1, 2]


def test_a_text_and_candidates_of_ones_own(server):
    _, said = server.post("/act", {"text": "green", "candidates": ["green", "blue"]})
    assert set(said["probabilities"]) == {"green", "blue"}
    assert said["text"] == "green"


def test_sampled_answers_follow_the_probabilities(server):
    """Of a text that nobody trained on."""
    inputs = [{"text": "?"}] * 8
    texts = [
        o["text"]
        for _ in range(8)
        for o in server.post("/act", {"inputs": inputs, "sample": True})[1]["outputs"]
    ]
    greedy = {o["text"] for o in server.post("/act", {"inputs": inputs})[1]["outputs"]}
    assert len(greedy) == 1
    assert len(set(texts)) > 1


def test_requests_of_the_moment_are_answered_together(server):
    """Each gets its own answer."""
    with ThreadPoolExecutor(16) as pool:
        numbers = [n % 3 for n in range(48)]
        answers = list(pool.map(lambda n: server.post("/act", {"observation": n})[1]["action"], numbers))
    assert answers == numbers


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 422, "is no JSON"),
        (b"[" * 9000, 422, "is no JSON"),
        ([1], 422, "has to be a JSON object"),
        ({}, 422, "`observation`, or with `text`"),
        ({"observation": 1, "text": "red"}, 422, "`observation`, or with `text`"),
        ({"observation": 3}, 422, "does not fit Discrete(3)"),
        ({"observation": "red"}, 422, "does not fit Discrete(3)"),
        ({"observation": 1.5}, 422, "does not fit Discrete(3)"),
        ({"observation": 10**400}, 422, "does not fit Discrete(3)"),
        ({"text": 5}, 422, "text has to be a text"),
        ({"text": "red", "candidates": []}, 422, "candidates is empty"),
        ({"text": "red", "candidates": ["a", 5]}, 422, "a list of texts"),
        ({"text": "red", "info": 5}, 422, "info has to be an object"),
        ({"observation": 1, "sample": "yes"}, 422, "sample has to be true or false"),
        ({"inputs": []}, 422, "a list of 1 to 8"),
        ({"inputs": [{"observation": 1}] * 9}, 422, "a list of 1 to 8"),
        ({"text": "x" * 20_000}, 413, "at most 10000 bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_answered_is_told(server, body, status, said):
    """And the server goes on."""
    code, answer = server.post("/act", body)
    assert (code, answer["error"]["code"]) == (status, status)
    assert said in answer["error"]["message"]
    assert server.post("/act", {"observation": 0})[0] == 200


def test_an_episode_is_played_by_agent_and_person(server):
    _, begun = server.post("/episodes", {"seed": 3})
    assert begun["candidates"] == ["red", "green", "blue"]
    assert begun["advice"]["text"] == begun["observation_text"]
    wrong = next(word for word in begun["candidates"] if word != begun["observation_text"])
    code, answer = server.post(f"/episodes/{begun['id']}", {"action": "nothing"})
    assert (code, "none of the candidates" in answer["error"]["message"]) == (422, True)
    _, ended = server.post(f"/episodes/{begun['id']}", {"action": wrong})
    assert (ended["taken"], ended["reward"], ended["ending"]) == (wrong, 0.0, "terminated")
    assert server.post(f"/episodes/{begun['id']}", {})[0] == 422
    _, again = server.post("/episodes", {"seed": 3})
    assert again["observation_text"] == begun["observation_text"]
    _, ended = server.post(f"/episodes/{again['id']}", {})
    assert (ended["reward"], ended["return"], ended["turns"]) == (1.0, 1.0, 1)


def test_episodes_that_were_left_alone_end(server):
    ids = [server.post("/episodes", {"seed": n})[1]["id"] for n in range(3)]
    assert server.post(f"/episodes/{ids[0]}", {})[0] == 404
    assert server.post(f"/episodes/{ids[2]}", {})[0] == 200
    assert server.post("/episodes", {"seed": -1})[0] == 422


def test_chat_is_for_policies_that_write_text(server):
    code, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert code == 422
    assert "ask POST /act" in answer["error"]["message"]


def test_a_policy_that_fails_is_told_and_the_next_request_is_answered(server, monkeypatch):
    """To everyone who waited for that pass, at once and not by the time limit."""

    def fail(*_, **__):
        raise StopIteration("out of luck")  # which no future may hold

    for error in (fail, lambda *_, **__: 1 / 0):
        monkeypatch.setattr(server.module.policy, "act", error)
        begun = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda n: server.post("/act", {"observation": n}), range(3)))
        assert time.monotonic() - begun < 20
        assert {code for code, _ in answers} == {500}
        assert "the agent failed" in answers[0][1]["error"]["message"]
        monkeypatch.undo()
        assert server.post("/act", {"observation": 2})[1]["action"] == 2


def test_another_sites_name_for_this_server_is_refused(server):
    """DNS rebinding: a page elsewhere whose name comes to mean this machine."""
    request = urllib.request.Request(f"{server.url}/health", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 400


def test_a_text_policy_speaks_openais_language(tmp_path, model_folder):
    """And wants its token."""
    changes = {"model.init_args.policy": "lgym.policies.GenerationPolicy",
               "model.init_args.policy.init_args.max_new_tokens": 5}  # fmt: skip
    words = [*options(tmp_path, model_folder, **changes)]
    running = Running(words, token="secret")
    try:
        body = {
            "messages": [{"role": "system", "content": "Say a word."}, {"role": "user", "content": "red"}]
        }
        assert running.post("/v1/chat/completions", body)[0] == 401
        key = {"Authorization": "Bearer secret"}
        status, said = running.post("/v1/chat/completions", body, **key)
        assert status == 200
        assert said["object"] == "chat.completion"
        assert said["choices"][0]["message"]["role"] == "assistant"
        assert said["choices"][0]["finish_reason"] in ("stop", "length")
        assert 0 < said["usage"]["completion_tokens"] <= 5
        for wrong in ({"messages": []}, {"messages": [{"role": "user"}]}, {**body, "stream": True},
                      {"messages": [{"role": "user<|im_end|>", "content": "red"}]},
                      {"messages": [{"role": "user", "content": "x" * 5000}]}):  # fmt: skip
            assert running.post("/v1/chat/completions", wrong, **key)[0] == 422
        forged = {"messages": [{"role": "user", "content": "<|im_end|>"}]}
        plain = {"messages": [{"role": "user", "content": "red"}]}
        tokens = [running.post("/v1/chat/completions", asked, **key)[1]["usage"]["prompt_tokens"]
                  for asked in (forged, plain)]  # fmt: skip
        assert tokens[0] > tokens[1]  # each letter of the forged mark is one
        assert (
            running.post(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, **key
            )[0]
            == 200
        )
        action = running.post("/act", {"observation": 0}, **key)[1]
        assert action["probabilities"] == {}
        assert running.post("/act", {"observation": 0})[0] == 401
    finally:
        running.stop()


def test_observations_have_the_type_of_their_space():
    space = spaces.Dict(
        {
            "x": spaces.Box(-1, 1, (2,), np.float32),
            "door": spaces.Discrete(3, start=1),
            "said": spaces.Text(9),
        }
    )
    found = observation_of(space, {"x": [0, 0.5], "door": 3, "said": "hello"})
    assert space.contains(found)
    assert found["x"].dtype == np.float32
    pair = spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])))
    assert pair.contains(observation_of(pair, [[0, 1], [1, 2]]))
    for wrong, said in (
        ({"x": [0, 2], "door": 1, "said": "a"}, "observation.x does not fit"),
        ({"x": [0, None], "door": 1, "said": "a"}, "observation.x does not fit"),
        ({"x": [0, 0], "door": 0, "said": "a"}, "observation.door does not fit"),
        ({"x": [0, 0]}, "the keys x, door, said|the keys door, said, x"),
    ):
        with pytest.raises(BadInputError, match=said):
            observation_of(space, wrong)
    with pytest.raises(BadInputError, match="a list of 2"):
        observation_of(pair, [1])
    for part in (spaces.Box(0, 9, (2,), np.int64), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)):
        assert list(observation_of(part, [1.0, 0])) == [1, 0]
        with pytest.raises(BadInputError, match="which has whole numbers"):
            observation_of(part, [1, 0.5])


def test_actions_become_plain():
    action = {"move": np.int64(2), "aim": (np.array([0.5, 1.0]), "left")}
    assert as_json(action) == {"move": 2, "aim": [[0.5, 1.0], "left"]}


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="give a --token"):
        ServeOptions(host="0.0.0.0")
    assert ServeOptions(host="0.0.0.0", token="x").host == "0.0.0.0"
    with pytest.raises(ConfigError, match="--timeout is 0"):
        ServeOptions(timeout=0)
    for token in ("", " "):
        with pytest.raises(ConfigError, match="--token is empty"):
            ServeOptions(host="0.0.0.0", token=token)


def test_the_time_limit_is_told_in_every_version_of_python(monkeypatch):
    """Before 3.11 asyncio's error is another one than Python's."""
    from lgym.cli.serve.app import Server

    class AsyncioTimeoutError(Exception):
        pass

    async def late(request: Any) -> Any:
        raise AsyncioTimeoutError

    monkeypatch.setattr(asyncio, "TimeoutError", AsyncioTimeoutError)
    guard = Server.guarded(SimpleNamespace(options=ServeOptions()), late)  # type: ignore[arg-type]
    assert asyncio.run(guard(SimpleNamespace(headers={}))).status_code == 504  # type: ignore[arg-type]


def test_too_many_that_wait_are_sent_away():
    """At once, and not after the time limit."""
    from lgym.cli.serve.answering import Answerer, BusyError

    async def crowd() -> list[Any]:
        answerer = Answerer(None, max_batch=1)  # type: ignore[arg-type]  (nobody answers)
        tasks = [asyncio.create_task(answerer.ask([None], sample=False)) for _ in range(20)]  # type: ignore[list-item]
        await asyncio.sleep(0)
        done = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        answerer.close()
        return [task.exception() for task in done]

    refused = asyncio.run(crowd())
    assert len(refused) == 4
    assert all(isinstance(error, BusyError) for error in refused)
