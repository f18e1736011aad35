"""Guards of the project while its modules move: runs of two checkouts compared, mutations of formulas, counts."""
