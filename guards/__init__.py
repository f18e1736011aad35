"""Guards of the project while its modules move: runs of two checkouts compared, mutations of formulas, counts."""

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is loaded, which is later
    os.environ[_name] = "1"
