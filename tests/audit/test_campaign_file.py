"""Campaign files: a good one is read, every mistake refused with its key, the reason and the nearest spelling."""

import copy
import difflib
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.audit.campaign_file import parse_campaign, read_campaign
from leakscope.errors import BadInput

GOOD = """
name = "first"
seeds = [0, 1]
[models.mlp]
name = "leakscope:mlp?hidden=32"
image_size = 16
[images.photos]
from = ["bundled:cat,coffee"]
batch_size = 1
[clients.sgd]
type = "fedsgd"
mode = "eval"
[defences.noise]
steps = [{ type = "gaussian-noise", scale = 0.1 }]
[attackers.server]
rung = "labels"
[attacks.ig]
type = "inverting-gradients"
steps = 5
[[targets]]
models = ["mlp"]
images = ["photos"]
clients = ["sgd"]
defences = ["none", "noise"]
[budget]
steps = 10
cells = 100
[controls]
self_tests = false
"""


def toml(value):
    """The value as TOML, inline tables throughout: all that these tests need."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {toml(item)}' for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return '"' + value + '"' if isinstance(value, str) else repr(value)


def text(content):
    return "\n".join(f'"{key}" = {toml(value)}' for key, value in content.items())


def places(value, path=()):
    """Every key of the file, as a path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def at(content, path):
    for part in path:
        content = content[part]
    return content


BASE = tomllib.loads(GOOD)
# Names that the operator chose are free: only keys that the format knows can be misspelt.
FREE = {("models", "mlp"), ("images", "photos"), ("clients", "sgd"), ("defences", "noise"), ("attackers", "server")}
FREE |= {("attacks", "ig")}
KEYS = [path for path in places(BASE) if path not in FREE and isinstance(path[-1], str)]
REQUIRED = [("name",), ("models",), ("images",), ("clients",), ("targets",), ("models", "mlp", "name")]
REQUIRED += [
    ("images", "photos", "from"),
    ("attacks", "ig", "type"),
    ("targets", 0, "models"),
    ("targets", 0, "clients"),
]


def refused(content):
    with pytest.raises(BadInput) as caught:
        parse_campaign(text(content))
    return str(caught.value)


def test_a_good_file_is_read():
    campaign = parse_campaign(GOOD)
    assert campaign.models["mlp"].image_size == 16
    assert campaign.targets[0].defences == ["none", "noise"]
    assert parse_campaign(text(BASE)) == campaign


def misspelt(word, position, letter):
    position %= len(word) + 1
    return word[:position] + letter + word[position:]


@settings(max_examples=90, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(KEYS), position=st.integers(0, 30), letter=st.sampled_from("aexz_"))
def test_a_misspelt_key_is_refused_with_the_nearest(path, position, letter):
    content = copy.deepcopy(BASE)
    table = at(content, path[:-1])
    wrong = misspelt(path[-1], position, letter)
    if wrong in table:
        return
    table[wrong] = table.pop(path[-1])
    message = refused(content)
    assert wrong in message
    # The right spelling is named, as a suggestion or among what is accepted.
    assert f"'{path[-1]}'" in message or path[-1] in message.replace(wrong, "")


WRONG = [-1, 0.5, True, [], {}, "", "3", [""], [1.5], {"x": 1}, float("nan")]


@settings(max_examples=130, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(KEYS), value=st.sampled_from(WRONG))
def test_a_wrong_value_is_refused_with_its_key(path, value):
    content = copy.deepcopy(BASE)
    right = at(content, path)
    if type(right) is type(value) or path in {("controls",), ("budget",)}:  # may be valid
        return
    at(content, path[:-1])[path[-1]] = value
    if path[:2] == ("defences", "noise") and len(path) > 3 and path[-1] == "scale" and value == 0.5:
        return
    message = refused(content)
    assert str(path[-1]) in message or ".".join(map(str, path[:2])) in message


@pytest.mark.parametrize("path", REQUIRED, ids=lambda path: ".".join(map(str, path)))
def test_what_is_missing_is_named(path):
    content = copy.deepcopy(BASE)
    del at(content, path[:-1])[path[-1]]
    message = refused(content)
    assert path[-1] in message
    assert "missing" in message


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("targets", 0, "models"), ["mpl"], ["targets[0].models", "Did you mean 'mlp'"]),
        (("targets", 0, "defences"), ["nois"], ["Did you mean 'noise'"]),
        (("targets", 0, "attacks"), ["ige"], ["Did you mean 'ig'"]),
        (("attackers", "server", "rung"), "label", ["attackers.server.rung", "Did you mean 'labels'"]),
        (("attackers", "server", "rung"), "public-data", ["attackers.server.public", "needs public images"]),
        (("attacks",), "automatic", ["attacks", "auto"]),
        (("attacks", "ig", "type"), "inverting-gradient", ["attacks.ig", "Did you mean 'inverting-gradients'"]),
        (("attacks", "ig", "stepz"), 3, ["attacks.ig", "Did you mean 'steps'"]),
        (("clients", "sgd", "mode"), "training", ["clients.sgd", "train"]),
        (
            ("defences", "noise", "steps"),
            [{"type": "gaussian", "scale": 1}],
            ["defences.noise.steps[0]", "gaussian-noise"],
        ),
        (("defences", "none"), {"steps": [{"type": "clipping"}]}, ["defences.none", "stands for no defence"]),
        (("metrics",), ["psn"], ["metrics", "Did you mean 'psnr'"]),
        (("verdict",), {"exakt": 3}, ["verdict"]),
        (("seeds",), [], ["seeds"]),
        (("seeds",), [2**64], ["seeds"]),
    ],
)
def test_what_the_message_says(path, value, words):
    content = copy.deepcopy(BASE)
    at(content, path[:-1])[path[-1]] = value
    message = refused(content)
    for word in words:
        assert word in message, message


def test_all_mistakes_are_listed_at_once():
    content = copy.deepcopy(BASE)
    content["modles"], content["seeds"], content["budget"] = {}, ["x"], {"step": 3}
    message = refused(content)
    assert "3 mistakes" in message
    assert difflib.get_close_matches("modles", message.split(), cutoff=0.5)


@pytest.mark.parametrize("broken", ["name = ", "[models", "name = 'x'\nname = 'y'", "\x00", "a" * 10])
def test_what_is_no_toml_is_refused(broken):
    with pytest.raises(BadInput, match="not valid TOML"):
        parse_campaign(broken)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match="leakscope init"):
        read_campaign(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_campaign(tmp_path / "latin.toml")
    (tmp_path / "large.toml").write_text("#" * 2_100_000)
    with pytest.raises(BadInput, match="larger than"):
        read_campaign(tmp_path / "large.toml")
