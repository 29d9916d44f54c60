#!/usr/bin/env python3
"""Tests of what computes: cells, the choice of the best, tables, targets, the record and the picture."""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from peers import cells, configurations, main, measure, plot, record, report, targets
from peers.cells import Cell
from peers.configurations import MAPPED, ORDINARY, OURS, PRELOADED
from peers.install import SOURCES
from peers.measure import Results, Sample


def sample_results():
    """Ours take half of the best peer's time everywhere, mapped a quarter; the other peer takes twice as long."""
    results = Results()
    for cell in cells.required():
        time = 1 + cell.bytes / 1000
        for name, part in ((ORDINARY.name, 0.5), (MAPPED.name, 0.25), ("intel/default", 1), ("mpich/default", 2)):
            results.add(cell, name, Sample(time * part, time * part * 2, False))
    results.add_bare(64 << 20, [5000.0, 4000.0])
    results.add_bare(64 << 20, [6000.0, 3000.0])
    results.versions["intel"] = "Intel <MPI>"
    results.note("a note")
    return results


ABOUT = {"date": "2000-01-31", "cores": 2, "processor": "a CPU", "seconds": 0.1, "repeats": 3, "line": 30.0, "copy": 40.0, "profile": "release"}
OVERLAP = {"spare": {"values": [0.3, 0.24, 7000.0, 8000.0], "noisy": False}}


def sample_machine(name="Some CPU"):
    return record.Machine(name, sample_results(), ABOUT, OVERLAP)


class Cells(unittest.TestCase):
    def test_no_cell_is_required_twice(self):
        self.assertEqual(len(set(cells.required())), len(cells.required()))

    def test_sizes_are_read_as_they_are_written(self):
        for size in (*cells.ALL_SIZES, 12, 1000, 3 << 20):
            self.assertEqual(cells.parse_size(cells.short(size)), size)

    def test_other_sizes_and_ranks_can_be_chosen(self):
        chosen = cells.chosen(ranks=[3], collectives=["broadcast"], sizes=[12, 40])
        self.assertEqual(chosen, [Cell(3, "broadcast", "out", "float32", size) for size in (12, 40)])

    def test_other_collectives_are_chosen_by_name_only(self):
        self.assertEqual(cells.chosen(), cells.required())
        chosen = cells.chosen(ranks=[4], collectives=["reduce", "send_recv"], sizes=[8])
        self.assertEqual(chosen, [Cell(4, name, "out", "float32", 8) for name in ("reduce", "send_recv")])
        self.assertEqual(cells.chosen(collectives=["reduce"], places=["in"]), [])

    def test_groups_hold_each_cell_once(self):
        grouped = measure.groups(cells.required())
        self.assertEqual(sorted(cell for group in grouped for cell in group), sorted(cells.required()))
        for group in grouped:
            self.assertEqual(len({cell.ranks for cell in group}), 1)


    def test_a_machine_has_a_name_that_files_can_have(self):
        self.assertEqual(main.named("Zen 4"), "Zen 4")
        for name in ("", "../x", "a/b", ".x", "a\nb"):
            self.assertRaises(argparse.ArgumentTypeError, main.named, name)


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


class Distances(unittest.TestCase):
    def test_cells_are_measured_where_two_cores_are_near_and_often(self):
        self.assertEqual(measure.usual([250, 24, 57, 55, 260, 58, 25, 54, 56]), 54)
        self.assertEqual(measure.usual([24, 24, 24, 24, 24, 24, 250, 245, 57, 255]), 245, "57 only once in ten")
        self.assertEqual(measure.usual([24, 25, 24]), 24, "two threads of one core are all there is")
        self.assertEqual(measure.usual([57]), 57)

    def test_a_survey_and_what_is_near_it(self):
        answers = ["24\t12", "57\t14", "56\t16", "250\t15", "58\t13", "86\t9", "37\t9", "24\t9"]
        with tempfile.TemporaryDirectory() as folder:
            probe, lines = pathlib.Path(folder, "probe"), pathlib.Path(folder, "answers")
            # Each time the next line.
            probe.write_text(f"#!/bin/sh\nhead -n1 {lines}; sed -i 1d {lines}\n")
            probe.chmod(0o755)
            lines.write_text("\n".join(answers) + "\n")
            with (
                unittest.mock.patch.object(measure, "driver", lambda name: probe),
                unittest.mock.patch.object(measure, "PROBES", 5),
                unittest.mock.patch.object(measure, "PAUSE", 0),
            ):
                machine = measure.Machine([], lambda text: None)
                machine.survey()
                self.assertEqual((machine.line, machine.copy), (56, 14))
                self.assertEqual([machine.as_usual() for _ in range(3)], [False, False, False])

    def test_a_command_that_fails_says_why(self):
        lines, why = measure.Machine([], print).run(["sh", "-c", "echo cell; echo gone >&2; exit 3"])
        self.assertEqual((lines, why), ([["cell"]], "exit status 3: gone"))

    def test_a_driver_is_told_where_to_watch_and_says_what_was_noisy(self):
        machine, results, cell = measure.Machine([], print), Results(), Cell(2, "broadcast", "out", "float32", 8)
        machine.line = 60.0
        other = Cell(2, "broadcast", "out", "float32", 1024)
        script = """
            test "$1 $2 $3" = "-t 0.5 -w" || exit 1
            file=${4#40.0:90.0:}
            test "$(head -c 4096 "$file" | tr -d "\\0" | wc -c) $(wc -c <"$file")" = "0 4096" || exit 2
            printf "cell\\tbroadcast\\tout\\tfloat32\\t8\\t1.5\\t1.0\\t2.5\\tquiet\\n"
            printf "cell\\tbroadcast\\tout\\tfloat32\\t1024\\t2.5\\t2.0\\t3.5\\tnoisy\\n"
        """
        launch = lambda ranks, crowded: (["sh", "-c", script, "sh"], {})
        configuration = configurations.Configuration("a", "b", launch)
        self.assertEqual(measure.measure(machine, results, configuration, [cell, other], 0.5), 1)
        self.assertEqual(results.notes, {})
        self.assertEqual(results.best(cell, "a/b"), Sample(1.5, 2.5, False))
        self.assertEqual(results.best(other, "a/b"), Sample(2.5, 3.5, True))


class Watch(unittest.TestCase):
    """src/watch.c itself, between three processes, on a core each as far as there are cores."""

    PROGRAM = """
        #define _GNU_SOURCE
        #include "watch.h"
        #include <sched.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(int count, char **words) {
            int ready[2], rank = 0;
            char byte;
            if (count != 3 || pipe(ready)) return 3;
            for (int r = 1; r < 3 && !rank; r++)
                if (!fork()) rank = r;
            cpu_set_t core;
            CPU_ZERO(&core);
            CPU_SET(rank % (int)sysconf(_SC_NPROCESSORS_ONLN), &core);
            sched_setaffinity(0, sizeof core, &core);
            struct watch watch = watch_open(words[1], rank, 3);
            if (rank) { if (write(ready[1], "", 1) != 1) return 3; }
            else for (int r = 1; r < 3; r++) if (read(ready[0], &byte, 1) != 1) return 3;
            for (int i = 0; i < 5; i++)
                printf("%d %d %d\\n", rank, i, *words[2] == 'w' ? watch_wait(&watch) : watch_look(&watch));
            fflush(stdout);
            if (rank == 0) while (wait(NULL) > 0) {}
            return 0;
        }
    """

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        path = pathlib.Path(self.folder.name)
        (path / "main.c").write_text(self.PROGRAM)
        self.program, self.page = path / "main", path / "page"
        self.page.write_bytes(bytes(measure.PAGE))
        flags = ["-O2", "-Wall", "-Werror", f"-I{SOURCES}"]
        subprocess.run(["cc", *flags, path / "main.c", SOURCES / "watch.c", "-o", self.program], check=True)

    def looks(self, window, way):
        words = [self.program, f"{window}:{self.page}", way]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        return done.returncode, sorted(done.stdout.splitlines()), done.stderr

    def test_all_ranks_wait_until_it_is_so_and_hear_the_same(self):
        code, lines, why = self.looks("0:1000000", "wait")
        self.assertEqual((code, why), (0, ""))
        verdicts = {line.split()[2] for line in lines if line.split()[1] == "0"}
        # A busy machine may wear out their patience later.
        self.assertEqual(verdicts, {"1"})
        for look in range(5):
            self.assertEqual(len({line.split()[2] for line in lines if line.split()[1] == str(look)}), 1, lines)

    def test_all_ranks_hear_that_it_is_not(self):
        expected = [f"{rank} {look} 0" for rank in range(3) for look in range(5)]
        self.assertEqual(self.looks("0:0.001", "look"), (0, expected, ""))

    def test_a_page_where_others_have_met_is_refused(self):
        self.looks("0:0.001", "look")
        code, lines, why = self.looks("0:0.001", "look")
        self.assertEqual((code, lines), (2, []))
        self.assertIn("is no page of zeros", why)


class Targets(unittest.TestCase):
    def test_all_but_the_overlap_are_met_at_half_the_time(self):
        found = targets.targets(sample_results(), OVERLAP)
        missed = [target.group for target in found if not target.met]
        self.assertEqual(missed, ["computation beside 64M all_reduce"])

    def test_with_the_heap_ordinary_memory_may_be_quicker(self):
        results, cell = sample_results(), Cell(4, "all_reduce", "out", "float32", 1 << 20)
        target = lambda *ordinary: next(t for t in targets.targets(results, OVERLAP, *ordinary) if "4 ranks" in t.group and t.what == "1M")
        self.assertEqual([target().reached, target((ORDINARY,)).reached], [0.5, 0.5])
        results.add(cell, PRELOADED.name, Sample((1 + cell.bytes / 1000) * 0.3, 1, False))
        self.assertEqual([round(target().reached, 9), target((ORDINARY,)).reached], [0.3, 0.5])
        self.assertEqual(len(report.ours(results)), 3)

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
        texts = report.sections([sample_machine()])
        for document in main.DOCUMENTS:
            text = document.read_text()
            self.assertIn("<!-- peers: ", text, document)
            report.filled(text, texts)

    def test_the_table_tells_the_ratio_and_who_was_best(self):
        results = sample_results()
        table = report.beside(results, [Cell(2, "all_reduce", "out", "float32", 1 << 20)])
        self.assertIn("| 1M | 525 | 0.50 | 262 | 0.25 | 1050 | intel/default |", table)

    def test_machines_stand_side_by_side(self):
        texts = report.sections([sample_machine("A"), sample_machine("B")])
        self.assertIn("| 1M | 525 (0.50) | 262 (0.25) | 525 (0.50) | 262 (0.25) |", texts["all_reduce 8"])
        self.assertIn("| [B](peers/b.md) | a CPU | 30 |", texts["machines"])

    def test_peers_that_lend_mapped_buffers_are_told_from_the_others(self):
        results = sample_results()
        for cell in cells.required():
            results.add(cell, "intel/heap", Sample((1 + cell.bytes / 1000) / 4, 1, False))
        (total, mean, behind), beside = report.standing(results, ORDINARY), report.standing(results, ORDINARY, report.ordinary)
        self.assertEqual((round(mean, 9), behind), (2.0, total))
        self.assertEqual((beside[0], round(beside[1], 9), beside[2]), (total, 0.5, 0))
        self.assertTrue(all(name.startswith("intel/heap") for name in configurations.LENT))

    def test_a_page_names_the_targets_that_were_missed(self):
        page = report.page(sample_machine(), "some-cpu.svg")
        self.assertIn("| computation beside 64M all_reduce | lost, with a spare core | 0.10 | 0.20 |", page)
        self.assertIn("(some-cpu.svg)", page)
        self.assertEqual(page.count("| bytes | malloc, µs |"), len({(c.ranks, c.collective, c.place, c.type) for c in cells.required()}))

    def test_a_page_has_what_the_memory_takes_where_it_was_measured(self):
        machine = sample_machine()
        # The least of both; ours mapped, and two fifths of the peer's.
        cell = Cell(2, "all_reduce", "out", "float32", 64 << 20)
        peer = machine.results.best(cell, "intel/default").median
        self.assertIn(f"| 64M | 3000 | 5000 | {peer * 0.25:.0f} | {peer * 0.4:.0f} |", report.page(machine, "a.svg"))
        machine.results.bare.clear()
        self.assertNotIn("What the memory takes", report.page(machine, "a.svg"))

    def test_only_a_whole_run_of_an_optimised_library_beside_peers_is_published(self):
        self.assertEqual(main.unfit(sample_machine(), True), "")
        self.assertIn("all cells", main.unfit(sample_machine(), False))
        self.assertIn("peer", main.unfit(record.Machine("A", Results(), ABOUT, {}), True))
        self.assertIn("fast", main.unfit(record.Machine("A", sample_results(), {**ABOUT, "profile": "fast"}, {}), True))


class Files(unittest.TestCase):
    def test_the_record_gives_back_what_was_written(self):
        machine = sample_machine()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / f"{machine.file}.json"
            path.write_text(record.text(machine))
            read = record.read(path)
        self.assertEqual((read.name, read.about, read.overlap), (machine.name, ABOUT, OVERLAP))
        self.assertEqual(read.results.versions, machine.results.versions)
        self.assertEqual(record.text(read), record.text(machine))

    def test_the_picture_is_well_formed_with_a_line_for_each_series(self):
        picture = plot.svg(sample_results())
        root = xml.etree.ElementTree.fromstring(picture)
        lines = [e for e in root if e.get("fill") == "none" and e.get("stroke-width")]
        self.assertEqual(len(lines), 6 + 4, "six ratios; two of ours and two libraries")
        self.assertNotIn("nan", picture)
        self.assertIsNone(plot.svg(Results()))


if __name__ == "__main__":
    unittest.main()
