from common.kv.hashing import chain_hashes, root_hash
from common.kv.incarnation import draw_incarnation
from common.kv.tags import chain_hash_low, skipped_words, tag

CHAIN = chain_hashes(root_hash("m", 2, "f", ""), [1, 2], 2)[0]


def test_each_part_changes_the_tag():
    base = tag(5, CHAIN, 9)
    assert 0 <= base < 2**64
    assert len({base, tag(6, CHAIN, 9), tag(5, bytes(16), 9), tag(5, b"", 9), tag(5, CHAIN, 10)}) == 5


def test_tag_needs_no_more_of_a_chain_hash_than_is_announced():
    assert tag(5, CHAIN, 9) == tag(5, chain_hash_low(CHAIN).to_bytes(8, "little"), 9)
    assert chain_hash_low(b"") == 0


def test_content_hash_may_be_signed_or_not():
    assert tag(-1, CHAIN, 9) == tag(2**64 - 1, CHAIN, 9)


def test_incarnations_grow_and_fit_into_63_bits():
    draws = [draw_incarnation() for _ in range(50)]
    assert len(set(draws)) == 50
    assert all(0 < draw < 2**63 for draw in draws)
    assert [draw >> 20 for draw in draws] == sorted(draw >> 20 for draw in draws)


def test_only_the_last_mtp_slot_of_a_full_block_is_skipped():
    assert skipped_words(1024, 128, full=True) == ((224, 256),)
    assert skipped_words(1024, 128, full=False) == ()
    assert skipped_words(1024, 0, full=True) == ()
