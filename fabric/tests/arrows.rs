//! Checks which module of the software NIC uses which: the code against what docs/architecture.md draws.
//!
//! The page has a block for each folder, with a line for each module: `shm -> transport, tables`. In the code
//! a use is a path that begins with `crate`, `super`, `self` or a module's own child. Tests are left out,
//! since they may use any module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Module under `soft`, as the list of names that leads to it.
type Module = Vec<String>;
/// Use of one module by another: the folder, the using module, the used module.
type Arrow = (String, String, String);

const ROOT: &str = "fabric/src/soft";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_owned()
}

/// Finds every module of the software NIC that is no test, with its text.
fn modules(folder: &Path, within: &Module, found: &mut BTreeMap<Module, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut module = within.clone();
        if name != "mod" {
            module.push(name.clone());
        }
        if name == "tests" {
        } else if path.is_dir() {
            modules(&path, &module, found);
        } else {
            found.insert(module, std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns the words and signs of a source, without comments, strings and tests.
fn tokens(source: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '"' => string(rest),
            _ if first.is_alphanumeric() || first == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                tokens.push(rest[..end].to_owned());
                end
            }
            ':' if rest.starts_with("::") => {
                tokens.push("::".to_owned());
                2
            }
            _ => {
                if !first.is_whitespace() {
                    tokens.push(first.to_string());
                }
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    without_tests(&tokens)
}

/// Returns the length in bytes of the string literal at the text's beginning.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return at + 1,
            _ => escaped = false,
        }
    }
    text.len()
}

fn without_tests(tokens: &[String]) -> Vec<String> {
    const TEST: [&str; 8] = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_test = tokens[at..].len() > TEST.len() && tokens[at..].iter().zip(TEST).all(|(a, b)| a == b);
        if is_test && tokens.get(at + TEST.len() + 1).is_some_and(|token| token == "{") {
            at += block(&tokens[at..]);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Returns the number of tokens up to the end of the first block in braces.
fn block(tokens: &[String]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" => depth += 1,
            "}" if depth == 1 => return at + 1,
            "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Returns the paths that begin here, with groups in braces spread out, and the number of tokens that they
/// take.
fn paths(tokens: &[String]) -> (Vec<Vec<String>>, usize) {
    let Some(first) = tokens.first() else { return (Vec::new(), 0) };
    if first == "{" {
        let (mut all, mut at) = (Vec::new(), 1);
        while at < tokens.len() && tokens[at] != "}" {
            if tokens[at] == "," {
                at += 1;
                continue;
            }
            let (mut some, taken) = paths(&tokens[at..]);
            all.append(&mut some);
            at += taken.max(1);
        }
        return (all, at + 1);
    }
    if tokens.get(1).is_none_or(|token| token != "::") {
        return (vec![vec![first.clone()]], 1);
    }
    let (behind, taken) = paths(&tokens[2..]);
    let with_first = |path: Vec<String>| [vec![first.clone()], path].concat();
    (behind.into_iter().map(with_first).collect(), 2 + taken)
}

/// Returns every module that a module's text names, as paths from the root of the crate.
fn named(module: &Module, text: &str, all: &BTreeMap<Module, String>) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let is_child = |name: &String| all.contains_key(&[module.clone(), vec![name.clone()]].concat());
    // Depths of braces at which modules written within this file begin.
    let (mut inline, mut depth) = (Vec::new(), 0);
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let follows = |by: usize, what: &str| tokens.get(at + by).is_some_and(|token| token == what);
        match tokens[at].as_str() {
            "mod" if follows(2, "{") => inline.push(depth),
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if inline.last() == Some(&depth) {
                    inline.pop();
                }
            }
            // A visibility is not a use.
            "pub" if follows(1, "(") => {
                while tokens[at] != ")" {
                    at += 1;
                }
            }
            name if follows(1, "::")
                && (["crate", "super", "self"].contains(&name)
                    || inline.is_empty() && is_child(&tokens[at])) =>
            {
                let (these, taken) = paths(&tokens[at..]);
                found.extend(these.iter().filter_map(|path| absolute(module, inline.len(), path)));
                at += taken;
                continue;
            }
            // The rest of a path that begins elsewhere.
            _ if follows(1, "::") => {
                let (_, taken) = paths(&tokens[at..]);
                at += taken;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Returns a path from the root of the software NIC, if it leads there.
fn absolute(module: &Module, inline: usize, path: &[String]) -> Option<Vec<String>> {
    let mut from: Vec<String> = ["crate", "soft"].map(str::to_owned).to_vec();
    from.extend(module.iter().cloned());
    from.extend(std::iter::repeat_n("{}".to_owned(), inline));
    for (place, name) in path.iter().enumerate() {
        match name.as_str() {
            "crate" if place == 0 => from = vec!["crate".to_owned()],
            "self" => {}
            "super" => drop(from.pop()?),
            name => from.push(name.to_owned()),
        }
    }
    let within = from.strip_prefix(["crate".to_owned(), "soft".to_owned()].as_slice())?;
    Some(within.to_vec())
}

/// Returns the arrow of a use: between two children of the folder where their paths part, or between a
/// folder's own file and a child.
fn arrow(from: &Module, to: &Module) -> Option<Arrow> {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    if common == from.len() && common == to.len() {
        return None;
    }
    let folder: Vec<&str> = std::iter::once(ROOT).chain(from[..common].iter().map(String::as_str)).collect();
    let own = folder.last().unwrap().rsplit('/').next().unwrap();
    let node = |module: &Module| module.get(common).map_or(own, String::as_str).to_owned();
    Some((folder.join("/"), node(from), node(to)))
}

fn in_the_code() -> BTreeSet<Arrow> {
    let mut all = BTreeMap::new();
    modules(&repository().join(ROOT), &Vec::new(), &mut all);
    let mut arrows = BTreeSet::new();
    for (module, text) in &all {
        for path in named(module, text, &all) {
            let used =
                (0..=path.len()).rev().map(|end| path[..end].to_vec()).find(|used| all.contains_key(used));
            arrows.extend(arrow(module, &used.expect("the root is a module")));
        }
    }
    arrows
}

/// Returns the arrows that the page draws. A module is above those that it uses.
fn on_the_page() -> BTreeSet<Arrow> {
    let page = std::fs::read_to_string(repository().join("docs/architecture.md")).unwrap();
    let mut arrows = BTreeSet::new();
    for block in page.split("```\n").skip(1).step_by(2) {
        let mut lines = block.lines().map(str::trim);
        let folder = lines.next().unwrap_or_default();
        if !folder.starts_with(ROOT) {
            continue;
        }
        let lines: Vec<_> = lines.map(|line| line.split_once("->").unwrap_or((line, ""))).collect();
        for (place, (from, uses)) in lines.iter().enumerate() {
            for to in uses.split(',').map(str::trim).filter(|to| !to.is_empty()) {
                let below = lines[place + 1..].iter().any(|(name, _)| name.trim() == to);
                assert!(below, "docs/architecture.md: {folder}: {to} does not stand below {from}");
                arrows.insert((folder.to_owned(), from.trim().to_owned(), to.to_owned()));
            }
        }
    }
    arrows
}

#[test]
fn the_software_nics_modules_use_each_other_as_the_page_draws_it() {
    let (code, page) = (in_the_code(), on_the_page());
    assert!(code.len() > 10, "paths are found: {code:?}");
    let list = |arrows: Vec<&Arrow>| {
        let line = |(folder, from, to): &Arrow| format!("\n  {folder}: {from} -> {to}");
        arrows.into_iter().map(line).collect::<String>()
    };
    let undrawn = list(code.difference(&page).collect());
    let unused = list(page.difference(&code).collect());
    assert!(
        undrawn.is_empty() && unused.is_empty(),
        "not drawn in docs/architecture.md:{undrawn}\ndrawn there, and not in the code:{unused}"
    );
}

#[test]
fn paths_are_found_as_they_are_written() {
    let known = [vec![], vec!["a"], vec!["a", "b"], vec!["c"]];
    let all: BTreeMap<Module, String> = known
        .iter()
        .map(|names| (names.iter().map(|name| (*name).to_owned()).collect(), String::new()))
        .collect();
    let found = |text: &str| -> Vec<String> {
        named(&vec!["a".to_owned()], text, &all).into_iter().map(|path| path.join(".")).collect()
    };
    assert_eq!(found("use super::c::{X, d::{Y, Z}};"), ["c.X", "c.d.Y", "c.d.Z"]);
    assert_eq!(found("use b::X; let x: b::Y; other::b::X;"), ["a.b.X", "a.b.Y"]);
    assert_eq!(found("fn f() -> crate::soft::c::X { crate::nic::Qp }"), ["c.X"]);
    assert_eq!(found("mod inner { use super::super::c::X; } use super::c::Y;"), ["c.X", "c.Y"]);
    assert_eq!(found("pub(in super::super) fn f(); // super::c::X\n\"super::c::X\""), [""; 0]);
    assert_eq!(found("#[cfg(test)]\nmod tests { use super::super::c::X; }"), [""; 0]);
}

/// No software NIC reads a clock. Only then can a NIC in virtual time run beside the others.
#[test]
fn no_software_nic_asks_a_clock() {
    let mut all = BTreeMap::new();
    modules(&repository().join(ROOT), &Vec::new(), &mut all);
    // The threads that a NIC may be given drive it, and pass it the time.
    let drives = |first: &String| first == "threaded" || first == "attended";
    all.retain(|module, _| !module.first().is_some_and(drives));
    assert!(all.len() > 20, "modules are found: {:?}", all.keys());
    let asking: Vec<_> = all
        .iter()
        .flat_map(|(module, text)| tokens(text).into_iter().map(move |token| (module.join("::"), token)))
        .filter(|(_, token)| {
            ["Instant", "SystemTime", "Clock", "CoarseClock", "clock_gettime"].contains(&token.as_str())
        })
        .collect();
    assert_eq!(asking, []);
}
