"""What every planted kernel is wrong about, and the checks that must see it."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.graph import DType

PAIR = ("element", "error-ratio")
ROW = ("element", "row-rms", "error-ratio")


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A region that a file of kernels is compiled for."""

    kind: str
    dtype: DType = "bf16"
    extents: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        """For test ids: ``rope-attention-decode bf16 window=24``."""
        tail = [f"{key}={value}" for key, value in self.extents if key in ("window", "bias")]
        return " ".join([self.kind, self.dtype, *tail])


LINEAR = Plot(kind="linear", extents=(("hidden", 83), ("rows", (101,)), ("bias", True)))
LINEAR32 = Plot(kind="linear", dtype="fp32", extents=LINEAR.extents)
RMSNORM = Plot(kind="rmsnorm", extents=(("hidden", 83), ("groups", 5), ("offset", 1.0)))
RMSNORM32 = Plot(kind="rmsnorm", dtype="fp32", extents=RMSNORM.extents)
SILU = Plot(kind="silu-mul", extents=(("rows", 101),))
SILU32 = Plot(kind="silu-mul", dtype="fp32", extents=SILU.extents)
EMBEDDING = Plot(kind="embedding", extents=(("vocab", 300), ("hidden", 83)))
ATTENTION = Plot(kind="rope-attention-decode", extents=(("context", 96),))
ATTENTION32 = Plot(kind="rope-attention-decode", dtype="fp32", extents=(("context", 96),))
WINDOW = Plot(kind="rope-attention-decode", extents=(("context", 96), ("window", 24)))
ARGMAX = Plot(kind="linear-argmax", extents=(("hidden", 64), ("rows", (101,))))
LONG = Plot(
    kind="rope-attention-decode",
    extents=(("context", 2048), ("heads", 2), ("kv_heads", 1), ("head_dim", 64)),
)
WIDE = Plot(
    kind="rope-attention-decode",
    extents=(("context", 2048), ("heads", 48), ("kv_heads", 8), ("head_dim", 128)),
)
"""As many heads as a large model has: a walk over all its lengths would cost too much."""
TALL = Plot(kind="embedding", extents=(("vocab", 5000), ("hidden", 83)))
CHOOSING = Plot(kind="linear-argmax", extents=(("hidden", 96), ("rows", (1001,))))
CROWDED = Plot(kind="linear-argmax", extents=(("hidden", 96), ("rows", (4096,))))
RESIDUAL = Plot(kind="linear-residual", extents=(("hidden", 83), ("rows", (101,))))
NORMED = Plot(kind="rmsnorm-linear", extents=(("hidden", 83), ("rows", (40, 24, 24))))
PLOTS = (
    LINEAR,
    LINEAR32,
    RMSNORM,
    RMSNORM32,
    SILU,
    SILU32,
    EMBEDDING,
    ATTENTION,
    ATTENTION32,
    WINDOW,
    ARGMAX,
    NORMED,
    RESIDUAL,
)


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A kernel, its class in the protocol, and the checks that surely fail (others may)."""

    plot: Plot
    entry: str
    fault: str
    seen: tuple[str, ...]

    @property
    def name(self) -> str:
        """For test ids."""
        return f"{self.plot.name} {self.entry}"


def _all(plot: Plot, fault: str, **seen: tuple[str, ...]) -> list[Wrong]:
    return [Wrong(plot=plot, entry=f"wrong_{name}", fault=fault, seen=checks) for name, checks in seen.items()]


BOUNDS, TAILS, SYNC = "index and bounds", "masks and tails", "missing sync, races"
UNWRITTEN, SCALE, NARROW = "uninitialised or partial writes", "scale, eps, constants", "precision downgrade"
ALGORITHM, INFINITE, PARAMETER = "algorithm", "non-finite handling", "parameter-dependent"
STALE, INPUTS = "stale state or cache", "side effects on inputs"
COVERAGE = "right where one looks first"

UNSEEN: tuple[Wrong, ...] = (
    *_all(
        LONG,
        COVERAGE,
        when_short=ROW,
        at_one_residue=ROW,
        half_at_one_residue=("element", "row-rms"),
        between_parts=ROW,
        slot_left_stale=("element", "non-finite"),
        key_of_another_slot=("element", "row-rms"),
        writes_an_older_slot=("state",),
        writes_a_later_slot=("state",),
        at_one_length=("element",),
        at_a_residue_of_256=("element",),
        stores_beside_once=("state",),
        clamps_old_values=ROW[:2],
    ),
    *_all(WIDE, COVERAGE, past_a_thousand=ROW[:2], behind_a_third=ROW[:2]),
    *_all(LONG, INFINITE, one_exponent=("non-finite",)),
    *_all(LONG, ALGORITHM, forgets_one=("non-finite",), lasts_alone=("element", "row-rms")),
    *_all(LONG, NARROW, few_terms=("element",), fifth_term=("element",)),
    *_all(
        TALL,
        COVERAGE,
        above_3000=("element", "row-rms"),
        at_one_residue=("element", "row-rms"),
        in_one_block=("rows",),
        at_one_row=("rows",),
        clamps_large=("element", "row-rms"),
    ),
    *_all(
        CHOOSING,
        COVERAGE,
        none_below_zero=("argmax", "exact"),
        last_of_equals=("ties", "exact"),
        last_rank_of_equals=("ties", "exact"),
        last_of_equals_at_eight=("ties", "exact"),
        none_when_infinite=("argmax",),
        infinite_wins=("argmax", "exact"),
        blind_residue=("argmax", "exact", "choices"),
        blind_block=("choices",),
        blind_row=("choices",),
    ),
    *_all(CROWDED, COVERAGE, blind_row_of_many=("choices",)),
    *_all(
        RESIDUAL,
        COVERAGE,
        clamps_residual=("element", "row-rms"),
        clamps_sum=("element", "row-rms"),
        far_from_zero=("non-finite",),
        clamps_weights=("element", "row-rms"),
    ),
    *_all(
        RMSNORM,
        COVERAGE,
        mean_in_half_range=("element", "row-rms"),
        squares_twice=("element", "row-rms"),
        clamps_gain=("element", "row-rms"),
        nothing_when_tiny=("element", "row-rms"),
    ),
    *_all(SILU, COVERAGE, clamps_product=("element", "row-rms"), clamps_operand=("element", "row-rms")),
    *_all(
        LINEAR,
        COVERAGE,
        at_another_site=("element", "row-rms"),
        clamps_weights=("element", "row-rms"),
        far_from_mean_zero=("element",),
        when_half_is_zero=("element",),
    ),
    *_all(NORMED, COVERAGE, clamps_gain=("element",)),
    *_all(LINEAR, NARROW, halves_away=("halves",), halves_by_another_bit=("halves",)),
    *_all(RESIDUAL, NARROW, halves_down=("halves",)),
)
"""Right on the few inputs that a search tries: only acceptance sees them."""

WRONG: tuple[Wrong, ...] = (
    *_all(
        LINEAR,
        BOUNDS,
        next_row=(*ROW, "exact"),
        last_column=(*ROW, "non-finite"),
        one_column_more=("non-finite", "exact"),
        writes_past=("redzone",),
        writes_before=("redzone",),
        workspace_overrun=("redzone",),
    ),
    *_all(
        EMBEDDING, BOUNDS, next_row=("element", "exact"), narrow_index=("element", "exact"), copies_more=("redzone",)
    ),
    *_all(ARGMAX, BOUNDS, local_index=("argmax",), one_too_far=("argmax", "exact"), narrow_store=("poison", "repeats")),
    *_all(NORMED, BOUNDS, matrices_swapped=PAIR),
    *_all(SILU, BOUNDS, neighbour=ROW),
    *_all(RMSNORM, BOUNDS, weight_shifted=ROW),
    *_all(
        LINEAR,
        TAILS,
        tail_dropped=(*ROW, "non-finite"),
        tail_twice=(*ROW, "exact"),
        rows_tail=("poison", "element", "repeats", "exact"),
    ),
    *_all(
        ATTENTION,
        TAILS,
        one_slot_more=("poison", "non-finite"),
        newest_unseen=(*PAIR, "exact"),
        first_unseen=(*PAIR, "exact"),
        whole_blocks=("element", "exact"),
        masked_by_weight=("poison",),
    ),
    *_all(WINDOW, TAILS, window_ignored=PAIR),
    *_all(ARGMAX, TAILS, last_row_unseen=("argmax",)),
    *_all(LINEAR, SYNC, no_barrier=("order",), shared_sum=("order",)),
    *_all(RMSNORM, SYNC, others_scale=("order",)),
    *_all(NORMED, SYNC, no_barrier=("order",), partial_norm=PAIR),
    *_all(ATTENTION, SYNC, reads_before_store=("order",)),
    *_all(ARGMAX, SYNC, no_barrier=("order",), first_rank_alone=("argmax",)),
    *_all(
        LINEAR,
        UNWRITTEN,
        skips_zeros=("poison", "element", "exact"),
        adds_to_output=("poison", "repeats"),
        workspace_not_cleared=("poison", "repeats", "element"),
    ),
    *_all(ATTENTION, UNWRITTEN, trusts_scratch=("poison", "repeats")),
    *_all(RMSNORM, UNWRITTEN, last_group_left=("poison", "repeats", "element")),
    *_all(SILU, UNWRITTEN, halves_only=("poison", "repeats", "element")),
    *_all(EMBEDDING, UNWRITTEN, copies_less=("poison", "element", "exact")),
    *_all(NORMED, UNWRITTEN, last_matrix_left=("poison", "element")),
    *_all(
        LINEAR,
        SCALE,
        scale=(*ROW, "exact"),
        bias_ignored=(*ROW, "exact"),
        bias_first=(*ROW, "exact"),
    ),
    *_all(
        RMSNORM,
        SCALE,
        no_eps=("element", "row-rms", "non-finite"),
        eps_outside=("element", "row-rms"),
        eps_ten_times=("element", "row-rms"),
        mean_of_one_less=ROW,
        no_offset=ROW,
    ),
    *_all(ATTENTION, SCALE, no_scale=PAIR),
    *_all(NORMED, SCALE, norm_skipped=PAIR),
    *_all(ARGMAX, SCALE, starts_at_zero=("argmax",), order_of_tiny=("argmax",)),
    *_all(
        LINEAR,
        NARROW,
        narrow_sum=ROW,
        narrow_blocks=ROW,
        narrow_products=ROW[:2],
        half_sum=("element",),
        truncates=ROW,
        drops_small=("element", "row-rms"),
    ),
    *_all(LINEAR32, NARROW, narrow_products=ROW, half_sum=ROW, truncates=ROW, drops_small=ROW),
    *_all(RMSNORM, NARROW, narrow_scale=ROW, narrow_squares=ROW, half_squares=ROW),
    # In bf16 twelve bits of a reciprocal root are below what can be seen, or does harm.
    *_all(RMSNORM32, NARROW, estimated_root=ROW, narrow_scale=ROW),
    *_all(SILU, NARROW, rough_exp=ROW, gate_rounded=("element", "row-rms")),
    *_all(SILU32, NARROW, floor_at_zero=("element",), gate_rounded=ROW, sixth_term=("element",)),
    *_all(EMBEDDING, NARROW, rounds_again=("element", "row-rms")),
    *_all(ATTENTION, NARROW, narrow_probabilities=("element",), narrow_sum=PAIR),
    *_all(ATTENTION32, NARROW, sixth_term=("element",)),
    *_all(NORMED, NARROW, x_rounded_small=PAIR),
    *_all(
        ATTENTION,
        ALGORITHM,
        no_max=("non-finite",),
        no_rescale=PAIR,
        parts_not_weighed=PAIR,
        parts_averaged=PAIR,
        group_map=(*PAIR, "exact"),
        interleaved=PAIR,
        turned_back=PAIR,
        query_not_rotated=PAIR,
    ),
    *_all(SILU, ALGORITHM, sigmoid=ROW, swapped=ROW, gelu=ROW, quick_gelu=ROW, hard=ROW),
    *_all(RMSNORM, ALGORITHM, first_group_for_all=ROW),
    *_all(ARGMAX, ALGORITHM, largest_magnitude=("argmax",)),
    *_all(LINEAR, INFINITE, clamps=("non-finite",), skips_nan=("non-finite",)),
    *_all(RMSNORM, INFINITE, zero_for_nan=("non-finite",)),
    *_all(SILU, INFINITE, overflows=("non-finite",), clamps_gate=("non-finite", "element", "row-rms")),
    *_all(ATTENTION, INFINITE, skips_nan=("non-finite",), top_at_zero=("non-finite",)),
    *_all(ARGMAX, INFINITE, nan_unseen=("argmax",), last_nan=("argmax",)),
    *_all(LINEAR, PARAMETER, when_unrolled_by_8=(*ROW, "non-finite")),
    *_all(
        LINEAR,
        STALE,
        keeps_first_x=("element", "row-rms", "exact"),
        answers_from_memory=("element", "row-rms", "exact", "workspace"),
        leaves_a_count=("workspace",),
        every_eleventh=("repeats",),
        rarely=("repeats",),
    ),
    *_all(
        ATTENTION,
        STALE,
        slot=("state", "element"),
        value_not_stored=("poison", "element", "repeats"),
        key_not_rotated_in_cache=("element", "non-finite"),
        one_head_stored=("poison", "element", "repeats"),
        clears_the_rest=("state",),
        rewrites_the_past=("state",),
    ),
    *_all(LINEAR, INPUTS, scales_x=("inputs", "poison"), marks_weights=("inputs", "poison")),
    *_all(RMSNORM, INPUTS, in_place=("inputs", "element")),
    *UNSEEN,
)
"""Every wrong kernel that returns. Those that do not are in `test_deaths`."""
