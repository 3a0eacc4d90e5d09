"""MKL's strict mode and the waiting of threads: where lgym sets them, and what products are with it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lgym import math_libraries

SHOW = "print(os.environ.get('MKL_CBWR'))"


def run(code: str, **variables: str) -> str:
    """What Python prints in a process of its own, in which nothing of lgym's is set unless it is given."""
    ours = {"MKL_CBWR", *math_libraries.USERS_CHOICE}
    env = {name: value for name, value in os.environ.items() if name not in ours} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


@pytest.mark.parametrize("intel", [True, False])
def test_only_intels_processors_have_the_mode(monkeypatch, intel):
    """Others take MKL's slowest instructions where a mode is set."""
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(math_libraries, "_is_intel", lambda: intel)
    math_libraries.configure_math_libraries()
    assert os.environ.get("MKL_CBWR") == ("AUTO,STRICT" if intel else None)


def test_the_users_mode_stays():
    assert run(f"import os, lgym; {SHOW}", MKL_CBWR="COMPATIBLE") == "COMPATIBLE"


def test_nothing_is_set_behind_torch():
    """Processes that this one starts would compute otherwise than itself."""
    assert run(f"import os, torch, lgym; {SHOW}") == "None"


WAITS = "print(*(os.environ.get(n) for n in ('GOMP_SPINCOUNT', 'KMP_BLOCKTIME', 'OMP_WAIT_POLICY')))"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"OMP_WAIT_POLICY": "active"}, "None None active"),
        ({"GOMP_SPINCOUNT": "7"}, "7 None None"),
        ({"KMP_BLOCKTIME": "infinite"}, "None infinite None"),
    ],
    ids=str,
)
def test_the_users_way_of_waiting_stays(chosen, expected):
    """With a policy of the user's, a spin count beside it would go before it."""
    assert run(f"import os, lgym; {WAITS}", **chosen) == expected


@pytest.mark.parametrize(
    ("busy", "expected"),
    [(True, {"OMP_WAIT_POLICY": "passive"}), (False, {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"})],
    ids=["busy", "free"],
)
def test_threads_sleep_at_once_beside_another_program(monkeypatch, busy, expected):
    monkeypatch.setattr(os, "environ", {"MKL_CBWR": "mine"})
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(math_libraries, "_a_core_is_busy", lambda: busy)
    math_libraries.configure_math_libraries()
    assert os.environ == {"MKL_CBWR": "mine", **expected}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux says which cores a process has")
def test_a_process_on_the_same_core_is_noticed():
    core = min(os.sched_getaffinity(0))
    code = "import os, sys, time; os.sched_setaffinity(0, {int(sys.argv[1])}); "
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}print(flush=True)\nwhile True: pass", str(core)],
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        try:
            other.stdout.readline()
            look = [
                sys.executable,
                "-c",
                f"{code}from lgym import math_libraries as m; print(m._a_core_is_busy())",
            ]
            seen = subprocess.run([*look, str(core)], capture_output=True, text=True, check=True, timeout=120)
        finally:
            other.kill()
    assert seen.stdout.strip() == "True"


@pytest.mark.parametrize(
    ("idle", "busy"), [((5, 5), False), ((5, 1), True), ((0, 0), True)], ids=["free", "one busy", "both busy"]
)
def test_a_core_is_busy_where_it_was_idle_for_less_than_half_the_time(monkeypatch, idle, busy):
    looks = iter([{"cpu0": (10, 90), "cpu3": (0, 7)}, {"cpu0": (10 + idle[0], 95), "cpu3": (idle[1], 12)}])
    monkeypatch.setattr(math_libraries, "_core_times", lambda: next(looks))
    assert math_libraries._a_core_is_busy() is busy


def test_where_cores_are_not_told_none_is_busy(monkeypatch):
    def no_such_file():
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr(math_libraries, "_core_times", no_such_file)
    assert math_libraries._a_core_is_busy() is False


def test_a_program_that_imports_torch_first_keeps_its_way_of_waiting():
    assert run(f"import os, torch, lgym; {WAITS}") == "None None None"


def test_a_row_of_a_product_does_not_depend_on_those_beside_it():
    """In fp32, from 16 rows on, which frozen blocks are filled up to: on two threads of Intel's processors by
    MKL's strict mode alone."""
    code = """
import lgym, torch
for inner, outer in ((64, 64), (576, 192), (1536, 576)):
    rows, weight = torch.randn(512, inner), torch.randn(outer, inner)
    whole = rows @ weight.T
    different = [n for n in (16, 48, 112, 256) if not torch.equal(rows[:n] @ weight.T, whole[:n])]
    assert not different, (inner, outer, different)
"""
    run(code, OMP_NUM_THREADS="2")
