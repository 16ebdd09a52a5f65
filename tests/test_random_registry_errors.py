import pytest
import torch

from leakscope.errors import BadInput, LeakscopeError, UnknownName
from leakscope.random import fork, global_draws
from leakscope.registry import Registry


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def draw(generator):
    return torch.randn(4, generator=generator)


def test_fork_depends_on_seed_and_path_only():
    assert torch.equal(draw(fork(seeded(1), "a")), draw(fork(seeded(1), "a")))
    assert not torch.equal(draw(fork(seeded(1), "a")), draw(fork(seeded(1), "b")))
    assert not torch.equal(draw(fork(seeded(1), "a")), draw(fork(seeded(2), "a")))


def test_fork_leaves_its_parent_alone():
    parent, untouched = seeded(1), seeded(1)
    fork(parent, "a")
    assert torch.equal(draw(parent), draw(untouched))


def test_global_draws_are_seeded_and_leave_no_trace():
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    with global_draws(seeded(3)):
        first = torch.rand(3)
    with global_draws(seeded(3)):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), expected)


def test_registry_refuses_duplicates_and_nameless_lines():
    registry = Registry("thing")
    registry.add("one", 1, summary="The first.")
    with pytest.raises(ValueError, match="already a thing named 'one'"):
        registry.add("one", 2, summary="Again.")

    def undocumented(): ...

    with pytest.raises(ValueError, match="needs a docstring"):
        registry.add("two", undocumented)


def test_unknown_name_suggests_the_nearest():
    registry = Registry("thing")
    registry.add("gradient", 1, summary="x")
    with pytest.raises(UnknownName, match="Did you mean 'gradient'"):
        registry["gradeint"]
    assert issubclass(UnknownName, BadInput)
    assert issubclass(BadInput, LeakscopeError)
