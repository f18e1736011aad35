"""Maps the top-level `conf/` into a built package as `finegrained_rlhf/conf`; everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigurations(build_py):
    """Copies the configurations beside the modules; an editable installation reads them where they are."""

    def run(self) -> None:
        """Build the modules, then add the configurations."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "finegrained_rlhf", "conf")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(__file__).parent / "conf", target)


setup(cmdclass={"build_py": BuildWithConfigurations})
