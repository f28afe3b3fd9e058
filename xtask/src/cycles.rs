//! Modules of a crate that import each other in a circle.
//!
//! A module and the modules below it count as one here: a folder's file may use what is in the folder, and that may use
//! the types of the folder's file. Code for tests is left out.

mod source;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use self::source::{Module, Source};
use crate::tracked_files::tracked_files;

/// A circle that stays.
struct Allowed {
    /// The folder of the crate's root.
    root: &'static str,
    /// One of its modules.
    around: &'static str,
    /// It does not grow.
    modules_max: usize,
}

const ALLOWED: [Allowed; 1] = [
    // A plan is one of several kinds of experiments; each kind runs, and reports on, plans.
    Allowed {
        root: "crates/experiment/src",
        around: "plan",
        modules_max: 43,
    },
];

/// Prints each circle with the imports that make it; `false`: there are some that are not allowed.
pub(crate) fn check(directory: Option<&String>) -> Result<bool, String> {
    let directory = PathBuf::from(directory.map_or(".", String::as_str));
    let files = tracked_files(&directory, &["*.rs"])?;
    let (mut modules, mut found, mut allowed) = (0, 0, 0);
    for root in roots(&files) {
        let graph = Graph::new(read(&directory, &files, root)?);
        modules += graph.imports.len();
        for circle in graph.circles() {
            if is_allowed(root, &circle) {
                allowed += 1;
                continue;
            }
            found += 1;
            println!("{root}: {} modules import each other:", circle.len());
            graph.print_imports(&circle);
        }
    }
    println!("{found} circles of imports among {modules} modules, and {allowed} that may be there");
    Ok(found == 0)
}

fn is_allowed(root: &str, circle: &BTreeSet<Module>) -> bool {
    ALLOWED.iter().any(|allowed| {
        allowed.root == root
            && circle.len() <= allowed.modules_max
            && circle.iter().any(|module| name(module) == allowed.around)
    })
}

/// Folders that have the root of a crate.
fn roots(files: &[String]) -> BTreeSet<&str> {
    files
        .iter()
        .filter_map(|file| {
            let (folder, name) = file.rsplit_once('/')?;
            matches!(name, "lib.rs" | "main.rs").then_some(folder)
        })
        .collect()
}

/// The modules of a crate.
fn read(
    directory: &Path,
    files: &[String],
    root: &str,
) -> Result<BTreeMap<Module, Source>, String> {
    let mut modules = BTreeMap::new();
    for file in files {
        let Some(module) = module_of(file, root) else {
            continue;
        };
        let path = directory.join(file);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        source::read(&text, &module, &mut modules);
    }
    Ok(modules)
}

/// The module that a file of a crate is; `None`: it is of another one.
fn module_of(file: &str, root: &str) -> Option<Module> {
    let within = file.strip_prefix(root)?.strip_prefix('/')?;
    let mut module: Module = within
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    let is_folder = matches!(module.last()?.as_str(), "mod" | "lib" | "main");
    if is_folder {
        module.pop();
    }
    Some(module)
}

/// As paths have it, from the crate's root.
fn name(module: &Module) -> String {
    match module.is_empty() {
        true => "crate".to_owned(),
        false => module.join("::"),
    }
}

/// Which modules of a crate import which.
struct Graph {
    /// With a path that says so.
    imports: BTreeMap<Module, BTreeMap<Module, String>>,
}

impl Graph {
    fn new(mut modules: BTreeMap<Module, Source>) -> Self {
        let tests: BTreeSet<Module> = modules
            .iter()
            .flat_map(|(module, source)| source.tests.iter().map(|name| child(module, name)))
            .collect();
        modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        let mut imports = BTreeMap::new();
        for (module, source) in &modules {
            let imported = source.imports.iter().map(|import| &import.path);
            let mut of_module = BTreeMap::new();
            for path in imported.chain(&source.paths) {
                let target = resolve(&modules, module, path, FOLLOWED_MAX);
                let target = target.filter(|to| !to.starts_with(module) && !module.starts_with(to));
                if let Some(target) = target {
                    of_module.entry(target).or_insert_with(|| path.join("::"));
                }
            }
            imports.insert(module.clone(), of_module);
        }
        Self { imports }
    }

    /// Modules that reach each other.
    fn circles(&self) -> BTreeSet<BTreeSet<Module>> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> = self
            .imports
            .keys()
            .map(|module| (module, self.reached_from(module)))
            .collect();
        let circle = |module: &&Module| -> BTreeSet<Module> {
            let others = reached[*module].iter();
            let back = others.filter(|other| reached[**other].contains(*module));
            back.map(|other| (*other).clone()).collect()
        };
        let circles = reached.keys().map(circle);
        circles.filter(|circle| !circle.is_empty()).collect()
    }

    fn reached_from<'a>(&'a self, module: &'a Module) -> BTreeSet<&'a Module> {
        let (mut reached, mut waiting) = (BTreeSet::new(), vec![module]);
        while let Some(next) = waiting.pop() {
            let imports = self.imports.get(next).into_iter();
            let new = imports.flat_map(BTreeMap::keys);
            waiting.extend(new.filter(|to| reached.insert(*to)));
        }
        reached
    }

    fn print_imports(&self, circle: &BTreeSet<Module>) {
        for module in circle {
            let imports = self.imports[module].iter();
            for (to, path) in imports.filter(|(to, _)| circle.contains(*to)) {
                println!("  {} → {}: {path}", name(module), name(to));
            }
        }
    }
}

/// Imports that are followed from one module to the next. Ours: as many as there may be folders in each other.
const FOLLOWED_MAX: usize = 8;

/// The module that has what a path of another one names; `None`: another crate has it, or it is no path of modules.
fn resolve(
    modules: &BTreeMap<Module, Source>,
    from: &Module,
    path: &[String],
    followed_max: usize,
) -> Option<Module> {
    let (mut at, mut rest) = (from.clone(), path);
    match rest.first()?.as_str() {
        "crate" => {
            at.clear();
            rest = &rest[1..];
        }
        "self" | "super" => {
            while let Some(first @ ("self" | "super")) = rest.first().map(String::as_str) {
                if first == "super" {
                    at.pop()?;
                }
                rest = &rest[1..];
            }
        }
        name => {
            modules.get(&child(from, name))?;
        }
    }
    while let Some(name) = rest
        .first()
        .filter(|name| modules.contains_key(&child(&at, name)))
    {
        at.push(name.clone());
        rest = &rest[1..];
    }
    let imports = &modules.get(&at)?.imports;
    let further = rest.first().filter(|_| followed_max > 0).and_then(|name| {
        let import = imports
            .iter()
            .find(|import| import.name.as_ref() == Some(name))?;
        let path = [&import.path, &rest[1..]].concat();
        resolve(modules, &at, &path, followed_max - 1)
    });
    Some(further.unwrap_or(at))
}

fn child(module: &Module, name: &str) -> Module {
    let mut child = module.clone();
    child.push(name.to_owned());
    child
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let mut modules = BTreeMap::new();
        for (file, text) in files {
            let module = module_of(file, "src").expect("a module");
            source::read(text, &module, &mut modules);
        }
        let circles = Graph::new(modules).circles();
        let names =
            |circle: &BTreeSet<Module>| circle.iter().map(name).collect::<Vec<_>>().join(" ");
        circles.iter().map(names).collect()
    }

    #[test]
    fn modules_that_import_each_other_are_found() {
        let a = ("src/a.rs", "use crate::{b::B, other};");
        assert_eq!(
            circles(&[a, ("src/b.rs", "fn f(x: super::a::A) {}")]),
            ["a b"]
        );
        let c = ("src/c/mod.rs", "pub use self::d::D; mod d;");
        let (b, d) = (
            ("src/b.rs", "use crate::c::D;"),
            ("src/c/d.rs", "use crate::a::A;"),
        );
        assert_eq!(
            circles(&[a, b, c, d]),
            ["a b c::d"],
            "over a name of another module"
        );
        assert!(circles(&[a, b, c]).is_empty());
    }

    #[test]
    fn a_folder_is_one_with_its_modules_and_tests_are_left_out() {
        let lib = ("src/lib.rs", "mod a; use a::f;");
        let a = (
            "src/a.rs",
            "mod b; mod c; #[cfg(test)] mod tests; use self::b::B;",
        );
        let b = ("src/a/b.rs", "use super::A; use super::c::C; use crate::f;");
        assert!(circles(&[lib, a, b, ("src/a/c.rs", "")]).is_empty());
        let test = "#[cfg(test)] mod tests { use crate::a::b::B; }";
        assert!(circles(&[lib, a, b, ("src/a/c.rs", test)]).is_empty());
        let tests = ("src/a/tests.rs", "use super::c::C;");
        let c = ("src/a/c.rs", "use super::tests::T;");
        assert!(circles(&[lib, a, b, tests, c]).is_empty());
    }
}
