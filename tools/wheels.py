"""Builds the wheels of a release in dist: that of lockstep, and that of lockstep-native for each platform.

.venv/bin/python tools/wheels.py

maturin and zig are pinned by their hashes. zig links against the libc of the wheel's name, on any machine. The wheel of
this machine is installed with lockstep in a new environment without Rust, and folds there. The others are not run.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools import release_check, setup  # noqa: E402  # of this folder

DIST = ROOT / "dist"
BUILDERS = ROOT / "tools" / "wheel-requirements.txt"
LIBC = "manylinux2014"
"""The oldest libc that a wheel runs on: 2.17, of 2012."""
PLATFORMS = ("x86_64", "aarch64")
PROOF = """
import lockstep_native
from lockstep import native
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.testing import run

from assets.plant import Snapshot, Update, plant

assert native.extension is lockstep_native, native.describe_absence()
assert compile_stream(plant).plain_updates is not None
updates = [Update(seq, "pressure", seq / 8) for seq in range(2, 102)]
rows = run(plant, Snapshot(1, {"pressure": 4.0}), *updates, key="B1").or_raise().rows
assert len(rows) == 101, len(rows)
print(len(rows), "rows with", lockstep_native.__file__)
"""


def main() -> int:
    """Build and prove the wheels; return the exit code."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-wheels-"))
    try:
        build_all(folder)
    except (release_check.CheckFailedError, setup.ProblemError) as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def build_all(folder: Path) -> None:
    """1. Build lockstep. 2. Build the extension for each platform. 3. Prove both on this machine."""
    if not setup.has_rust():
        raise setup.ProblemError(f"no Rust {setup.RUST_MIN[0]}.{setup.RUST_MIN[1]} or newer is on PATH; install it")
    shutil.rmtree(DIST, ignore_errors=True)
    wheel = release_check.build(ROOT, DIST, "wheel")  # 1
    builders = prepare_builders()
    for machine in PLATFORMS:  # 2
        built = build_extension(builders, machine)
        if built is None:
            print(f"wheels: {machine}: left out, as its Rust is missing: rustup target add {name_target(machine)}")
        elif machine == platform.machine():
            print(f"wheels: {machine}: {built.name}: {prove(wheel, built, folder)}")  # 3
        else:
            print(f"wheels: {machine}: {built.name}: built, not run")


def name_target(machine: str) -> str:
    """The name that Rust has for a platform."""
    return f"{machine}-unknown-linux-gnu"


def prepare_builders() -> Path:
    """Make the environment of maturin and zig, unless it is there, and return its programs."""
    digest = hashlib.sha256(BUILDERS.read_bytes()).hexdigest()
    environment = setup.TOOLS / f"wheels-{digest[:12]}"
    if environment.exists():
        return environment / "bin"
    uv = setup.find_uv()
    draft = setup.TOOLS / f"draft-wheels-{os.getpid()}"
    setup.run("making room for the builders", [uv, "venv", "--quiet", "--python", sys.executable, str(draft)])
    options = ["--require-hashes", "--only-binary=:all:", "--python", str(draft)]
    setup.run("fetching maturin and zig (100 MB)", [uv, "pip", "install", *options, "-r", str(BUILDERS)])
    draft.rename(environment)
    return environment / "bin"


def build_extension(builders: Path, machine: str) -> Path | None:
    """Build the extension for a platform; None if this Rust has no library for it."""
    target = name_target(machine)
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True)  # noqa: S607
    if not (Path(sysroot.stdout.strip()) / "lib" / "rustlib" / target).exists():
        return None
    options = ["--release", "--zig", "--compatibility", LIBC, "--target", target, "--out", str(DIST)]
    manifest = str(setup.NATIVE / "Cargo.toml")
    # maturin looks for zig beside the first Python on PATH.
    variables = {**os.environ, "PATH": f"{builders}{os.pathsep}{os.environ['PATH']}"}
    with release_check.show_step(f"building lockstep-native for {machine}", "wheels"):
        release_check.run([str(builders / "maturin"), "build", *options, "--manifest-path", manifest], ROOT, variables)
    (built,) = DIST.glob(f"lockstep_native-*{LIBC}_{machine}*.whl")
    return built


def prove(wheel: Path, built: Path, folder: Path) -> str:
    """Install both wheels in a new environment, as in the README, and fold there without Rust.

    Raises:
        CheckFailedError: They cannot be installed, or the extension is not used.
    """
    with release_check.show_step("installing both wheels in a new environment, without Rust", "wheels"):
        environment = release_check.install(wheel, folder / "environment", "native", built)
    home = folder / "home"
    home.mkdir()
    user = release_check.User(environment, home, {"PATH": f"{environment / 'bin'}{os.pathsep}{os.defpath}"})
    if shutil.which("cargo", path=user.settings["PATH"]):
        raise release_check.CheckFailedError(f"cargo is on {user.settings['PATH']}, so nothing is proven")
    project = release_check.make_project(user, folder)
    said = user.run("python", "-c", PROOF, cwd=project).strip()
    return f"proven without Rust, {said}"


if __name__ == "__main__":
    sys.exit(main())
