//! Dependencies between modules: the table in ARCHITECTURE.md holds for the paths in the code, no
//! mode names another one, and files do not use each other in a cycle. `sizes`: no file or function
//! is too long. `tiers`: the tests that `make unit` runs.

mod map;
mod sizes;
mod tiers;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A path in the crate, such as `["modes", "ipvs", "plan"]`.
type Module = Vec<String>;

/// Lists the files of `src`, each with its module. Tests are left out, since they may use
/// everything.
fn files() -> Vec<(Module, PathBuf)> {
    fn walk(folder: &Path, module: &Module, found: &mut Vec<(Module, PathBuf)>) {
        let entries = fs::read_dir(folder).expect("a folder of src");
        for entry in entries.map(|entry| entry.expect("an entry")) {
            let path = entry.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let mut inner = module.clone();
            match (&*name, path.is_dir()) {
                ("tests" | "lib" | "main", _) => continue,
                ("mod", false) => {}
                _ => inner.push(name.into_owned()),
            }
            if path.is_dir() {
                walk(&path, &inner, found);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                found.push((inner, path));
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join("src"), &Vec::new(), &mut found);
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns `text` up to its inline module of tests. `mod tests;` ends nothing: it may be
/// above the `use` lines.
fn without_tests(text: &str) -> &str {
    let marks = text.match_indices("#[cfg(test)]\nmod ");
    let mut inline = marks.filter(|(at, mark)| {
        let name = text[at + mark.len()..].lines().next();
        name.is_some_and(|line| line.ends_with('{'))
    });
    inline.next().map_or(text, |(at, _)| &text[..at])
}

/// Removes tests and comments from `text`.
fn code(text: &str) -> String {
    let lines = without_tests(text).lines();
    let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the paths that the code of `text` names: those of its `use` lines, and anywhere else
/// those from the root of the crate or from a parent.
fn named(text: &str) -> Vec<Vec<String>> {
    let code = code(text);
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c| !is_of_path(c));
    let paths = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
    let paths = paths.map(|path| {
        let names = path.split(':').filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    });
    used(text).into_iter().chain(paths).collect()
}

/// Returns the paths that the `use` lines of `text` name, without those of its tests.
fn used(text: &str) -> Vec<Vec<String>> {
    let code = code(text);
    let mut found = Vec::new();
    let begins = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub").map_or(line, |rest| {
            let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
            rest.map_or(&line[3..], |(_, rest)| rest).trim_start()
        });
        line.strip_prefix("use ").map(str::to_owned)
    };
    let mut statement: Option<String> = None;
    for line in code.lines() {
        let text = match statement.take() {
            Some(begun) => begun + line,
            None => match begins(line) {
                Some(begun) => begun,
                None => continue,
            },
        };
        match text.split_once(';') {
            Some((whole, _)) => tree(&[], whole, &mut found),
            None => statement = Some(text),
        }
    }
    found
}

/// Adds the paths of a tree of `use` below `prefix`.
fn tree(prefix: &[String], text: &str, found: &mut Vec<Vec<String>>) {
    let text = text.trim();
    let (path, inner) = match text.split_once('{') {
        Some((path, inner)) => (path, inner.strip_suffix('}')),
        None => (text, None),
    };
    let path = path.split(" as ").next().unwrap_or_default();
    let names = path
        .split("::")
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let path: Vec<String> = prefix
        .iter()
        .cloned()
        .chain(names.map(str::to_owned))
        .collect();
    let Some(inner) = inner else {
        if path.len() > prefix.len() {
            found.push(path);
        }
        return;
    };
    let (mut depth, mut begin) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                tree(&path, &inner[begin..at], found);
                begin = at + 1;
            }
            _ => {}
        }
    }
    tree(&path, &inner[begin..], found);
}

/// Resolves `path`, as `module` names it, from the root of the crate; `None` if it belongs to
/// another crate.
fn resolved(path: &[String], module: &Module) -> Option<Module> {
    let mut base = module.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        _ => return None,
    }
    base.extend(rest.iter().filter(|name| *name != "self").cloned());
    Some(base)
}

/// Reads the table in ARCHITECTURE.md: each module with those that it may use, from the first,
/// which uses none, to the last.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let table = text.split("| module | uses |\n|---|---|\n").nth(1);
    let rows = table.expect("a table of modules").lines();
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|');
        let names = |cell: &str| -> Vec<String> {
            let names = cell.split('`').skip(1).step_by(2);
            names.map(str::to_owned).collect()
        };
        let module = names(cells.next().expect("a module")).concat();
        let uses = names(cells.next().expect("what it uses"));
        (module, uses.into_iter().collect())
    })
    .collect()
}

#[test]
fn modules_use_only_those_of_the_table_and_no_arrow_runs_back() {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for (module, path) in files() {
        let text = fs::read_to_string(&path).expect("a source file");
        let Some(top) = module.first() else { continue };
        let uses = found.entry(top.clone()).or_default();
        let paths = named(&text);
        let others = paths.iter().filter_map(|used| resolved(used, &module));
        uses.extend(others.filter_map(|other| other.first().cloned()));
        uses.remove(top);
    }
    let table = table();
    for (at, (module, uses)) in table.iter().enumerate() {
        let known: BTreeSet<_> = table[..at].iter().map(|(name, _)| name).collect();
        let back: Vec<_> = uses.iter().filter(|name| !known.contains(name)).collect();
        assert!(
            back.is_empty(),
            "{module} comes before {back:?}, which it uses"
        );
    }
    let table: BTreeMap<_, _> = table.into_iter().collect();
    assert_eq!(found, table, "left: the code; right: ARCHITECTURE.md");
}

/// A mode is a folder of `src/modes` with a plan.
#[test]
fn no_mode_names_another_one() {
    let mode = |module: &Module| match &module[..] {
        [modes, mode, ..] if modes == "modes" => {
            let folder = root().join("src/modes").join(mode);
            folder.join("plan").is_dir().then(|| mode.clone())
        }
        _ => None,
    };
    let (mut modes, mut wrong) = (BTreeSet::new(), Vec::new());
    for (module, path) in files() {
        let Some(own) = mode(&module) else { continue };
        let text = fs::read_to_string(&path).expect("a source file");
        for path in named(&text) {
            let other = resolved(&path, &module).and_then(|other| mode(&other));
            if other.is_some_and(|other| other != own) {
                wrong.push(format!("{} names {}", module.join("::"), path.join("::")));
            }
        }
        modes.insert(own);
    }
    assert!(modes.len() > 3, "modes were not found: {modes:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the nodes that are reached from `node` over one arrow of `uses` or more.
fn reached<'a>(
    uses: &'a BTreeMap<Module, BTreeSet<Module>>,
    node: &'a Module,
) -> BTreeSet<&'a Module> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![node]);
    while let Some(node) = open.pop() {
        let next = uses.get(node).into_iter().flatten();
        open.extend(next.filter(|next| reached.insert(*next)));
    }
    reached
}

/// Finds the cycles of `uses`: sets of files that all reach each other.
fn circles(uses: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<_, _> = uses
        .keys()
        .map(|node| (node, reached(uses, node)))
        .collect();
    let returning = reached.iter().filter(|(node, found)| found.contains(*node));
    let circles = returning.map(|(node, found)| {
        let members = found.iter().filter(|other| {
            let back = reached.get(*other);
            back.is_some_and(|back| back.contains(node))
        });
        members.map(|member| member.join("::")).collect()
    });
    circles.collect()
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let files = files();
    let modules: BTreeSet<&Module> = files.iter().map(|(module, _)| module).collect();
    // The file that a path refers to: its longest part that is one.
    let file = |path: &Module| {
        let parts = (0..=path.len()).rev().map(|length| path[..length].to_vec());
        parts.into_iter().find(|part| modules.contains(part))
    };
    let mut uses = BTreeMap::<Module, BTreeSet<Module>>::new();
    for (module, path) in &files {
        let text = fs::read_to_string(path).expect("a source file");
        for path in named(&text) {
            let other = resolved(&path, module).and_then(|path| file(&path));
            // A module and its submodules belong together.
            let other =
                other.filter(|other| !other.starts_with(module) && !module.starts_with(other));
            uses.entry(module.clone()).or_default().extend(other);
        }
    }
    let circles = circles(&uses);
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn circles_of_any_length_are_found() {
    let arrows = ["a b", "b c", "c a", "c d", "d e", "e f", "f e"];
    let mut uses = BTreeMap::<Module, BTreeSet<Module>>::new();
    for arrow in arrows {
        let (from, to) = arrow.split_once(' ').expect("an arrow");
        let to = vec![to.to_owned()];
        uses.entry(vec![from.to_owned()]).or_default().insert(to);
    }
    let found = circles(&uses);
    let expected = [vec!["a", "b", "c"], vec!["e", "f"]];
    assert!(found.iter().eq(&expected), "{found:?}");
}

#[test]
fn paths_anywhere_in_the_code_are_named() {
    let text = "fn f(x: crate::b::C) -> Vec<super::super::d::E> {} // crate::f\n";
    let found: Vec<String> = named(text).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["crate::b::C", "super::super::d::E"]);
}

#[test]
fn trees_of_use_are_read_whole() {
    let text = "use std::fmt;\n#[cfg(test)]\nmod tests;\npub(crate) use self::{a, b::{C, d::*}};\nuse crate::{\n    x::{self, Y as Z}, // no\n    w,\n};\n\
                fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::secret;\n}\n";
    let found: Vec<String> = used(text).iter().map(|path| path.join("::")).collect();
    let expected = [
        "std::fmt",
        "self::a",
        "self::b::C",
        "self::b::d::*",
        "crate::x::self",
        "crate::x::Y",
        "crate::w",
    ];
    assert_eq!(found, expected);
}
