"""The load test of the server, for a second."""

from __future__ import annotations

import pytest

import serve_load


def test_a_row_of_the_table():
    load = serve_load.Load(clients=8, requests_per_s=12.4, median=0.1, p99=0.25, memory=900_000_000)
    assert serve_load.table([load]).splitlines()[2] == "| 8 | 12 | 100 ms | 250 ms | 900 MB |"


@pytest.mark.slow
def test_an_agent_is_served_under_load(capsys):
    """Every request is answered, and what cannot be is refused."""
    pytest.importorskip("uvicorn")
    serve_load.main(["frozen_lake", "--clients", "1", "4", "--seconds", "1"])
    assert capsys.readouterr().out.count(" MB |") == 2
