//! Checks that the arrows between the modules of this crate are those that `docs/architecture.md` draws: none
//! more, none less, none upwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that each module uses.
type Arrows = BTreeMap<String, BTreeSet<String>>;

const HEADING: &str = "### The modules of core";

fn crate_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Collects all source files but those of tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources are here") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// Returns a file's code, without comments and without tests.
fn code(text: &str) -> String {
    let shown = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = shown.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the names that follow `prefix` in paths.
fn names_after<'a>(code: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    code.split(prefix).skip(1).map(move |rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        assert!(end > 0, "one `use` a module: `{prefix}{}`", &rest[..rest.len().min(20)]);
        &rest[..end]
    })
}

fn arrows_of_the_code() -> Arrows {
    let root = crate_root().join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut arrows = Arrows::new();
    for file in files {
        let inside = file.strip_prefix(&root).expect("below the root").with_extension("");
        let parts: Vec<&str> = inside.iter().map(|part| part.to_str().expect("plain names")).collect();
        let module = parts[0];
        if module == "lib" {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a source can be read");
        let code = code(&text);
        let used = arrows.entry(module.to_owned()).or_default();
        let mut note = |name: &str| {
            if name != module {
                used.insert(name.to_owned());
            }
        };
        names_after(&code, "crate::").for_each(&mut note);
        // So many `super`s lead to the root; fewer stay within the module.
        let depth = if parts.last() == Some(&"mod") { parts.len() - 1 } else { parts.len() };
        let ups = "super::".repeat(depth);
        names_after(&code, &ups).filter(|name| *name != "super").for_each(&mut note);
    }
    arrows
}

/// Returns the names between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns the arrows that the page draws, and its modules from the top down, each with its floor.
fn arrows_of_the_page() -> (Arrows, Vec<(String, String)>) {
    let page = crate_root().join("../docs/architecture.md");
    let text = fs::read_to_string(page).expect("the page is beside the crate");
    let section = text.split(HEADING).nth(1).expect("the page has the section");
    let section = section.split("\n#").next().unwrap_or_default();
    let (mut arrows, mut order) = (Arrows::new(), Vec::new());
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').collect();
        let uses: BTreeSet<String> = quoted(cells[4]).map(str::to_owned).collect();
        for module in quoted(cells[1]) {
            order.push((module.to_owned(), cells[2].trim().to_owned()));
            let before = arrows.insert(module.to_owned(), uses.clone());
            assert!(before.is_none(), "`{module}` has two rows");
        }
    }
    (arrows, order)
}

#[test]
fn modules_use_what_the_page_draws() {
    let (page, _) = arrows_of_the_page();
    let code = arrows_of_the_code();
    let pairs = |arrows: &Arrows| -> BTreeSet<(String, String)> {
        let pair = |from: &String, to: &String| (from.clone(), to.clone());
        arrows.iter().flat_map(|(from, uses)| uses.iter().map(move |to| pair(from, to))).collect()
    };
    let (drawn, there) = (pairs(&page), pairs(&code));
    let (more, less): (Vec<_>, Vec<_>) =
        (there.difference(&drawn).collect(), drawn.difference(&there).collect());
    assert!(more.is_empty(), "in core/src and not on the page: {more:?}");
    assert!(less.is_empty(), "on the page and not in core/src: {less:?}");
    assert!(page.keys().eq(code.keys()), "the page has {:?}, core/src has {:?}", page.keys(), code.keys());
}

#[test]
fn arrows_point_downwards_and_no_mechanism_uses_another() {
    let (page, order) = arrows_of_the_page();
    let place = |module: &str| order.iter().position(|(at, _)| at == module).expect("each has a row");
    for (from, uses) in &page {
        for to in uses {
            let (above, below) = (place(from), place(to));
            assert!(above < below, "`{from}` uses `{to}`, which does not stand below it");
            let are = |floor: &str| order[above].1 == floor && order[below].1 == floor;
            assert!(
                !are("mechanism"),
                "`{from}` uses `{to}`: the receiver is to carry what one says to the other"
            );
        }
    }
}
