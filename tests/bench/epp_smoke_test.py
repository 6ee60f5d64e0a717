#!/usr/bin/env python3
"""Proves the Endpoint Picker's measuring tools: every answer is looked at, and damage is noticed. Takes seconds."""

import argparse
import os
import sys
import tempfile
import unittest

import rig_smoke_test
from rig.children import Children
from rig.epp_bench import EppBench
from rig.epp_goals import METRICS, ROWS
from rig.epp_metrics import BY_NAME
from rig.envoy_config import envoy_configuration
from rig.epp_products import EppOptions
from rig.goals import verdict


class ExtProcLoad(rig_smoke_test.RigCase):
    def setUp(self):
        super().setUp()
        self.echo = self.start("bench-ext-proc-echo")

    def load(self, *arguments):
        return self.run_tool("bench-ext-proc-load", "--port", self.echo, *arguments)

    def test_makes_exactly_the_decisions_it_reports(self):
        for body, piece in ((1024, 62000), (225280, 62000), (5000, 100)):
            code, result, error = self.load("--streams", 5, "--requests", 40, "--body-bytes", body, "--piece-bytes", piece)
            self.assertEqual((code, result["decisions"], result["failures"]), (0, 40, 0), error)

    def test_makes_prompts_different_without_changing_their_size(self):
        code, result, error = self.load("--streams", 3, "--requests", 30, "--distinct", 1)
        self.assertEqual((code, result["decisions"]), (0, 30), error)

    def test_gets_every_chunk_back(self):
        code, result, error = self.load("--streams", 4, "--requests", 8, "--chunks", 25)
        self.assertEqual((code, result["decisions"], result["chunks"]), (0, 8, 200), error)

    def test_keeps_the_rate_of_chunks(self):
        code, result, error = self.load("--streams", 20, "--chunk-rate", 1000, "--warm-up-ms", 200,
                                        "--milliseconds", 1000)
        self.assertEqual((code, result["failures"]), (0, 0), error)
        self.assertGreater(result["chunks"], 500)
        self.assertLess(result["chunks"], 1600)

    def test_notices_an_answer_that_is_not_as_expected(self):
        code, result, error = self.load("--requests", 5, "--expect-prefill", 1)
        self.assertEqual((code, result["failures"]), (3, 5))
        self.assertIn("prefill", error)


class Products(unittest.TestCase):
    def test_endpoint_picker_starts_with_every_worker_and_is_measured(self):
        options = EppOptions(rig_smoke_test._BIN)  # pylint: disable=protected-access
        if "epp" in options.missing():
            self.skipTest(options.missing()["epp"])
        core = min(os.sched_getaffinity(0))
        with tempfile.TemporaryDirectory(prefix="handoff-bench-") as folder, Children(folder) as children:
            bench = EppBench(children, options, core, core, seconds=0.2)
            for name in ("epp", "epp-aggregated"):
                result = bench.streams(name, 2)
                self.assertEqual(result["failures"], 0)
                self.assertGreater(result["cpu_us_per_decision"], 0)

    def test_envoy_is_configured_with_and_without_ext_proc(self):
        text = str(envoy_configuration(None, 4711))
        self.assertIn("4711", text)
        self.assertNotIn("ext_proc", text)
        self.assertIn("ext_proc", str(envoy_configuration(4712, 4711)))


class Judgement(unittest.TestCase):
    def test_higher_rows_are_missed_below_their_limit(self):
        row = next(row for row in ROWS if row.id == "E1")
        self.assertEqual(verdict(row, [0.9, 0.86, 0.9, 0.1, 0.9]), "stretch")
        self.assertEqual(verdict(row, [0.75, 0.72, 0.9, 0.7, 0.71]), "pass")
        self.assertEqual(verdict(row, [0.6, 0.6, 0.9, 0.9, 0.6]), "MISS")

    def test_a_difference_may_be_negative(self):
        row = next(row for row in ROWS if row.id == "E2")
        self.assertEqual(row.compare({"echo": 220, "epp": 210}, "epp"), -10)
        self.assertIsNone(row.compare({"epp": 210}, "epp"))

    def test_every_row_belongs_to_a_metric(self):
        self.assertEqual(set(METRICS), set(BY_NAME))
        for row in ROWS:
            self.assertTrue(any(row.id.startswith(metric) for metric in METRICS), row.id)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of the built tools")
    arguments, rest = parser.parse_known_args()
    rig_smoke_test._BIN = os.path.abspath(arguments.bin)  # pylint: disable=protected-access
    unittest.main(argv=[sys.argv[0]] + rest)


if __name__ == "__main__":
    main()
