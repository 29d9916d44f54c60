//! Plans as pictures: Graphviz, and SVG that needs no tool. A column per lane, an arrow per message.

use super::{Plan, Rank, Sink, Source};
use std::collections::HashMap;
use std::fmt::Write;

impl Plan {
    /// The plan as a Graphviz digraph: a cluster per lane, a node per move, an edge per message.
    pub fn to_dot(&self) -> String {
        let picture = Picture::of(self);
        let mut dot = format!("digraph \"{}\" {{\n", dot_text(&picture.title));
        dot.push_str("  rankdir=TB;\n  node [shape=box, fontname=\"monospace\", fontsize=10];\n");
        for (number, column) in picture.columns.iter().enumerate() {
            let _ = writeln!(dot, "  subgraph cluster_{number} {{\n    label=\"{}\";", column.title);
            for index in column.boxes.clone() {
                let _ = writeln!(dot, "    m{index} [label=\"{}\"];", dot_text(&picture.boxes[index].text));
            }
            for index in column.boxes.clone().skip(1) {
                let _ = writeln!(dot, "    m{} -> m{index} [style=dotted, arrowhead=none];", index - 1);
            }
            dot.push_str("  }\n");
        }
        for (from, to) in &picture.arrows {
            let _ = writeln!(dot, "  m{from} -> m{to} [constraint=false];");
        }
        dot.push_str("}\n");
        dot
    }

    /// The plan as a standalone SVG. A move stands below all that it waits for.
    pub fn to_svg(&self) -> String {
        let picture = Picture::of(self);
        let rows = picture.boxes.iter().map(|b| b.row + 1).max().unwrap_or(0);
        let (width, height) = (picture.width(), HEAD + rows * ROW + 10);
        let top = |row: usize| HEAD + row * ROW;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
             <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" \
             markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#2563a8\"/></marker></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{GUTTER}\" y=\"18\" font-weight=\"bold\">{}</text>\n",
            xml_text(&picture.title)
        );
        for column in &picture.columns {
            // Every other rank has a shade, so that the lanes of one rank are seen together.
            if column.rank % 2 == 1 {
                let (x, wide) = (column.left - GUTTER, column.width + 2 * GUTTER);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x}\" y=\"26\" width=\"{wide}\" height=\"{}\" fill=\"#f4f4f0\"/>",
                    height - 26
                );
            }
            let middle = column.left + column.width / 2;
            let last = column.boxes.clone().last().map_or(HEAD, |b| top(picture.boxes[b].row));
            let _ = write!(
                svg,
                "<text x=\"{middle}\" y=\"40\" text-anchor=\"middle\">{}</text>\n\
                 <line x1=\"{middle}\" y1=\"{HEAD}\" x2=\"{middle}\" y2=\"{last}\" stroke=\"#c8c8c8\"/>\n",
                column.title
            );
        }
        for b in &picture.boxes {
            let (Column { left, width, .. }, y) = (&picture.columns[b.column], top(b.row));
            let _ = write!(
                svg,
                "<rect x=\"{left}\" y=\"{y}\" width=\"{width}\" height=\"{BOX}\" rx=\"3\" fill=\"#e8f0fa\" \
                 stroke=\"#7a8aa0\"/>\n<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                left + width / 2,
                y + 15,
                xml_text(&b.text)
            );
        }
        for &(from, to) in &picture.arrows {
            let (from, to) = (&picture.boxes[from], &picture.boxes[to]);
            let edges = |b: &MoveBox| {
                let column = &picture.columns[b.column];
                (column.left, column.left + column.width)
            };
            let rightwards = from.column < to.column;
            let (x1, x2) =
                if rightwards { (edges(from).1, edges(to).0) } else { (edges(from).0, edges(to).1) };
            let (y1, y2) = (top(from.row) + BOX - 4, top(to.row) + 6);
            let _ = writeln!(
                svg,
                "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"#2563a8\" stroke-opacity=\"0.7\" \
                 marker-end=\"url(#tip)\"/>"
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

// Pixels: the width of a character, the space beside a box, the titles, a row, a box.
const GLYPH: usize = 7;
const GUTTER: usize = 16;
const HEAD: usize = 52;
const ROW: usize = 44;
const BOX: usize = 22;

struct Picture {
    title: String,
    columns: Vec<Column>,
    boxes: Vec<MoveBox>,
    /// Messages: the boxes of the send and of the receive.
    arrows: Vec<(usize, usize)>,
}

struct Column {
    rank: usize,
    title: String,
    left: usize,
    width: usize,
    boxes: std::ops::Range<usize>,
}

struct MoveBox {
    column: usize,
    row: usize,
    text: String,
}

impl Picture {
    fn of(plan: &Plan) -> Picture {
        let title = format!("{} by {}, {} ranks", plan.spec.collective, plan.algorithm, plan.spec.ranks);
        let (mut columns, mut boxes) = (Vec::new(), Vec::<MoveBox>::new());
        let mut ends = HashMap::<(Rank, Rank, u16), (Vec<usize>, Vec<usize>)>::new();
        for (rank, program) in plan.programs.iter().enumerate() {
            for (number, lane) in program.lanes.iter().enumerate() {
                let (first, me) = (boxes.len(), rank as Rank);
                for m in &lane.moves {
                    for source in &m.from {
                        if let Source::Link(link) = source {
                            ends.entry((link.peer, me, link.channel)).or_default().1.push(boxes.len());
                        }
                    }
                    for sink in &m.into {
                        if let Sink::Links(links) = sink {
                            for &peer in &links.peers {
                                ends.entry((me, peer, links.channel)).or_default().0.push(boxes.len());
                            }
                        }
                    }
                    boxes.push(MoveBox { column: columns.len(), row: 0, text: m.to_string() });
                }
                let title = format!("rank {rank}, lane {number}");
                let longest = boxes[first..].iter().map(|b| b.text.len()).chain([title.len()]).max();
                let width = longest.unwrap_or(0) * GLYPH + 12;
                let left = columns.last().map_or(0, |c: &Column| c.left + c.width + GUTTER) + GUTTER;
                columns.push(Column { rank, title, left, width, boxes: first..boxes.len() });
            }
        }
        // The k-th send of a link feeds its k-th receive; what is left over has no arrow.
        let mut arrows: Vec<_> =
            ends.into_values().flat_map(|(sends, receives)| sends.into_iter().zip(receives)).collect();
        arrows.sort_unstable();
        let mut picture = Picture { title, columns, boxes, arrows };
        picture.place_rows();
        picture
    }

    fn width(&self) -> usize {
        let title = 2 * GUTTER + self.title.len() * (GLYPH + 1);
        self.columns.last().map_or(title, |c| title.max(c.left + c.width + GUTTER))
    }

    /// Puts every move below the one before it in its lane and below the senders of what it reads. Moves on
    /// a cycle of waits, which only an unproved plan has, stand where their lane alone puts them.
    fn place_rows(&mut self) {
        let mut after = vec![Vec::new(); self.boxes.len()];
        let mut waits = vec![0u32; self.boxes.len()];
        let in_lanes = self.columns.iter().flat_map(|c| c.boxes.clone().skip(1).map(|b| (b - 1, b)));
        for (before, next) in in_lanes.chain(self.arrows.iter().copied()) {
            after[before].push(next);
            waits[next] += 1;
        }
        let mut free: Vec<usize> = (0..self.boxes.len()).filter(|&b| waits[b] == 0).collect();
        while let Some(before) = free.pop() {
            for &next in &after[before] {
                self.boxes[next].row = self.boxes[next].row.max(self.boxes[before].row + 1);
                waits[next] -= 1;
                if waits[next] == 0 {
                    free.push(next);
                }
            }
        }
        for column in &self.columns {
            for b in column.boxes.clone().skip(1) {
                self.boxes[b].row = self.boxes[b].row.max(self.boxes[b - 1].row + 1);
            }
        }
    }
}

fn xml_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'), // XML has no way to write most of them
            c => out.push(c),
        }
    }
    out
}

fn dot_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
