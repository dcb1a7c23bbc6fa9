"""Finds the Java for Spark and Kafka, and reports why one is unsuitable.

The setup script runs this file before anything is installed, so it imports the standard library only;
`require_java` imports the rest of lockstep.
"""

import locale
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Spark 4.2 and Kafka 4.1 support these two long-term releases; others start, and fail later.
SUPPORTED_RELEASES = (17, 21)

# Spark 4.2 does not start without this module, which cut-down runtimes (those in Python wheels) leave out.
VECTOR_MODULE = "jdk.incubator.vector"

# A virtual machine answers in a tenth of a second, and in two minutes on a machine full of other work. A hung wrapper
# script must not hang the set-up.
ANSWER_SECONDS = (60, 120)


@dataclass(frozen=True)
class JavaProblem:
    """Reason why this machine's Java is unsuitable.

    Attributes:
        what: The problem, as part of a sentence.
        next_step: What to install or set.
    """

    what: str
    next_step: str


AGAIN = "it may only be slow: run the same command again, on a machine with less other work"
INSTALL = "install a full Java 17 or 21 (Debian: apt install openjdk-17-jre-headless) or point JAVA_HOME at one"


def find_java(environment: Mapping[str, str]) -> Path | None:
    """The java command that Spark would use: JAVA_HOME first, then PATH."""
    java = _find_command(environment)
    return Path(java) if java and os.access(java, os.X_OK) else None


def _find_command(environment: Mapping[str, str]) -> str | None:
    home = environment.get("JAVA_HOME")
    if home:
        return str(Path(home) / "bin" / "java")
    return shutil.which("java", path=environment.get("PATH"))


def read_java_release(banner: str) -> int | None:
    """The feature release in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_402"."""
    match = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(match.group(1)) if match else None


def find_java_problem(environment: Mapping[str, str]) -> JavaProblem | None:
    """The problem with the Java of `environment`; None if Spark and Kafka run on it."""
    java = find_java(environment)
    if java is None:
        where = f"JAVA_HOME ({environment['JAVA_HOME']})" if environment.get("JAVA_HOME") else "PATH"
        return JavaProblem(f"no Java found in {where}", INSTALL)
    try:
        release = read_java_release(_banner(java, "--add-modules", VECTOR_MODULE))
        if release in SUPPORTED_RELEASES:
            return None
        release = read_java_release(_banner(java))
    except TimeoutError as late:
        return JavaProblem(str(late), AGAIN)
    if release in SUPPORTED_RELEASES:
        return JavaProblem(f"{java} is a cut-down Java without the module {VECTOR_MODULE}", INSTALL)
    return JavaProblem(f"{java} is Java {release or 'of an unknown release'}, not 17 or 21", INSTALL)


def require_java() -> Path:
    """The java command of this machine; from now on new processes name files as this process does.

    Raises:
        EnvironmentProblem: There is none, or Spark and Kafka do not run on it.
    """
    from lockstep.errors import EnvironmentProblem

    problem = find_java_problem(os.environ)
    java = find_java(os.environ)
    if problem is not None or java is None:
        problem = problem or JavaProblem("Java vanished while it was checked", INSTALL)
        raise EnvironmentProblem(problem.what, next_step=problem.next_step)
    _name_files_as_python()
    return java


def _name_files_as_python() -> None:
    """Set a locale of UTF-8 for Java if Python names files in UTF-8 against the locale, and Java would not.

    Under `LC_ALL=C`, or one that is not installed, Java opens no path with other letters than those of ASCII, and
    neither Spark nor Kafka starts in such a folder.
    """
    if sys.getfilesystemencoding() == "utf-8" and locale.getencoding().upper() != "UTF-8":
        os.environ["LC_ALL"] = "C.UTF-8"


def _banner(java: Path, *options: str) -> str:
    """What `java -version` writes; it is started again after each of the time limits but the last.

    Raises:
        TimeoutError: It wrote nothing within any of them.
    """
    command = [str(java), *options, "-version"]
    for seconds in ANSWER_SECONDS:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds).stderr
        except subprocess.TimeoutExpired:
            continue
        except OSError as error:
            return str(error)
    tried = ", then ".join(f"{seconds:g} s" for seconds in ANSWER_SECONDS)
    raise TimeoutError(f"{java} -version did not answer within {tried}")
