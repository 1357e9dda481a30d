"""The wheel is complete: installed in an empty environment it runs the demo."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_wheel_runs_the_demo_in_an_empty_environment(tmp_path):
    def run(*command: str, cwd: Path) -> str:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=350)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT), cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    pages = {path.name for path in (ROOT / "orca/serving/static").iterdir()}
    assert pages == {Path(name).name for name in names if name.startswith("orca/serving/static/")}
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    constraints = ROOT / "constraints.txt"
    pins = [line for line in constraints.read_text().splitlines() if line.startswith("torch==")]
    run(python, "-m", "pip", "install", "-q", "-c", str(constraints), *pins, cwd=tmp_path)
    run(python, "-m", "pip", "install", "-q", "-c", str(constraints), f"{wheel}[demo]", cwd=tmp_path)
    (tmp_path / "demo.py").write_text((ROOT / "examples" / "demo.py").read_text())
    output = run(python, "demo.py", cwd=tmp_path)
    assert "test accuracy: 9" in output
    assert (tmp_path / "out" / "training-curve.png").exists()
    location = run(python, "-c", "import orca, orca.backends.torch; print(orca.__file__)", cwd=tmp_path)
    assert str(home) in location
    assert "doctor" in run(str(home / "bin" / "orca"), "--help", cwd=tmp_path)
