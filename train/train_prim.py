"""Pretraining with Primus, AMD's framework, in its own checkout and by its own launcher.

Started by train/launch.py. `python -m train.train_prim --check [KEY=VALUE ...]` starts nothing and prints every
difference between the YAML that AMD ships for a model and ours.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run one job, or with --check the comparison of YAMLs, which needs neither torch nor a GPU."""
    if "--check" in sys.argv[1:]:
        from train.prim import yaml_check as prim_check

        return prim_check.main([argument for argument in sys.argv[1:] if argument != "--check"])
    from train.prim import training as prim_job

    return prim_job.main()


if __name__ == "__main__":
    sys.exit(main())
