#!/usr/bin/env python3
"""Tests of what computes: cells, the choice of the best, tables, targets, the record and the picture."""
import pathlib
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from peers import cells, configurations, measure, plot, record, report, targets
from peers.cells import Cell
from peers.configurations import MAPPED, ORDINARY, OURS
from peers.measure import Results, Sample


def sample_results():
    """Ours take half of the best peer's time everywhere, mapped a quarter; the other peer takes twice as long."""
    results = Results()
    for cell in cells.required():
        time = 1 + cell.bytes / 1000
        for name, part in ((ORDINARY.name, 0.5), (MAPPED.name, 0.25), ("intel/default", 1), ("mpich/default", 2)):
            results.add(cell, name, Sample(time * part, time * part * 2, False))
    results.versions["intel"] = "Intel <MPI>"
    results.note("a note")
    return results


ABOUT = {"cores": 2, "processor": "a CPU", "seconds": 0.1, "repeats": 3, "line": 30.0, "copy": 40.0}
OVERLAP = {"spare": {"values": [0.3, 0.24, 7000.0, 8000.0], "noisy": False}}


class Cells(unittest.TestCase):
    def test_no_cell_is_required_twice(self):
        self.assertEqual(len(set(cells.required())), len(cells.required()))

    def test_sizes_are_read_as_they_are_written(self):
        for size in (*cells.ALL_SIZES, 12, 1000, 3 << 20):
            self.assertEqual(cells.parse_size(cells.short(size)), size)

    def test_other_sizes_and_ranks_can_be_chosen(self):
        chosen = cells.chosen(ranks=[3], collectives=["broadcast"], sizes=[12, 40])
        self.assertEqual(chosen, [Cell(3, "broadcast", "out", "float32", size) for size in (12, 40)])

    def test_groups_hold_each_cell_once(self):
        grouped = measure.groups(cells.required())
        self.assertEqual(sorted(cell for group in grouped for cell in group), sorted(cells.required()))
        for group in grouped:
            self.assertEqual(len({cell.ranks for cell in group}), 1)


class Choice(unittest.TestCase):
    def test_a_quiet_run_counts_before_a_quicker_noisy_one(self):
        results, cell = Results(), cells.required()[0]
        results.add(cell, "a/b", Sample(1, 1, True))
        self.assertTrue(results.best(cell, "a/b").noisy)
        results.add(cell, "a/b", Sample(3, 3, False))
        results.add(cell, "a/b", Sample(2, 2, False))
        self.assertEqual(results.best(cell, "a/b"), Sample(2, 2, False))

    def test_the_best_peer_is_not_ours(self):
        results, cell = sample_results(), cells.required()[0]
        self.assertEqual(results.best_peer(cell, OURS)[0], "intel/default")
        near = measure.contenders(results, [cell], OURS, 1.5)
        self.assertEqual(near, {"intel/default": [cell]})
        self.assertEqual(len(measure.contenders(results, [cell], OURS, 2.5)), 2)

    def test_names_of_configurations_differ(self):
        names = [c.name for c in (*configurations.PEERS, *configurations.OUR_CONFIGURATIONS)]
        self.assertEqual(len(set(names)), len(names))


class Probes(unittest.TestCase):
    def test_a_run_is_noisy_if_the_machine_was_before_or_after(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(measure, "PROBES", 1):
            answers = pathlib.Path(folder, "answers")
            probe = pathlib.Path(folder, "probe")
            # Each time the next line.
            probe.write_text(f"#!/bin/sh\nhead -n1 {answers}; sed -i 1d {answers}\n")
            probe.chmod(0o755)
            with unittest.mock.patch.object(measure, "driver", lambda name: probe):
                machine = measure.Machine([], print)
                for before, after, noisy in ((30, 31, False), (29, 200, True), (200, 30, True), (40, 50, False)):
                    answers.write_text(f"{before}\t12\n{after}\t11\n")
                    self.assertEqual(machine.run(["printf", "cell\t1\n"]), ([["cell", "1"]], noisy, ""))
                self.assertEqual((machine.quietest, len(machine.copies)), (29, 8))
                answers.write_text("30\t12\n30\t11\n")
                lines, noisy, why = machine.run(["sh", "-c", "echo gone >&2; exit 3"])
                self.assertEqual((lines, noisy, why), ([], False, "exit status 3: gone"))


class Targets(unittest.TestCase):
    def test_all_but_the_overlap_are_met_at_half_the_time(self):
        found = targets.targets(sample_results(), OVERLAP)
        missed = [target.group for target in found if not target.met]
        self.assertEqual(missed, ["computation beside 64M all_reduce"])

    def test_noise_is_allowed_and_nothing_else(self):
        self.assertTrue(targets.Target("", "", 0.8, 0.82).met)
        self.assertFalse(targets.Target("", "", 0.8, 0.83).met)
        self.assertFalse(targets.Target("", "", 0.8, None).met)

    def test_without_results_nothing_is_met(self):
        self.assertFalse(any(target.met for target in targets.targets(Results(), {})))


class Documents(unittest.TestCase):
    def test_marks_stay_and_what_is_between_them_is_replaced(self):
        document = "a\n<!-- peers: x -->\nold\n<!-- peers: end -->\nb\n<!-- peers: y -->\n<!-- peers: end -->\n"
        once = report.filled(document, {"x": "new", "y": "other"})
        self.assertNotIn("old", once)
        self.assertEqual(report.filled(once, {"x": "new", "y": "other"}), once)
        self.assertEqual(once.replace("\nnew\n", "").replace("\nother\n", "").count("peers:"), 4)

    def test_every_mark_of_the_documents_has_a_section(self):
        from peers.main import DOCUMENTS

        texts = report.sections(sample_results(), ABOUT, OVERLAP)
        for document in DOCUMENTS:
            text = document.read_text()
            self.assertIn("<!-- peers: ", text, document)
            report.filled(text, texts)

    def test_the_table_tells_the_ratio_and_who_was_best(self):
        results = sample_results()
        table = report.beside(results, [Cell(2, "all_reduce", "out", "float32", 1 << 20)])
        self.assertIn("| 1M | 525 | 0.50 | 262 | 0.25 | 1050 | intel/default |", table)


class Files(unittest.TestCase):
    def test_the_record_gives_back_what_was_written(self):
        results = sample_results()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.json"
            path.write_text(record.text(results, ABOUT, OVERLAP))
            read, about, overlap = record.read(path)
        self.assertEqual((about, overlap, read.versions), (ABOUT, OVERLAP, results.versions))
        self.assertEqual(record.text(read, about, overlap), record.text(results, ABOUT, OVERLAP))

    def test_the_picture_is_well_formed_with_a_line_for_each_series(self):
        picture = plot.svg(sample_results())
        root = xml.etree.ElementTree.fromstring(picture)
        lines = [e for e in root if e.get("fill") == "none" and e.get("stroke-width")]
        self.assertEqual(len(lines), 6 + 4, "six ratios; two of ours and two libraries")
        self.assertNotIn("nan", picture)
        self.assertIsNone(plot.svg(Results()))


if __name__ == "__main__":
    unittest.main()
