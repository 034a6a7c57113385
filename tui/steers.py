"""The actions on a session of `refine`: each does what the verb of its name does, or says why it does not. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agentcompile.agents import views
from agentcompile.agents.journal import Refused
from agentcompile.agents.tree import ROOT, Node
from agentcompile.ir.trial import Measured
from agentcompile.runs.tables import duration

from . import nodes
from .confirming import asked
from .ink import Span
from .refined import Refined
from .scene import WORKS, Ask, Dialog, Page, Scene, Steer, Steering, Step, View
from .screen import Act, Does, ScreenSpec, WhyNot, key_of


def known(scene: Scene) -> Refined:
    """Return the session that a scene shows."""
    assert scene.refined is not None, "these screens show sessions alone"
    return scene.refined


def selected(scene: Scene, view: View, screen: ScreenSpec) -> Node | None:
    """Return the node under the cursor; None where there is none, or a refused answer."""
    return nodes.node_of(known(scene), _key(scene, view, screen))


def _key(scene: Scene, view: View, screen: ScreenSpec) -> str:
    return key_of(scene, view, screen) if screen.lists == "candidates" else view.candidate


def _kernel_missing(scene: Scene, view: View, screen: ScreenSpec) -> str:
    if not known(scene).nodes:
        return "There is no node yet."
    node = selected(scene, view, screen)
    if node is None:
        return "A refused answer made no node." if _key(scene, view, screen) else "Select a node first."
    return "Node 0 is the reference: it has no kernel, and begins no branch." if node.id == ROOT else ""


def _works(scene: Scene, view: View, screen: ScreenSpec) -> str:
    if scene.life in WORKS:
        return ""
    return f"No process works on this session; resume it: {known(scene).goes_on}"


def _no_prune(scene: Scene, view: View, screen: ScreenSpec) -> str:
    if why := _kernel_missing(scene, view, screen):
        return why
    node = selected(scene, view, screen)
    assert node is not None, "there is a kernel"
    if any(one.what == "prune" and one.node == node.id for one in known(scene).waiting):
        return f"Node {node.id} is closed before the next attempt already."
    return f"The branch of node {node.id} is closed already." if node.pruned else ""


def _no_promotion(scene: Scene, view: View, screen: ScreenSpec) -> str:
    if why := _kernel_missing(scene, view, screen):
        return why
    node = selected(scene, view, screen)
    assert node is not None, "there is a kernel"
    if isinstance(node.verdict, Measured):
        return ""
    return f"Node {node.id} is {views.state_of(node)[1]}: only a node that was measured can be a template."


def _no_stop(scene: Scene, view: View, screen: ScreenSpec) -> str:
    if why := _works(scene, view, screen):
        return why
    return "It ends after its attempt already." if any(one.what == "stop" for one in known(scene).waiting) else ""


def _held(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    return Step(view=view, effects=(Steer(what="resume" if scene.held else "pause"),))


def _ending(what: Steering, title: str, lost: str, does: str) -> Does:
    """Return an action that asks before it ends the session."""

    def does_it(scene: Scene, view: View, screen: ScreenSpec) -> Step:
        about: tuple[Span, ...] = (
            (lost, "warn"),
            (f"Kept: {len(known(scene).nodes)} nodes of the tree. Resume with: {known(scene).goes_on}", "dim"),
        )
        return asked(view, Dialog(title=title, about=about, does=does, effect=Steer(what=what)))

    return does_it


def _pruned(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    node = selected(scene, view, screen)
    assert node is not None, "it is refused otherwise"
    count = nodes.below(known(scene).nodes, node.id)
    holds = (
        f"It holds {count + 1} nodes: node {node.id} and those made from it" if count else f"It holds node {node.id}"
    )
    about: tuple[Span, ...] = (
        (f"{holds}. Nothing is made from {'them' if count else 'it'} any more.", ""),
        ("What was found stays in the tree and on the leaderboard. A closed branch cannot be opened again.", "dim"),
    )
    title = f"Close the branch of node {node.id}"
    dialog = Dialog(title=title, about=about, does="closes it", effect=Steer(what="prune", node=node.id))
    return Step(view=replace(view, overlay=dialog))


def _promoted(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    node, refined = selected(scene, view, screen), known(scene)
    assert node is not None, "it is refused otherwise"
    assert node.written is not None, "it is refused otherwise"
    assert refined.subject is not None, "a region was opened before a node was made"
    subject, name = refined.subject, node.written.variant
    ratio = views.faster(node, subject.incumbent_ns)
    about: list[Span] = [(f"{duration(node.ns)}, {ratio} as fast as the incumbent, {subject.incumbent}.", "")]
    if not views.admissible(node):
        about.append((f"▲ Node {node.id} is not surely faster than the incumbent, {subject.incumbent}.", "warn"))
    if views.contended(node):
        about.append(("▲ Other processes disturbed its timing; a compile on a quiet machine times it again.", "warn"))
    about.append(("`agentcompile compile` searches this folder. Another kernel of that name gets a number.", "dim"))
    dialog = Dialog(
        title=f"Promote node {node.id} to a template",
        about=tuple(about),
        does="writes the template",
        effect=Steer(what="promote", node=node.id),
        name=Ask(action="promote", title="name:", text=name, at=len(name)),
        folder=nodes.folder_of(refined),
    )
    return Step(view=replace(view, overlay=dialog))


def _opens(page: Callable[[Refined, Node], Page]) -> Does:

    def does(scene: Scene, view: View, screen: ScreenSpec) -> Step:
        node = selected(scene, view, screen)
        assert node is not None, "it is refused otherwise"
        return Step(view=replace(view, overlay=page(known(scene), node)))

    return does


def _attempt(scene: Scene, view: View, screen: ScreenSpec) -> Node | Refused | None:
    found = selected(scene, view, screen) or nodes.refused_of(known(scene), _key(scene, view, screen))
    return found if found is not None and found.log else None


def _answered(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    attempt = _attempt(scene, view, screen)
    assert attempt is not None, "it is refused otherwise"
    return Step(view=replace(view, overlay=nodes.answers_page(attempt)))


def _no_answer(scene: Scene, view: View, screen: ScreenSpec) -> str:
    return "" if _attempt(scene, view, screen) is not None else "No model said anything on the way to this."


def _act(name: str, key: str, help: str, does: Does, why_not: WhyNot, word: str = "") -> Act:
    return Act(name, (key,), help, does, why_not, "run", word)


PAUSE = _act("pause", "space", "pause before the next attempt, or resume", _held, _works)
PRUNE = _act("prune", "x", "close the branch of the node; asks first", _pruned, _no_prune)
PROMOTE = _act(
    "promote", "P", "make the node's kernel a template that `compile` searches; asks first", _promoted, _no_promotion
)
FINISH = _act(
    "finish",
    "S",
    "end the session after its attempt; asks first",
    _ending("stop", "End the session after its attempt", "No further attempt is made.", "ends it then"),
    _no_stop,
    "stop",
)
STOP = Act(
    "stop",
    ("Q",),
    "end the session in the middle of its attempt, and leave; asks first",
    _ending("stop-now", "End the session now", "Lost: the attempt that is running, with its questions.", "ends it"),
    _works,
    "app",
    "stop now",
)
ANSWERS = Act("answers", ("a",), "what the models said in the attempt", _answered, _no_answer)
SOURCE = Act("source", ("v",), "the node's kernel and manifest", _opens(nodes.kernel_page), _kernel_missing)
DIFF = Act("diff", ("D",), "the node's changes to its parent", _opens(nodes.changes_page), _kernel_missing)
ALL = (PAUSE, PRUNE, PROMOTE, FINISH, SOURCE, DIFF, ANSWERS, STOP)
"""The actions of every screen of a session."""
