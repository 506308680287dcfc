"""Counter-based sampling, draft acceptance and block tags."""

import pytest
import torch

from kernels import accept, accept_ref, block_tag, block_tag_ref, philox_ref, sample, sample_ref


def test_philox_known_answers():
    """Random123's published vectors for Philox4x32-10."""
    zero, ones = torch.zeros(1, dtype=torch.int64), torch.full((1,), philox_ref.MASK)
    first = [int(w) for w in philox_ref.philox(*[zero] * 6)]
    assert first == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    second = [int(w) for w in philox_ref.philox(*[ones] * 6)]
    assert second == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def rows(n, vocab, device, spread=3, most=30):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(n, vocab, generator=generator) * spread
    logits[:, 5] = float("-inf")
    temperature = torch.rand(n, generator=generator) + 0.3
    temperature[::5] = 0
    top_k = torch.randint(0, most, (n,), generator=generator)
    top_k[::3] = 0
    top_p = torch.rand(n, generator=generator)
    top_p[::4] = 1
    min_p = torch.rand(n, generator=generator) * 0.2
    min_p[::2] = 0
    seeds = torch.randint(-(2**62), 2**62, (n,), generator=generator)
    positions = torch.randint(0, 2**40, (n,), generator=generator)
    return [t.to(device) for t in (logits, temperature, top_k, top_p, min_p, seeds, positions)]


@pytest.mark.parametrize(("held", "drawn"), [(1024, 256), (32, 4), (16, 16)])
@pytest.mark.parametrize(("spread", "most", "ties"), [(3, 30, False), (3, 30, True), (0.5, 600, False)])
def test_sample_equals_reference(held, drawn, spread, most, ties, device, monkeypatch):
    """All that is kept in the groups that a program holds, some of it, and drawn there or piece by piece."""
    for name, value in {"PIECE": 256, "SCAN": 256, "HELD": held, "DRAWN": drawn}.items():
        monkeypatch.setattr(sample, name, value)
    args = rows(10, 603, device, spread, most)
    if ties:
        args[0] = args[0].round()
    assert torch.equal(sample.sample(*args), sample_ref.sample(*args))


def test_a_draw_is_the_same_in_any_batch():
    args = rows(12, 300, torch.device("cpu"))
    whole = sample_ref.sample(*args)
    for i in range(12):
        assert int(sample_ref.sample(*[a[i : i + 1] for a in args])) == int(whole[i])


def test_draws_follow_the_softmax():
    n = 40000
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5]).repeat(n, 1)
    none = torch.zeros(n, dtype=torch.int64)
    ids = sample_ref.sample(
        logits, torch.full((n,), 0.7), none, torch.ones(n), torch.zeros(n), torch.arange(n), torch.arange(n)
    )
    share = torch.bincount(ids, minlength=5) / n
    torch.testing.assert_close(share, (logits[0] / 0.7).softmax(-1), rtol=0, atol=0.01)


def test_filters_keep_what_they_say():
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0]]).repeat(300, 1)

    def kept(k=0, p=1.0, m=0.0):
        n = logits.shape[0]
        ids = sample_ref.sample(
            logits, torch.full((n,), 5.0), torch.full((n,), k), torch.full((n,), p), torch.full((n,), m),
            torch.arange(n), torch.zeros(n, dtype=torch.int64),
        )  # fmt: skip
        return set(ids.tolist())

    assert kept() == {0, 1, 2, 3, 4}
    assert kept(k=2) == {0, 1}
    assert kept(p=0.5) == {0, 1}  # 0.27 + 0.23 reaches one half with the second
    assert kept(m=0.7) == {0, 1}  # exp(-1/5) = 0.82, exp(-2/5) = 0.67


def test_accept(device):
    drafts = torch.randint(0, 2, (20, 3), device=device)
    draws = torch.randint(0, 2, (20, 4), device=device)
    assert torch.equal(accept.accept(drafts, draws), accept_ref.accept(drafts, draws))
    by_hand = accept_ref.accept(torch.tensor([[1, 2, 3], [1, 9, 3]]), torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]]))
    assert by_hand.tolist() == [3, 1]


@pytest.mark.parametrize("skip", [(), ((3, 9), (500, 777))])
def test_block_hash(skip, device):
    pool = torch.randint(-(2**31), 2**31 - 1, (4, 1000), dtype=torch.int32, device=device)
    blocks = torch.tensor([3, 0], device=device)
    reference = block_tag_ref.block_hashes(pool, blocks, skip)
    assert torch.equal(block_tag.block_hashes(pool, blocks, skip), reference)
    assert block_tag.block_hash(pool[3], skip) == by_definition(pool[3].tolist(), skip)
    assert block_tag_ref.block_hash(pool[3], skip) == by_definition(pool[3].tolist(), skip)


def by_definition(words, skip):
    wrap, total = 2**64, 0
    for i, word in enumerate(words):
        if any(start <= i < stop for start, stop in skip):
            continue
        z = (i + 1) * 0x9E3779B97F4A7C15 % wrap
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % wrap
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % wrap
        mixed = ((word ^ (word >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
        total += (mixed - 2**32 if mixed >= 2**31 else mixed) * ((z ^ (z >> 31)) | 1)
    return total % wrap


def test_one_changed_or_moved_word_changes_the_hash():
    words = torch.randint(-(2**31), 2**31 - 1, (5000,), dtype=torch.int32)
    before = block_tag_ref.block_hash(words)
    changed = words.clone()
    changed[4321] ^= 1 << 30
    assert block_tag_ref.block_hash(changed) != before
    swapped = words.clone()
    swapped[[10, 20]] = words[[20, 10]]
    assert block_tag_ref.block_hash(swapped) != before
