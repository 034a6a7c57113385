"""An operator stands in every table that needs it: what the page on architecture lists is all there is to touch."""

from __future__ import annotations

from agentcompile.ops.reference import OPERATORS
from agentcompile.refine import meanings
from agentcompile.regions.cost import FLOPS_PER_ELEMENT
from agentcompile.regions.kinds import SIGNATURES
from agentcompile.runtime.rowwise import ROWWISE
from agentcompile.validate.rules import RULES


def test_every_operator_has_a_signature_an_error_rule_and_a_meaning_in_words() -> None:
    assert OPERATORS.keys() == SIGNATURES.keys() == RULES.keys() == meanings.OPERATORS.keys()


def test_tables_of_some_operators_name_no_others() -> None:
    assert OPERATORS.keys() >= ROWWISE
    assert FLOPS_PER_ELEMENT.keys() <= OPERATORS.keys()
