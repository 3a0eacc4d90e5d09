"""The libraries that torch computes with: what lgym sets for them, and what they take of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from lgym.math_libraries import SAME_ORDER, SPINNING, WAITING

ALL = (*WAITING, *SAME_ORDER)
SHOW = f"print([os.environ.get(name) for name in {ALL!r}])"


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, in which none of the variables is set but these."""
    env = {name: value for name, value in os.environ.items() if name not in ALL} | variables
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=120
    )


def test_openmp_takes_what_is_set():
    """Catches variables that are set too late, when OpenMP has read them, or under a name that it ignores."""
    said = run("import lgym.cli", OMP_DISPLAY_ENV="verbose").stderr
    if "OPENMP DISPLAY ENVIRONMENT" not in said:
        pytest.skip("this torch has no OpenMP, or one that does not show its settings")
    assert any(re.search(rf"{name}\s*=\s*'{value}", said) for name, value in SPINNING.items()), said


@pytest.mark.parametrize("given", WAITING)
def test_one_setting_of_the_user_is_enough(given):
    """What the others would do beside it is the user's to say."""
    shown = [("7" if name == given else None) for name in WAITING]
    assert run(f"import os, lgym; {SHOW}", **{given: "7"}).stdout.startswith(str(shown)[:-1])


def test_the_users_order_of_sums_stays():
    assert "'COMPATIBLE'" in run(f"import os, lgym; {SHOW}", MKL_CBWR="COMPATIBLE").stdout


def test_nothing_is_set_behind_torch():
    """Processes that this one starts would compute otherwise than itself."""
    assert run(f"import os, torch, lgym; {SHOW}").stdout.strip() == str([None] * len(ALL))


def test_a_row_of_a_product_does_not_depend_on_those_beside_it():
    """In fp32, from 16 rows on, which frozen blocks are filled up to: of Intel's processors by MKL's strict
    mode alone."""
    code = """
import lgym, torch
for inner, outer in ((64, 64), (576, 192), (1536, 576)):
    rows, weight = torch.randn(512, inner), torch.randn(outer, inner)
    whole = rows @ weight.T
    different = [n for n in (16, 48, 112, 256) if not torch.equal(rows[:n] @ weight.T, whole[:n])]
    assert not different, (inner, outer, different)
"""
    run(code, OMP_NUM_THREADS="2")
