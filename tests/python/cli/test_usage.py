"""Wrong usage of the command line: status 2 and one line on stderr that names the option, whatever the machine has."""

from __future__ import annotations

import pytest

from noria.cli import main

WRONG = [
    ("run --budget nonsense", "--budget", "'nonsense' is not an amount of memory"),
    ("run --budget 101%", "--budget", "at most 100"),
    ("run --budget=-1GiB", "--budget", "negative"),
    ("run --steps -1", "--steps", "at least 1, and is -1"),
    ("run --steps 0", "--steps", "at least 1, and is 0"),
    ("run --steps many", "--steps", "whole number, and is 'many'"),
    ("run --seed x", "--seed", "whole number, and is 'x'"),
    ("run --seed 99999999999999999999", "--seed", "64 bits"),
    ("run --dtype foo", "--dtype", "bfloat16, and is 'foo'"),
    ("run --dtype int8", "--dtype", "bfloat16, and is 'int8'"),
    ("run --dtype nn", "--dtype", "bfloat16, and is 'nn'"),
    ("run --profile rtx9999", "--profile", "rtx4090"),
    ("run --device nosuch", "--device", "no device is called 'nosuch'"),
    ("run --device sim:x", "--device", "no device is called 'sim:x'"),
    ("run --device cpu --profile l20", "--profile", "for --device sim"),
    ("run --plot picture.docx", "--plot", "png"),
    ("run --no-such-option", "--no-such-option", "unrecognized"),
    ("doctor --device nosuch", "--device", "no device is called 'nosuch'"),
    ("doctor --device simulator", "--device", "no device is called 'simulator'"),
    ("bench nosuch", "nosuch", "overlap"),
    ("bench overlap --profile rtx9999", "--profile", "rtx4090"),
    ("bench disk --gib nan", "--gib", "above 0, and is 'nan'"),
    ("bench disk --gib -4", "--gib", "above 0, and is '-4'"),
    ("bench disk --rounds 0", "--rounds", "at least 1"),
    ("bench", "question", "required"),
    ("sing", "sing", "run"),
    ("", "COMMAND", "required"),
]


@pytest.mark.parametrize(("line", "option", "text"), WRONG, ids=[line or "nothing" for line, _, _ in WRONG])
def test_a_wrong_value_is_status_two_and_one_line(capsys, line: str, option: str, text: str) -> None:
    try:
        status = main(line.split())
    except SystemExit as exit:  # argparse ends the process itself
        status = exit.code
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert err.startswith("noria: ")
    assert err.endswith(" --help)\n")
    assert err.count("\n") == 1
    assert option in err
    assert text in err
