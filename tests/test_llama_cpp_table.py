"""`scripts/llama_cpp_table.py`: llama.cpp reads what `lgym export` writes."""

from __future__ import annotations

import sys

import pytest

import llama_cpp_table


@pytest.mark.slow
@pytest.mark.long
def test_llama_cpp_chooses_as_lgym_does(monkeypatch, capsys):
    """Catches rows of q and k in another order than llama.cpp's, and another tokenizer or chat template."""
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(sys, "argv", ["", "blackjack", "--types", "f32", "--states", "8"])
    llama_cpp_table.main()
    _, _, largest, _, same = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert float(largest) < 1e-3
    assert same == "100.0%"
