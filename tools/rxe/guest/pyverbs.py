"""Runs one file of rdma-core's Python tests, and tells of each test in a line of JSON.

Usage: pyverbs.py FOLDER DEVICE FILE. FOLDER has the folder `tests`; FILE is like test_cq. Beside what the tests themselves
print, stdout gets {"tests": [every name]}, then for each test {"began": name} and {"ended": name, "verdict": "passed",
"skipped" or "failed", "why": text}, so that whoever reads it knows what was on when the process died.
"""
import json
import os
import sys
import types
import unittest

folder, device, file = sys.argv[1:]
package = os.path.join(folder, "tests")
sys.path[:0] = [folder, package]
# The package's own beginning loads every file, which takes long on a slow machine.
tests = types.ModuleType("tests")
tests.__path__ = [package]
sys.modules["tests"] = tests

from args_parser import parser  # noqa: E402

sys.argv[1:] = ["--dev", device]
parser.parse_args()

# The tests fork: only the process that began reports, in lines that nobody else's text is in.
own = os.getpid()
out = os.dup(1)


def tell(**words):
    if os.getpid() == own:
        os.write(out, ("\n" + json.dumps(words) + "\n").encode())


def short(test):
    """Class and method."""
    return ".".join(test.id().split(".")[-2:])


class Tell(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        tell(began=short(test))

    def addSuccess(self, test):
        super().addSuccess(test)
        tell(ended=short(test), verdict="passed", why="")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        tell(ended=short(test), verdict="skipped", why=reason)

    def fail(self, test, error):
        tell(ended=short(test), verdict="failed", why="".join(self._exc_info_to_string(error, test)))

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.fail(test, error)

    def addError(self, test, error):
        super().addError(test, error)
        self.fail(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.fail(test, error)

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        tell(ended=short(test), verdict="passed", why="")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        tell(ended=short(test), verdict="failed", why="succeeded where a failure was expected")


def flat(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from flat(part)
        else:
            yield part


# As in the package: it and a module that it imports need each other, and only this order will do.
import tests.utils  # noqa: E402, F401

suite = unittest.defaultTestLoader.loadTestsFromName("tests." + file)
tell(tests=[short(test) for test in flat(suite)])
suite.run(Tell())
