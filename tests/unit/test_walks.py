"""What a whole model is fed: the prompts of every length that can go wrong by itself, within the context, each once."""

from __future__ import annotations

import pytest

from agentcompile.ir.whole import Group
from agentcompile.verification.walks import GOES_ON, LENGTHS, SIDE_BY_SIDE, TAIL, WHOLE, lengths, named, walks

CONTEXTS = (1, 2, 3, 5, 8, 16, 17, 18, 64, 65, 66, 67, 128, 513, 1024)
CHUNKS = (1, 2, 16, 64, 65, 512)


def fed(context: int, chunk: int = 512, *, ends: tuple[int, ...] = (), **more: object) -> tuple[Group, ...]:
    return walks(context, 500, min(chunk, context), ends=ends or (context,), **more)  # type: ignore[arg-type]


def pairs(groups: tuple[Group, ...]) -> list[tuple[int, int]]:
    """Tokens and prompt of every walk."""
    return [(len(walk.ids), walk.prompt) for group in groups for walk in group]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_no_walk_is_beyond_the_context_or_a_step_that_is_not_there(context: int, chunk: int) -> None:
    for group in fed(context, chunk, programs=(1, 2, 4, 64, 256)):
        (walk,) = group
        assert 1 <= len(walk.ids) <= context
        assert 0 <= walk.prompt <= len(walk.ids)
        assert walk.scored == tuple(range(max(walk.prompt - 1, 0), len(walk.ids)))
        assert all(0 <= token < 500 for token in walk.ids)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_nothing_is_fed_twice(context: int, chunk: int) -> None:
    found = pairs(fed(context, chunk))
    assert len(set(found)) == len(found), sorted(found)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_caches_last_slot_is_written_by_a_decode_step(context: int, chunk: int) -> None:
    reached = {len(walk.ids) for group in fed(context, chunk) for walk in group if walk.steps}
    assert context in reached


@pytest.mark.parametrize("context", CONTEXTS)
def test_prompts_have_every_length_that_fits_and_go_on(context: int) -> None:
    found = pairs(fed(context, 512))
    for length in (length for length in LENGTHS if length < context):
        assert (min(length + GOES_ON, context), length) in found


@pytest.mark.parametrize("chunk", [16, 64, 128])
def test_prompts_are_one_less_than_a_chunk_a_chunk_and_one_more(chunk: int) -> None:
    assert {chunk - 1, chunk, chunk + 1} <= set(lengths(fed(1024, chunk)))


def test_the_longest_prompt_leaves_its_tail_to_steps_and_the_first_tokens_have_no_prompt() -> None:
    found = pairs(fed(1024))
    assert (1024, 1024 - TAIL) in found
    assert (WHOLE + 1, 0) in found


def test_a_prompt_is_also_fed_in_part_by_steps() -> None:
    assert {(17 + GOES_ON, 17), (17 + GOES_ON, 8)} <= set(pairs(fed(1024)))
    groups = fed(1024)
    seventeen = [walk.ids for group in groups for walk in group if len(walk.ids) == 17 + GOES_ON]
    assert len(set(seventeen)) == 1


def test_where_no_prompt_can_be_fed_at_once_the_lengths_around_it_are_left_out() -> None:
    assert set(lengths(fed(128, 1))) == {1, 2, 17, 64, 65, *(length // 2 for length in (2, 17, 65)), 128 - TAIL}


def test_steps_stand_on_both_sides_of_every_bound_between_plans() -> None:
    found = fed(1024, ends=(128, 512, 1024))
    for end in (128, 512):
        assert any({end - 1, end} <= set(walk.scored) and walk.prompt < end for group in found for walk in group)


def test_a_length_with_a_program_of_its_own_is_fed_and_so_is_the_whole_cache_at_once() -> None:
    found = lengths(fed(1024, 512, programs=(1, 2, 16, 256)))
    assert {1, 2, 16, 256, 1024} <= set(found)
    assert 1024 not in lengths(fed(1024, 512))


def test_a_batch_runs_side_by_side_each_at_a_place_of_its_own() -> None:
    (*_, two, eight) = fed(128, batches=(2, 8))
    assert (len(two), len(eight)) == (2, 8)
    assert {walk.steps for walk in eight} == {SIDE_BY_SIDE}
    assert len({walk.prompt for walk in eight}) > 2
    assert len({walk.ids for walk in eight}) == 8
    assert all(len(walk.ids) <= 128 for walk in eight)


@pytest.mark.parametrize("context", [2, 3, 4, 5, 8])
def test_a_batch_fits_in_a_small_context(context: int) -> None:
    *_, group = fed(context, batches=(4,))
    assert len(group) == 4
    assert all(walk.prompt >= 1 and walk.steps >= 1 and len(walk.ids) <= context for walk in group)


def test_longer_walks_come_first_so_that_shorter_ones_find_their_cache() -> None:
    found = [len(group[0].ids) for group in fed(1024)]
    assert found == sorted(found, reverse=True)


def test_the_seed_decides_on_the_tokens() -> None:
    assert fed(128, seed=1) == fed(128, seed=1)
    assert fed(128, seed=1) != fed(128, seed=2)


def test_a_row_is_named_by_how_it_was_fed() -> None:
    (walk,) = next(group for group in fed(128) if group[0].prompt == 17)
    assert named(walk, 16) == "a prompt of 17 tokens"
    assert named(walk, 18) == "a prompt of 17 tokens and 2 decoded, position 18"
    (first,) = next(group for group in fed(128) if not group[0].prompt)
    assert named(first, 3) == "token by token, position 3"


def test_where_prompts_end_in_decode_steps_they_end_on_both_sides_of_that() -> None:
    found = lengths(fed(1024, 128, steps_up_to=5))
    assert {5, 6, 128 + 5, 128 + 6} <= set(found)
    assert {6, 128 + 6}.isdisjoint(lengths(fed(1024, 128)))
    assert max(lengths(fed(12, 12, steps_up_to=5))) <= 12
