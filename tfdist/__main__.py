"""`python -m tfdist` is the `tfdist` command."""

from __future__ import annotations

import sys

from tfdist.cli import main

if __name__ == "__main__":
    sys.exit(main())
