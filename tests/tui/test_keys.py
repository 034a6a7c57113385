"""What each key does, without a terminal: the table of actions, refusals, questions, movements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.tui import screen
from agentcompile.tui.grid import Entry
from agentcompile.tui.ink import Ink
from agentcompile.tui.keys import acts, bound, here, offers
from agentcompile.tui.pointing import clicked
from agentcompile.tui.scene import Ask, Call, Dialog, Form, Page, Palette, Pick, Scene, Send, Step, View
from agentcompile.tui.screens import SCREENS
from agentcompile.tui.update import press
from recorded import BY_NAME, run_directory, scene, text

from agentcompile.control.actions import ACTIONS
from agentcompile.control.commands import Approve, ApproveSafe, Edit, Override, Pause, Reject, RejectRest, Rerun, Resume
from agentcompile.events import Decided, PlanAdmitted, TrialStarted
from agentcompile.ir.trial import Decision, Fallback
from agentcompile.runs.progress import fold
from agentcompile.runs.rows import changed
from tests.unit import reviewed

ACTS = acts(SCREENS)
PACKED = "f62781b9a7f8a804d9592ebf1781eff1dd2de02ae3945c3ffa21c67ae3121810"
"""The id of a region whose templates bind their parameters to one another."""


def rows(scene: Scene, view: View, name: str) -> list[Entry]:
    return screen.rows(scene, view, BY_NAME[name])


def key_of(scene: Scene, view: View, name: str) -> str:
    return screen.key_of(scene, view, BY_NAME[name])


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(run_directory(tmp_path_factory.mktemp("run") / "run", "finished"))


def typed(scene: Scene, view: View, keys: str) -> Step:
    """Press keys one after another: characters, or names in angle brackets."""
    step = Step(view=view)
    for key in _keys(keys):
        name = {" ": "space"}.get(key, key)
        step = press(scene, step.view, name, key if len(key) == 1 else "")
    return step


def _keys(keys: str) -> Iterator[str]:
    while keys:
        if keys[0] == "<" and ">" in keys:
            name, _, keys = keys[1:].partition(">")
            yield name
        else:
            yield keys[0]
            keys = keys[1:]


def test_every_action_of_the_compiler_has_a_key_here_and_the_same_one() -> None:
    own = {act.name: act for act in ACTS}
    for action in ACTIONS:
        if action.name != "resume":  # the same key as pause: one or the other
            assert own[action.name].keys[0] == action.key
            assert own[action.name].help.startswith(action.help)


def test_a_key_means_one_thing_in_a_mode() -> None:
    for one in SCREENS:
        keys = [key for act in ACTS if (own := here(act, one, SCREENS)) for key in own.keys]
        assert len(keys) == len(set(keys)), one.name


def test_no_key_needs_control_alt_or_a_function_key() -> None:
    for act in ACTS:
        assert any("ctrl" not in key and "alt" not in key and not key.startswith("f1") for key in act.keys)


@pytest.mark.parametrize("mode", BY_NAME)
def test_every_key_either_does_something_or_says_why_not(known: Scene, mode: str) -> None:
    view = View(mode=mode)
    able = {act.name: why for act, why in offers(known, view, SCREENS)}
    for act in ACTS:
        step = press(known, view, act.keys[0], act.keys[0] if len(act.keys[0]) == 1 else "")
        if able[act.name] and bound(act.keys[0], BY_NAME[mode], SCREENS) is act:
            assert act.keys[0] in step.view.message
            assert not step.effects


def test_modes_are_a_key_each(known: Scene) -> None:
    for number, mode in enumerate(BY_NAME, 1):
        assert typed(known, View(), str(number)).view.mode == mode


def test_movements_stay_in_the_table(known: Scene) -> None:
    found = rows(known, View(), "regions")
    assert key_of(known, typed(known, View(), "jj").view, "regions") == found[2].key
    assert key_of(known, typed(known, View(), "kkk").view, "regions") == found[0].key
    assert key_of(known, typed(known, View(), "G").view, "regions") == found[-1].key
    assert key_of(known, typed(known, View(), "Gjjgj").view, "regions") == found[1].key


def test_the_cursor_stays_on_its_row_when_the_table_is_sorted(known: Scene) -> None:
    view = typed(known, View(), "jjj").view
    assert key_of(known, typed(known, view, "]").view, "regions") == key_of(known, view, "regions")
    found = rows(known, typed(known, View(), "]]").view, "regions")
    names = [entry.cells[1][0] for entry in found if not entry.under]
    assert names == sorted(names)
    assert typed(known, View(), "][").view.sort["regions"] == -1


def test_a_filter_narrows_while_it_is_typed_and_escape_shows_all_again(known: Scene) -> None:
    view = typed(known, View(), "/argmax").view
    assert isinstance(view.overlay, Ask)
    narrowed = rows(known, view, "regions")
    assert narrowed
    assert all("argmax" in entry.text for entry in narrowed)
    view = typed(known, view, "<enter><escape>").view
    assert len(rows(known, view, "regions")) == len(known.state.rows)
    assert "Nothing matches 'zzz'" in text(known, typed(known, View(), "/zzz<enter>").view)


def test_a_line_is_edited_as_in_any_shell(known: Scene) -> None:
    view = typed(known, View(), "/abc<left><backspace>X<home>Y<end>Z<delete><right>").view
    assert isinstance(view.overlay, Ask)
    assert view.overlay.text == "YaXcZ"
    view = typed(known, view, "<ctrl+w>one two<ctrl+w>").view
    assert isinstance(view.overlay, Ask)
    assert view.overlay.text == "one "
    assert typed(known, view, "<ctrl+u>").view.filter["regions"] == ""


def test_help_is_a_page_for_each_screen_and_together_they_name_every_action(known: Scene) -> None:
    view, shown = typed(known, View(height=24), "?").view, ""
    for one in SCREENS:
        page = view.overlay
        assert isinstance(page, Page)
        assert page.title == f"Keys of {one.title}"
        lines = " ".join(" ".join(page.lines).split())
        assert all(own.help in lines for act in ACTS if (own := here(act, one, SCREENS)))
        assert all(act.help not in lines for act in ACTS if act.name in ("edit", "search")) or one.name == "tune"
        shown += lines
        view = typed(known, view, "<tab>").view
    assert view.overlay == typed(known, View(height=24), "?").view.overlay
    assert all(act.help in shown for act in ACTS)
    assert "not now: " in shown
    assert typed(known, view, "jjj").view.overlay.top == 3  # type: ignore[union-attr]
    assert typed(known, view, "G").view.overlay.top > 10  # type: ignore[union-attr]
    assert typed(known, view, "?").view.overlay is None


def test_the_palette_finds_an_action_by_any_word_and_does_it(known: Scene) -> None:
    view = typed(known, View(), ":host").view
    assert isinstance(view.overlay, Palette)
    assert "compare the lock" in text(known, view) or "only in 4 Lock" in text(known, view)
    assert typed(known, View(), ":replay<escape>").view.overlay is None
    assert typed(known, View(), ":review<enter>").view.mode == "review"
    assert typed(known, View(), "<ctrl+p>log<enter>").view.mode == "log"
    assert "no action is called so" in text(known, typed(known, View(), ":zzz").view)


def test_a_detail_opens_and_closes_and_scrolls(known: Scene) -> None:
    view = typed(known, View(), "<enter>").view
    assert view.detail
    assert "Space and checks" not in text(known, view)
    assert text(known, typed(known, view, "jjjjjjj").view) != text(known, view)
    assert not typed(known, view, "<escape>").view.detail
    assert typed(known, view, "<enter>").view.mode == "tune"


def test_the_baseline_of_ratios_can_be_switched(known: Scene) -> None:
    view = View(mode="tune")
    for name in ("the best", "adviser's first", "PyTorch"):
        view = typed(known, view, "b").view
        assert name in text(known, view)


def test_the_best_beside_itself_is_one(known: Scene) -> None:
    found = rows(known, View(mode="tune", baseline="best"), "tune")
    best = next(entry for entry in found if "best" in entry.cells[0][0] or "chosen" in entry.cells[0][0])
    assert best.cells[6][0] == "1.00×"


def live(known: Scene) -> Scene:
    return replace(known, life="live", path="RUN", state=replace(known.state, lock=None))


def undecided(known: Scene) -> tuple[Scene, View]:
    here = live(known)
    view = View(mode="review")
    return here, replace(view, region=rows(here, view, "review")[0].key)


def test_approving_sends_what_was_on_the_screen(known: Scene) -> None:
    here, view = undecided(known)
    (effect,) = typed(here, view, "y").effects
    assert isinstance(effect, Send)
    assert isinstance(effect.command, Approve)
    assert effect.command.region == view.region
    assert len(effect.command.approval) == 64


def test_rejecting_asks_for_a_reason_that_may_be_empty(known: Scene) -> None:
    here, view = undecided(known)
    assert typed(here, view, "n").effects == ()
    (effect,) = typed(here, view, "ntoo risky<enter>").effects
    assert effect == Send(command=Reject(region=view.region, reason="too risky"))
    (effect,) = typed(here, view, "n<enter>").effects
    assert effect == Send(command=Reject(region=view.region))
    assert typed(here, view, "nx<escape>").view.message == "Nothing was changed."


def test_an_override_needs_another_candidate_and_a_reason(known: Scene) -> None:
    here, view = undecided(known)
    keys = [entry.key for entry in rows(here, view, "review")]
    several = [key for key in keys if not typed(here, replace(view, region=key), "o").view.message]
    assert several, "no region of the recorded run has two candidates that passed"
    view = replace(view, region=several[0])
    picked = typed(here, view, "o").view
    assert isinstance(picked.overlay, Pick)
    assert typed(here, picked, "<enter><enter>").effects == ()
    assert "reason is needed" in text(here, typed(here, picked, "<enter><enter>").view)
    (effect,) = typed(here, picked, "<enter>I know better<enter>").effects
    assert isinstance(effect, Send)
    assert effect.command == Override(region=several[0], candidate=picked.overlay.options[0][0], reason="I know better")


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, View]:
    """A live run that records domains, and the view of a candidate whose parameters are bound to one another."""
    here = live(scene(run_directory(tmp_path_factory.mktemp("run") / "run", "reviewed")))
    one = next(trial.candidate for trial in here.state.trials if trial.candidate.template == "linear/packed")
    return here, View(mode="tune", region=one.region, candidate=one.id, width=100)


def form_of(view: View) -> Form:
    assert isinstance(view.overlay, Form)
    return view.overlay


def test_parameters_are_changed_in_a_form_and_only_a_legal_point_is_sent(editable: tuple[Scene, View]) -> None:
    here, view = editable
    opened = typed(here, view, "e").view
    first = form_of(opened)
    assert "TILES * UNROLL <= 16" in first.requires
    assert all(
        f"▌ {param.name}" in text(here, typed(here, opened, "j" * at).view) for at, param in enumerate(first.params)
    )
    assert typed(here, opened, "<enter>").view.message == "Nothing was changed: these are its parameters already."
    wide = typed(here, opened, "l").view
    while dict(form_of(wide).values)["TILES"] != 4:
        wide = typed(here, wide, "l").view
    broken = typed(here, wide, "j").view
    while dict(form_of(broken).values)["UNROLL"] != 8:
        broken = typed(here, broken, "l").view
    assert "✗ not legal: TILES * UNROLL <= 16 with TILES=4, UNROLL=8 → 4 * 8 = 32" in " ".join(
        text(here, broken).split()
    )
    assert typed(here, broken, "<enter>").effects == ()
    legal = typed(here, broken, "h").view
    assert "8⊘" in text(here, legal)
    (effect,) = typed(here, legal, "<enter>").effects
    assert isinstance(effect, Send)
    assert isinstance(effect.command, Edit)
    assert effect.command.params == form_of(legal).values
    assert typed(here, legal, "<escape>").view.message == "Nothing was changed."


def test_a_form_says_what_is_known_of_the_point_and_is_clicked(editable: tuple[Scene, View]) -> None:
    here, view = editable
    opened = typed(here, view, "e").view
    lines = text(here, opened).splitlines()
    y = next(at for at, one in enumerate(lines) if one.lstrip("▌ ").startswith("AHEAD"))
    after = clicked(here, opened, lines[y].index("8192") + 1, y, Ink()).view
    assert dict(form_of(after).values)["AHEAD"] == 8192
    assert form_of(after).cursor == [param.name for param in form_of(after).params].index("AHEAD")
    seen = set()
    for at in range(5):
        shown = text(here, typed(here, after, "l" * at).view)
        seen |= {word for word in ("evaluated before", "waits its turn", "as it is") if word in shown}
    assert {"evaluated before", "as it is"} & seen
    last = next(at for at, one in enumerate(text(here, after).splitlines()) if "escape leaves it" in one)
    x = text(here, after).splitlines()[last].index("escape")
    assert clicked(here, after, x, last, Ink()).view.overlay is None


def test_a_candidate_whose_domains_are_not_recorded_is_not_edited_here(known: Scene) -> None:
    here = live(known)
    bare = tuple(changed(row, offers=()) for row in here.state.rows)
    told = typed(replace(here, state=replace(here.state, rows=bare)), View(mode="tune"), "e").view
    assert "does not record which values" in told.message


def test_a_candidate_is_evaluated_again(known: Scene) -> None:
    here = live(known)
    (effect,) = typed(here, View(mode="tune"), "r").effects
    assert effect == Send(command=Rerun(candidate=key_of(here, View(mode="tune"), "tune")))


def test_space_pauses_lets_go_on_and_starts_again(known: Scene) -> None:
    here = live(known)
    assert typed(here, View(), " ").effects == (Send(command=Pause()),)
    held = replace(here, life="paused", state=replace(here.state, paused=True))
    assert typed(held, View(), " ").effects == (Send(command=Resume()),)
    gone = replace(here, life="lost", state=replace(here.state, status="running"))
    assert typed(gone, View(), " ").effects == (Call(what="resume"),)


def test_what_is_shown_again_cannot_be_changed(known: Scene) -> None:
    past = replace(live(known), life="ended", speed=10.0)
    step = typed(past, View(mode="review"), "y")
    assert not step.effects
    assert "past run" in step.view.message


def test_a_key_that_belongs_to_another_mode_names_it(known: Scene) -> None:
    assert "4 Lock" in typed(known, View(), "R").view.message
    assert "2 Tune" in typed(known, View(mode="log"), "e").view.message


def test_leaving_and_stopping_are_different_keys(known: Scene) -> None:
    here = live(known)
    assert typed(here, View(), "q").effects == (Call(what="leave"),)
    asked = typed(here, View(), "Q")
    assert asked.effects == ()
    assert isinstance(asked.view.overlay, Dialog)
    assert typed(here, asked.view, "<enter>").effects == (Call(what="stop"),)
    assert typed(here, asked.view, "<escape>").view.message == "Nothing was changed."
    assert "No compiler works" in typed(replace(here, life="ended"), View(), "Q").view.message


def test_what_is_lost_by_a_stop_is_said_before_it(known: Scene) -> None:
    here = replace(live(known), state=fold([TrialStarted(region=PACKED, candidate="c", label="k/a(b=1)")], known.state))
    shown = " ".join(text(here, typed(here, View(), "Q").view).split())
    assert "Lost: a(b=1) of rmsnorm-gateup-silu-mul@f62781, not measured to its end." in shown
    assert "Kept: 202 trials and 0 decisions." in shown
    assert "agentcompile compile --resume --run-dir RUN" in shown
    assert "nothing is lost" in text(live(known), typed(live(known), View(), "Q").view)


def test_all_safe_regions_are_named_before_they_are_approved_and_all_others_before_they_are_rejected() -> None:
    waits = Scene(state=fold([*reviewed.EVENTS]), life="live", path="RUN")
    for key, title, command in (("a", "Approve", ApproveSafe()), ("d", "Reject", RejectRest())):
        asked = typed(waits, View(mode="review"), key)
        assert asked.effects == (), asked.view.message
        assert title in text(waits, asked.view)
        assert "×" in text(waits, asked.view)
        assert typed(waits, asked.view, "<enter>").effects == (Send(command=command),)


def test_the_next_undecided_region_is_a_key_away(known: Scene) -> None:
    here, view = undecided(known)
    after = typed(here, view, "J").view
    assert after.region != view.region
    assert typed(here, after, "K").view.region == view.region


def test_the_log_follows_what_comes_until_the_cursor_leaves_the_end(known: Scene) -> None:
    view = typed(known, View(mode="log"), "k").view
    assert view.cursor["log"] == str(known.log[-2].number)
    assert not typed(known, view, "j").view.cursor["log"]
    assert not typed(known, View(mode="log"), "gG").view.cursor["log"]


def test_a_lock_without_a_run_can_only_be_looked_at(tmp_path: Path) -> None:
    alone = Scene(run="x.lock.toml", lock_path="x.lock.toml", lock_text=("lock-version = 1",))
    assert typed(alone, View(mode="lock"), "r").effects == (Call(what="check"),)
    assert typed(alone, View(mode="lock"), "R").effects == (Call(what="replay"),)
    assert "without its run" in typed(alone, View(mode="lock"), "W").view.message
    assert typed(alone, View(mode="lock"), "v").effects == (Call(what="lock-text"),)


def test_what_was_measured_in_the_step_is_told_apart_from_what_a_person_made_of_it() -> None:
    before = fold([*reviewed.EVENTS])
    rejected = Decided(rulings=(Decision(region=reviewed.REGIONS["add"], word="reject", reason="no"),))
    waits = fold([rejected], before)
    kept = Fallback(reason="no", decided_by="human")
    parts = tuple(replace(p, choice=kept) if p.region == reviewed.REGIONS["add"] else p for p in reviewed.PARTS)
    ruled = replace(reviewed.PLAN, parts=parts, step_ns=15_000, log_ratio=0.28)
    measured = fold([PlanAdmitted(plan=ruled, ruled=True)], waits)
    view = View(mode="review", width=100)
    assert "measured 10 µs  1.99×" in text(Scene(state=before), view)
    assert "before decisions 10 µs  1.99×" in text(Scene(state=waits), view)
    assert "measured 15 µs  1.32×" in text(Scene(state=measured), view)
    assert "15 µs a step" in text(Scene(state=measured), replace(view, mode="lock"))
