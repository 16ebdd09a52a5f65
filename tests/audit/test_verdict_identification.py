"""The identification test: uniform under the null, sharp where something came back, blind to what a control gives."""

import pytest
import torch

import leakscope as ls
from leakscope.audit.identification import Candidate, Gallery, identify, photographs, thumbnails


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def waves(count, seed):
    """Smooth random pictures, (count, 3, 16, 16): all of one kind."""
    coarse = torch.rand((count, 3, 4, 4), generator=seeded(seed), dtype=torch.float64)
    return torch.nn.functional.interpolate(coarse, size=16, mode="bilinear")


@pytest.fixture(scope="module")
def gallery():
    return Gallery.of((3, 32, 32))


def test_the_gallery_is_large_and_always_the_same(gallery):
    assert len(gallery.vectors[0]) > 5000
    assert torch.equal(photographs(3, 8, 8), photographs(3, 8, 8))
    assert photographs(1, 8, 8).shape[1:] == (1, 8, 8)
    assert photographs(4, 8, 16).shape[1:] == (4, 8, 16)


def test_p_values_are_uniform_where_nothing_came_back():
    """Originals and distractors of one kind, reconstructions of the same kind but independent: exact by symmetry."""
    vectors = Gallery.of((3, 16, 16), waves(99, 1)).vectors
    kind = Gallery(vectors=tuple(v[:99] for v in vectors), kin=99)
    originals, guesses = thumbnails(waves(200, 2)), thumbnails(waves(200, 3))
    found = [
        identify(original, [Candidate(images=guess[None], index=0)], kind)[0].p_value
        for original, guess in zip(originals, guesses, strict=True)
    ]
    for share in (0.05, 0.1, 0.5):
        # One gallery for all of them, so the draws are not independent: the margin is wide.
        assert sum(p <= share for p in found) / len(found) < share + 0.1
    assert sum(p <= 0.5 for p in found) / len(found) > 0.25


def test_trying_more_often_buys_no_luck():
    vectors = Gallery.of((3, 16, 16), waves(99, 1)).vectors
    kind = Gallery(vectors=tuple(v[:99] for v in vectors), kin=99)
    originals, guesses = thumbnails(waves(30, 4)), thumbnails(waves(600, 5))
    best = []
    for i in range(30):
        tries = [Candidate(images=guesses[20 * i + j][None], index=0) for j in range(20)]
        best.append(min(one.p_value for one in identify(originals[i], tries, kind)))
    assert sum(p <= 0.05 for p in best) / len(best) < 0.2  # uncorrected, it would be above 0.6


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_reconstruction_picks_its_original(gallery, noise):
    pictures = ls.bundled_batch(["cat", "coffee", "brain"], size=32).images
    blurred = (pictures + noise * torch.randn(pictures.shape, generator=seeded())).clamp(0, 1)
    for index, original in enumerate(thumbnails(pictures)):
        one = identify(original, [Candidate(images=thumbnails(blurred), index=index)], gallery)[0]
        assert (one.rank, one.kin) == (1, 0)
        assert one.p_value < 0.005
        assert one.correlation > 0.65


def test_a_blank_identifies_nothing(gallery):
    original = thumbnails(ls.bundled_batch(["cat"], size=32).images)[0]
    for value in (0.0, 0.5, float("nan")):
        blank = thumbnails(torch.full((1, 3, 32, 32), value))
        one = identify(original, [Candidate(images=blank, index=0)], gallery)[0]
        assert one.p_value > 0.01
        assert one.correlation == 0


def test_what_the_control_brings_as_well_counts_for_nothing(gallery):
    pictures = thumbnails(ls.bundled_batch(["cat"], size=32).images)
    other = thumbnails(waves(1, 7).repeat(1, 1, 2, 2))
    alone, beside, same = (
        identify(pictures[0], [Candidate(images=pictures, index=0, control=control)], gallery)[0]
        for control in (None, other, pictures)
    )
    assert alone.p_value < 0.002
    assert beside.p_value < 0.002
    assert same.p_value > 0.5
    assert same.control_correlation == pytest.approx(1.0)


def test_another_picture_never_passes_for_the_original():
    """Every bundled photograph, perfectly reconstructed, in place of every other one."""
    pictures = thumbnails(ls.bundled_batch(size=16).images)
    gallery = Gallery.of((3, 16, 16))
    for i, original in enumerate(pictures):
        others = [Candidate(images=picture[None], index=0) for j, picture in enumerate(pictures) if j != i]
        for one in identify(original, others, gallery):
            assert one.correlation < 0.8
            assert one.rank > 1


def test_kin_must_be_beaten():
    """Any of these pictures beats a thousand photographs; among its own kind it does not stand out."""
    kin = waves(60, 1)
    original, guess = thumbnails(waves(1, 2))[0], thumbnails(waves(1, 3))
    one = identify(original, [Candidate(images=guess, index=0)], Gallery.of((3, 16, 16), kin))[0]
    assert one.kin == 60
    assert one.kin_rank > 1
    true = identify(original, [Candidate(images=original[None], index=0)], Gallery.of((3, 16, 16), kin))[0]
    assert true.kin_rank == 1


def test_the_original_itself_is_no_distractor():
    pictures = ls.bundled_batch(["cat"], size=16).images
    gallery = Gallery.of((3, 16, 16), torch.cat([pictures, waves(5, 0).float()]))
    one = identify(thumbnails(pictures)[0], [Candidate(images=thumbnails(pictures), index=0)], gallery)[0]
    assert one.kin == 5
    assert one.rank == 1
