"""There is always a whole checkpoint, and only whole ones are read."""

from __future__ import annotations

import os

import pytest
import torch

from helpers.runs import checkpoint, lgym
from lgym.cli.checkpoint_io import AtomicCheckpointIO, CorruptCheckpointError, before, is_whole


@pytest.fixture
def path(tmp_path):
    """Two checkpoints written under one name."""
    file = tmp_path / "last.ckpt"
    for number in (1, 2):
        AtomicCheckpointIO().save_checkpoint(
            {"number": number, "weights": torch.full((1000,), float(number))}, file
        )
    return file


def read(path):
    return AtomicCheckpointIO().load_checkpoint(path)["number"]


def test_the_one_before_is_kept(path):
    assert read(path) == 2
    assert read(before(path)) == 1
    assert sorted(file.name for file in path.parent.iterdir()) == ["last.before.ckpt", "last.ckpt"]


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.999])
def test_a_torn_one_gives_way_to_the_one_before(path, keep):
    """Cut off anywhere, as where the power went before the disk had written it."""
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
    with pytest.warns(UserWarning, match="torn or corrupt: going on from the one before it"):
        assert read(path) == 1


def test_any_single_wrong_byte_is_found(path):
    """In a tensor, in a name, in the archive's own directory (whose fields a reader of archives does not all
    look at), in the checksum; and wherever the file is cut off."""
    data = path.read_bytes()
    assert is_whole(path)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        assert not is_whole(path), at
        if at % 9 == 0 or at > len(data) - 110:
            path.write_bytes(data[:at])
            assert not is_whole(path), at
    with pytest.warns(UserWarning, match="torn or corrupt"):
        assert read(path) == 1


def test_it_is_a_checkpoint_like_any_other(path):
    """torch opens it, also without reading it whole; and one that another program wrote has no checksum to
    compare."""
    for mmap in (False, True):
        assert torch.load(path, weights_only=True, mmap=mmap)["number"] == 2
    other = path.with_name("other.ckpt")
    torch.save({"number": 5}, other)
    assert read(other) == 5
    other.write_bytes(other.read_bytes()[:-30])
    with pytest.raises(CorruptCheckpointError):
        read(other)


def test_what_a_gpu_wrote_is_read_without_one(path, monkeypatch):
    """Trained on one machine, it is evaluated and played on another."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        AtomicCheckpointIO().save_checkpoint({"number": 3, "weights": torch.ones(10)}, path)
    assert b"cuda:0" in path.read_bytes()
    assert AtomicCheckpointIO().load_checkpoint(path)["weights"].device.type == "cpu"


def test_a_checkpoint_that_may_not_be_read_is_not_called_torn(path, monkeypatch):
    """To go on from the one before would hide it."""
    monkeypatch.setattr(
        type(path), "read_bytes", lambda self: (_ for _ in ()).throw(PermissionError("not yours"))
    )
    with pytest.raises(PermissionError, match="not yours"):
        read(path)


def test_nothing_whole_is_left(path):
    for file in (path, before(path)):
        file.write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(CorruptCheckpointError, match="no whole one before it"):
        read(path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        read(path.with_name("other.ckpt"))


def test_a_disk_that_fills_up_leaves_both(path, monkeypatch):
    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        AtomicCheckpointIO().save_checkpoint({"number": 3}, path)
    assert (read(path), read(before(path))) == (2, 1)
    assert len(list(path.parent.iterdir())) == 2


def test_a_disk_without_second_names(path, monkeypatch):
    def refuse(*names):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    AtomicCheckpointIO().save_checkpoint({"number": 3}, path)
    assert (read(path), read(before(path))) == (3, 2)


def test_a_checkpoint_that_is_removed_leaves_nothing(path):
    AtomicCheckpointIO().remove_checkpoint(path)
    assert not list(path.parent.iterdir())


def test_a_run_goes_on_from_the_one_before_a_torn_one(tmp_path, model_folder):
    """By the command line: it plays the third rollout again, and ends as it would have."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=3)
    last = tmp_path / "version_0" / "checkpoints" / "last.ckpt"
    expected = checkpoint(tmp_path)["state_dict"]
    last.write_bytes(last.read_bytes()[:5000])
    with pytest.warns(UserWarning, match="going on from the one before it"):
        lgym("fit", tmp_path, model_folder, trainer__max_epochs=3, ckpt_path="last")
    got = checkpoint(tmp_path)["state_dict"]
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())
