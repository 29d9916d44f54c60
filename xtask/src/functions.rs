//! The functions of the C header: what it declares, and the table of them that ends `docs/c-api.md`.

use crate::shell::root;
use std::fmt::Write as _;

/// The rest of the page is written by hand.
const HEADING: &str = "\n## All functions\n";

/// A function of the header, and the text above it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    text: String,
}

/// All functions, in the header's order.
pub(crate) fn declared(header: &str) -> Vec<Function> {
    let (mut found, mut text) = (Vec::new(), String::new());
    for line in header.lines() {
        if let Some(comment) = line.strip_prefix("//") {
            let _ = writeln!(text, "{}", comment.trim());
            continue;
        }
        // A declaration begins at the margin; in it the first parenthesis follows the name.
        let begins =
            line.starts_with(|c: char| c.is_ascii_alphabetic()).then(|| line.split_once('(')).flatten();
        if let Some((before, _)) = begins {
            let name = before.rsplit([' ', '*']).next().unwrap_or_default();
            if name.starts_with("ccl") {
                found.push(Function { name: name.to_string(), text: std::mem::take(&mut text) });
            }
        }
        text.clear();
    }
    found
}

/// `docs/c-api.md` with a table of what the header says.
pub(crate) fn c_api(header: &str) -> Result<String, String> {
    let path = root().join("docs/c-api.md");
    let page = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (written, _) = page.split_once(HEADING).ok_or("docs/c-api.md has no heading for the functions")?;
    let mut page = format!(
        "{written}{HEADING}\n<!-- written by cargo xtask gen from ccl.h -->\n\n| | |\n| --- | --- |\n"
    );
    for function in declared(header) {
        let _ = writeln!(page, "| `{}` | {} |", function.name, first_sentence(&function.text));
    }
    Ok(page)
}

fn first_sentence(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |dot| dot + 1);
    paragraph[..end].trim().trim_end_matches('.').replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_told_from_comments_macros_and_types() {
        let header = "// cclA(x)\n\n#define cclB(x) x\ntypedef struct {\n    int a;\n} cclC;\n\n// Does it. Or\n// not.\n\
                      cclResult_t cclD(int a,\n                 int b);\n\nconst char *cclE(void);\n/* cclF() */";
        let function = |name: &str, text: &str| Function { name: name.into(), text: text.into() };
        assert_eq!(declared(header), [function("cclD", "Does it. Or\nnot.\n"), function("cclE", "")]);
    }

    #[test]
    fn a_sentence_ends_at_a_full_stop_and_a_space() {
        assert_eq!(first_sentence("Waits for\nv1.0 of it. Then\nnot.\n\nMore.\n"), "Waits for v1.0 of it");
        assert_eq!(first_sentence("One.\n\nTwo.\n"), "One");
    }
}
