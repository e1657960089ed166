"""The mutation score: the faults that are drawn, and the change of the file."""

from tools.mutation import mutants_of, sample

SOURCE = '''
def grant(free, wanted, name):
    """Text is left alone: 1 < 2."""
    if free >= wanted and not name:
        return min(free, wanted) + 1
    return f"{free + wanted}"
'''


def test_each_fault_changes_one_expression_and_the_file_still_compiles():
    faults = {one.text for one in mutants_of("x.py", SOURCE)}
    assert faults == {
        "(free > wanted)",
        "(free >= wanted or not name)",
        "(name)",
        "(min(free, wanted) - 1)",
        "(max(free, wanted))",
        "(2)",
    }
    for fault in mutants_of("x.py", SOURCE):
        changed = fault.applied(SOURCE)
        compile(changed, "x.py", "exec")
        assert changed != SOURCE
        assert fault.text in changed


def test_the_same_seed_draws_the_same_faults():
    assert sample(5, 1) == sample(5, 1) != sample(5, 2)
