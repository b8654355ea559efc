"""What this folder is for has happened in it: a path that no test takes is a path that no test guards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import marks


@pytest.mark.slow
def test_every_rare_path_was_taken(request: pytest.FixtureRequest) -> None:
    here = Path(__file__).parent
    ran = {Path(item.path) for item in request.session.items}
    option = request.config.option
    if option.keyword or option.markexpr not in ("", "not fuzz") or not ran >= set(here.glob("test_*.py")):
        pytest.skip("only a part of the folder was run")
    missing = [name for name in marks.RARE if not marks.MET[name]]
    assert not missing, f"never taken: {missing}"
