//! Tables in pages of the documentation, between marks.

use std::path::Path;

const BEGIN: &str = "<!-- written by cargo xtask chaos --write-tables -->";
const END: &str = "<!-- end of what is written -->";

/// Puts a text between the marks of a page.
pub(super) fn write(page: &Path, text: &str) -> Result<(), String> {
    let problem = |e: std::io::Error| format!("{}: {e}", page.display());
    let old = std::fs::read_to_string(page).map_err(problem)?;
    let new = between(&old, text)
        .ok_or_else(|| format!("{}: no line '{BEGIN}' with '{END}' after it", page.display()))?;
    std::fs::write(page, new).map_err(problem)
}

fn between(page: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let new = between(&page, "| new |\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\n\n| new |\n\n{END}\nb\n"));
        assert_eq!(between(&new, "| new |").unwrap(), new);
        assert_eq!(between("no marks", "text"), None);
    }
}
