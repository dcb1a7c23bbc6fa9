"""Counts habits of language and dense lines in each file: no file may have more than it had.

    python tools/style_ratchet.py            compare all files with the baseline
    python tools/style_ratchet.py --write    lower the baseline to the counts of today; moved files keep their counts

A new file may have one of each habit in 1,000 words, and no dense line. `--write` is refused if the sum of a habit over
all files has risen. Subjects of commits since the baseline have at most 72 characters.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASELINE = Path(__file__).with_name("style_baseline.json")
SINCE = "2026-11-29T00:00:00Z"
"""Subjects of older commits are not judged."""
SUBJECT_LENGTH_MAX = 72
WORDS_A_HABIT = 1_000
"""A new file may have one occurrence of a habit in so many words."""
HABITS = {
    "a what-clause for a noun": r"what (?:is|was|it|has|had|the|they|an?|comes?|came|goes|stands|no|each|one)",
    "where for if or when": r"where (?:it|there|an?|no|none|one|some|all|nothing|this|that|they|its|the)",
    "one for a noun": r"(?:another|earlier|later|older|newer|new|old|previous|first|last|second|this|that|no) ones?",
    "begin for start": r"begins?|began|begun",
    "look for read or poll": r"look(?:s|ed)?",
    "say of things": r"says?|said",
    "give for return": r"gives?",
    "come": r"comes?|came",
    "go on for continue": r"(?:go|goes|going|went|gone) on",
    "is no for is not a": r"(?:is|are|was) no [a-z]+",
    "of its own": r"of (?:its|their) own",
    "lie or stand for be stored": r"lies?|stands?",
    "whatever": r"whatever|whichever|whoever",
    "take up, back, over": r"(?:take|takes|took|taken) (?:up|back|out|in|over)",
}
PATTERNS = {name: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for name, words in HABITS.items()}
PARALLEL = "parallel assignment"
NESTED = "nested comprehension"
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Counts = Mapping[str, int]
Baseline = Mapping[str, Counts]


def read_prose(path: Path) -> str:
    """Return the text of a document without its code, or the docstrings of a module."""
    text = path.read_text()
    if path.suffix == ".md":
        without_blocks = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        without_names = re.sub(r"`[^`]*`", "X", without_blocks)
        return re.sub(r"\]\([^)]*\)", "]", without_names)
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED))
    return "\n".join(filter(None, map(ast.get_docstring, nodes)))


def is_parallel(node: ast.Assign) -> bool:
    """Return whether a statement assigns several values: as tuples, or as one of two tuples."""
    values = [node.value]
    if isinstance(node.value, ast.IfExp):
        values = [node.value.body, node.value.orelse]
    return isinstance(node.targets[0], ast.Tuple) and all(isinstance(each, ast.Tuple) for each in values)


def find_dense_lines(path: Path) -> Iterator[str]:
    """Name each dense construct of a module."""
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and is_parallel(node):
            yield PARALLEL
        if isinstance(node, COMPREHENSIONS):
            inner = any(isinstance(each, COMPREHENSIONS) for each in ast.walk(node) if each is not node)
            if inner or len(node.generators) > 1:
                yield NESTED


def count_file(path: Path) -> Counter[str]:
    """Count the habits and dense lines of a file; those that it does not have are absent."""
    prose = read_prose(path)
    counts = Counter(find_dense_lines(path))
    for name, pattern in PATTERNS.items():
        counts[name] = len(pattern.findall(prose))
    return +counts


def compute_allowance(path: Path) -> Counts:
    """Return the counts that a new file may have."""
    allowed = len(read_prose(path).split()) // WORDS_A_HABIT
    return dict.fromkeys(HABITS, allowed)


def list_files() -> list[Path]:
    """List the modules and documents that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in sorted(set(listed)) if (ROOT / name).is_file()]


def find_worse(path: Path, counts: Counts, allowed: Counts) -> Iterator[str]:
    """Describe each habit of which a file has more than it may."""
    for name, count in counts.items():
        if count > allowed.get(name, 0):
            yield f"{path.relative_to(ROOT)}: {name}: {count}, allowed {allowed.get(name, 0)}"


def find_long_subjects() -> Iterator[str]:
    """Describe each commit whose subject is too long."""
    command = ["git", "log", f"--since={SINCE}", "--no-merges", "--format=%h %s"]
    history = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # none before a commit
    for line in history.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT_LENGTH_MAX:
            yield f"commit {commit}: its subject has {len(subject)} characters, allowed {SUBJECT_LENGTH_MAX}"


def find_risen(before: Baseline, after: Baseline) -> Iterator[str]:
    """Describe each habit whose sum over all files has risen."""
    total_before: Counter[str] = sum((Counter(counts) for counts in before.values()), Counter())
    total_after: Counter[str] = sum((Counter(counts) for counts in after.values()), Counter())
    for name, count in total_after.items():
        if before and count > total_before[name]:
            yield f"all files: {name}: {count}, allowed {total_before[name]}"


def format_baseline(counted: Baseline) -> str:
    """Return the baseline with one line for each file that has something to count."""
    lines = [f"{json.dumps(name)}: {json.dumps(counts)}" for name, counts in sorted(counted.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def check(baseline: Baseline) -> list[str]:
    """List all that is worse than the baseline."""
    worse = list(find_long_subjects())
    for path in list_files():
        allowed = baseline.get(str(path.relative_to(ROOT)))
        worse += find_worse(path, count_file(path), compute_allowance(path) if allowed is None else allowed)
    return worse


def write(baseline: Baseline) -> list[str]:
    """Write the counts of today; list the habits whose sum has risen, and write nothing then."""
    counted = {str(path.relative_to(ROOT)): dict(sorted(count_file(path).items())) for path in list_files()}
    risen = list(find_risen(baseline, counted))
    if not risen:
        BASELINE.write_text(format_baseline(counted))
    return risen


def main() -> int:
    """Compare or write; exit code 1 if something got worse."""
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    worse = write(baseline) if "--write" in sys.argv[1:] else check(baseline)
    for line in worse:
        print(line)
    if worse:
        print("next: rewrite these sentences and lines; if files only moved: python tools/style_ratchet.py --write")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
