"""How programs are drawn: always the same in `make test`, and as many as `make fuzz` asks for."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

drawn = settings(
    max_examples=int(os.environ.get("TFDIST_FUZZ", "1")),
    deadline=None,
    derandomize="TFDIST_FUZZ" not in os.environ,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
