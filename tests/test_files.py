"""Files of others: none keeps us waiting, none is read further than agreed, and each fault is said."""

import os
import stat

import numpy as np
import pytest

import tilewave.files as files
from tilewave.emulator import Emulator
from tilewave.errors import CallError, TilewaveError
from tilewave.files import NotPlain, NotText, TooLong, distrust, parse_json, read_plain, read_text, replace_file

NO_JSON = {
    "nested too deeply": ("[" * 100_000, "nested too deeply"),
    "a key twice": ('{"a": 1, "a": 1}', "the key 'a' occurs twice"),
    "no number": ("[NaN]", "NaN is no number"),
    "an infinity": ("-Infinity", "-Infinity is no number"),
    "too large for a float": ("1e999", "1e999 is no number"),
    "too many digits": ("1" * 5000, "digits"),
    "no UTF-8": (b'"\xff"', "byte 1 is no UTF-8"),
    "more than one value": ("1 2", "more text after its value"),
    "nothing": ("", "Expecting value"),
}


@pytest.mark.parametrize("name", NO_JSON)
def test_what_is_no_json_is_a_value_error_that_says_why(name):
    text, said = NO_JSON[name]
    with pytest.raises(ValueError, match=said):
        parse_json(text)


def test_json_is_read_as_it_is():
    assert parse_json(b' {"a": [1, 2.5, null, true, "\xc3\xa9"]} \n') == {"a": [1, 2.5, None, True, "é"]}


def planted(path, kind):
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
def test_what_is_no_plain_file_is_not_read(tmp_path, kind):
    path = planted(tmp_path / "x", kind)
    with pytest.raises(NotPlain):
        read_plain(path, 100)
    with pytest.raises(CallError, match="cannot be read: it is not a plain file"):
        Emulator.from_code_object(path)


def test_a_sparse_code_object_is_not_read(tmp_path):
    path = tmp_path / "x.hsaco"
    path.touch()
    os.truncate(path, 3 << 30)
    with pytest.raises(CallError, match=r"it has 3,221,225,472 bytes, and 268,435,456 are the most"):
        Emulator.from_code_object(path)
    with pytest.raises(CallError, match="No such file"):
        Emulator.from_code_object(tmp_path / "nothing")


def test_a_file_is_read_up_to_its_limit(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_plain(path, 5) == b"12345"
    with pytest.raises(TooLong):
        read_plain(path, 4)
    real = os.fstat
    shorter = lambda file: os.stat_result((*real(file)[:6], 0, *real(file)[7:10]))  # noqa: E731  as /proc says
    monkeypatch.setattr(os, "fstat", shorter)
    with pytest.raises(TooLong):
        read_plain(path, 4)


def test_bytes_that_are_no_text_are_said(tmp_path):
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(NotText, match=r"no text in UTF-8 \(byte 2\)"):
        read_text(tmp_path / "x", 9)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x"
    replace_file(path, b"old", 0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("mode", "private", "believed"),
    [(0o644, False, True), (0o664, False, False), (0o664, True, True), (0o646, True, False), (0o600, False, True)],
)
def test_what_others_can_write_is_not_believed(tmp_path, monkeypatch, mode, private, believed):
    monkeypatch.setattr(files, "_is_private_group", lambda user, group: private)
    path = tmp_path / "x"
    path.touch()
    path.chmod(mode)
    assert (distrust(path.stat()) == "") == believed


def test_a_directory_where_only_owners_replace_files_is_believed(tmp_path):
    tmp_path.chmod(0o777)
    assert distrust(tmp_path.stat()).startswith("can be written by every user")
    tmp_path.chmod(0o1777)
    assert distrust(tmp_path.stat()) == ""


def test_arrays_of_the_emulator_are_refused_where_they_are_none(tmp_path):
    from tilewave.cli.emulate import _load

    np.savez(tmp_path / "a.npz", a=np.ones(3))
    (tmp_path / "b.npy").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "c.npy").touch()
    os.truncate(tmp_path / "c.npy", 5 << 30)
    for name, said in (("a.npz", "archive of several"), ("b.npy", "is no array"), ("c.npy", "at most 4,294,967,296")):
        with pytest.raises(TilewaveError, match=said):
            _load(f"in:{tmp_path / name}", str(tmp_path / name))
