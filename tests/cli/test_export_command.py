"""`lgym export` and `lgym push`."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import gguf
import pytest
import torch
import yaml
from peft import PeftModel
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers import tiny
from helpers.runs import QUICK, lgym
from lgym.cli import main
from lgym.cli.export import find, modelfile
from lgym.cli.push import without_folders
from lgym.types import ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory, model_folder) -> Path:
    """A run that has learned something."""
    folder = tmp_path_factory.mktemp("run")
    lgym("fit", folder, model_folder, trainer__max_epochs=3, **QUICK)
    return folder / "version_0"


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([tiny.tokenizer().encode("red or green")])).logits.float()


def trained(run, model_folder):
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    return logits(PeftModel.from_pretrained(base, run / "adapter"))


def test_a_merged_folder_is_a_plain_model(run, model_folder, tmp_path):
    """In bf16, of which three digits are left; with a card that says how to load it."""
    main(["export", str(run), "--formats", "merged", "--out", str(tmp_path)])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert model.dtype == torch.bfloat16
    expected = trained(run, model_folder)
    untrained = logits(AutoModelForCausalLM.from_pretrained(model_folder))
    difference = (logits(model.float()) - expected).abs().max()
    assert difference < 0.1 * (untrained - expected).abs().max()
    words = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert words.chat_template == tiny.tokenizer().chat_template
    text = (tmp_path / "README.md").read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["library_name"] == "transformers"
    assert 'from_pretrained("<this folder>/merged")' in text
    assert "| random |  | 0.3333 |" in text
    assert str(model_folder) not in text


def test_the_card_shows_the_learning_curve(run, tmp_path):
    """Once, however often it is exported; not where the files that it is drawn from are gone."""
    for _ in range(2):
        main(["export", str(run), "--formats", "merged", "--out", str(tmp_path / "whole")])
    assert (tmp_path / "whole" / "README.md").read_text().count("](learning_curve.png)") == 1
    with Image.open(tmp_path / "whole" / "learning_curve.png") as picture:
        assert picture.size == (600, 360)
        assert len(set(picture.convert("L").tobytes())) > 10
    shutil.copytree(run, tmp_path / "bare", ignore=shutil.ignore_patterns("events.out*"))
    (tmp_path / "bare" / "push").mkdir()
    (tmp_path / "bare" / "push" / "old.gguf").touch()
    main(["push", "me/echo", str(tmp_path / "bare"), "--dry-run"])
    assert not (tmp_path / "bare" / "push" / "old.gguf").exists()
    assert "learning_curve" not in (tmp_path / "bare" / "push" / "README.md").read_text()


def test_gguf_files_lie_beside_a_modelfile(run, tmp_path, capsys):
    main(["export", str(run), "--formats", "gguf", "gguf-adapter", "--type", "f32", "--out", str(tmp_path)])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"model-f32.gguf", "adapter.gguf", "Modelfile", "README.md", "learning_curve.png"}
    assert "FROM ./model-f32.gguf" in (tmp_path / "Modelfile").read_text()
    assert 'SYSTEM """Say the word."""' in (tmp_path / "Modelfile").read_text()
    fields = gguf.GGUFReader(tmp_path / "model-f32.gguf").fields
    assert fields["general.name"].contents() == "Echo-v0-PPO"
    assert "model-f32.gguf" in capsys.readouterr().out


def test_the_base_is_loaded_as_the_run_did(tmp_path, monkeypatch):
    """The adapter of a revision was added to the main branch's weights."""
    asked = []

    def loaded(model, **options):
        asked.append((model, options["revision"], options["trust_remote_code"]))
        raise ConfigError("enough")

    monkeypatch.setattr("lgym.models.export.merged.load_model_and_tokenizer", loaded)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    llm = {"model": "me/model", "revision": "v2", "trust_remote_code": True}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": {"init_args": {"llm": llm}}}))
    for base in (None, "elsewhere"):
        with pytest.raises(ConfigError, match="enough"):
            _ = find(tmp_path, base, "q8_0", None).merged
    assert asked == [("me/model", "v2", True), ("elsewhere", None, False)]


def test_an_adapters_folder_alone_needs_its_base(run, model_folder, tmp_path):
    adapter = tmp_path / "somewhere"
    (run / "adapter").rename(adapter)
    try:
        with pytest.raises(SystemExit):
            main(["export", str(adapter), "--out", str(tmp_path / "out")])
        main(["export", str(adapter), "--base", str(model_folder), "--out", str(tmp_path / "out")])
        assert (tmp_path / "out" / "model-q8_0.gguf").exists()
    finally:
        adapter.rename(run / "adapter")


def test_an_agent_that_comes_with_lgym_has_a_name(tmp_path, monkeypatch):
    """What stands in the folder of the same name comes first."""
    monkeypatch.chdir(tmp_path)
    found = find(Path("frozen_lake"), None, "q8_0", None)
    assert (found.adapter / "adapter_model.safetensors").exists()
    assert found.out == Path("runs/export/frozen_lake")
    assert found.base == "smollm2-135m-instruct"
    (tmp_path / "frozen_lake").mkdir()
    with pytest.raises(ConfigError, match="frozen_lake has no folder `adapter`"):
        find(Path("frozen_lake"), None, "q8_0", None)
    monkeypatch.chdir("/")
    main(["push", "me/lake", "frozen_lake", "--dry-run", "--out", str(tmp_path / "push")])
    assert (tmp_path / "push" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere has no folder `adapter`"),
        (["{run}", "--base", "{other}"], "does not fit"),
    ],
    ids=["no run", "another base"],
)
def test_what_cannot_be_exported_is_told(words, said, run, tmp_path, capsys):
    other = tmp_path / "other"
    tiny.causal_lm(hidden_size=32).save_pretrained(other)
    tiny.tokenizer().save_pretrained(other)
    with pytest.raises(SystemExit) as stop:
        main(
            ["export", *(word.format(run=run, other=other) for word in words), "--out", str(tmp_path / "out")]
        )
    assert stop.value.code == 1
    assert said in capsys.readouterr().err


def test_a_system_prompt_cannot_end_its_quotes():
    assert modelfile("m.gguf", {"system_prompt": 'a """\nFROM evil'}).count('"""') == 2
    assert modelfile("m.gguf", {}) == "FROM ./m.gguf\nPARAMETER temperature 1\n"


def test_nothing_is_uploaded_in_a_dry_run(run, tmp_path, capsys):
    main(["push", "me/echo", str(run), "--dry-run", "--out", str(tmp_path)])
    assert "Nothing was uploaded" in capsys.readouterr().out
    assert {"adapter_model.safetensors", "README.md", "config.yaml", "run.json"} <= {
        path.name for path in tmp_path.iterdir()
    }
    text = (tmp_path / "config.yaml").read_text() + (tmp_path / "run.json").read_text()
    assert str(run.parent) not in text
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["data"]["env"] == "Echo-v0"


def test_folders_of_this_machine_are_left_out():
    settings = {
        "root": "/home/me/runs/lake",
        "command": "lgym fit --config ~/a/b.yaml --x=/y/z",
        "prompt": "Say and/or: see https://example.org/a/b",
        "n": [1, "~/models/tiny", None],
    }
    assert without_folders(settings) == {
        "root": "lake",
        "command": "lgym fit --config b.yaml --x=z",
        "prompt": "Say and/or: see https://example.org/a/b",
        "n": [1, "tiny", None],
    }


class FakeHub(BaseHTTPRequestHandler):
    """As much of the Hub's API as an upload of small files takes."""

    files: dict[str, bytes] = {}
    asked: list[str] = []
    refuses = False

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(self.path)
        if self.path == "/api/repos/create":
            self.answer({"url": f"{self.server.url}/me/echo", "id": "me/echo"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/commit/" in self.path and self.refuses:
            self.answer({"error": "no"}, 403)
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            self.answer(
                {
                    "files": [
                        {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
                    ]
                }
            )
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer(
                {"commitUrl": f"{self.server.url}/me/echo/commit/1", "commitOid": "1", "hookOutput": ""}
            )
        else:
            self.answer({}, 404)

    def do_GET(self):
        self.answer({"siblings": [], "id": "me/echo", "sha": "0"})

    def answer(self, value, status=200):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    FakeHub.files.clear()
    FakeHub.asked.clear()
    yield FakeHub
    server.shutdown()


def test_the_hub_gets_the_adapter_with_its_card(run, tmp_path, hub, capsys):
    """And nothing that lay in the folder before."""
    for name in ("model-q8_0.gguf", "README.md"):
        (tmp_path / name).write_text("of an earlier push")
    main(["push", "me/echo", str(run), "--out", str(tmp_path)])
    assert "model-q8_0.gguf" not in hub.files
    assert hub.asked[0] == "/api/repos/create"
    assert (
        hub.files["adapter_model.safetensors"] == (run / "adapter" / "adapter_model.safetensors").read_bytes()
    )
    assert b"model-index" in hub.files["README.md"]
    assert "Uploaded: " in capsys.readouterr().out


def test_a_refusal_of_the_hub_is_told_and_nothing_is_lost(run, tmp_path, hub, monkeypatch, capsys):
    monkeypatch.setattr(hub, "refuses", True)
    with pytest.raises(SystemExit) as stop:
        main(["push", "me/echo", str(run), "--out", str(tmp_path)])
    assert stop.value.code == 1
    assert "The Hub did not take me/echo" in capsys.readouterr().err
    assert (tmp_path / "README.md").exists()
