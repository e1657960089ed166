"""Usage of a period for administrators: GPU hours and money by user, team, kind, template, node, day or week."""
